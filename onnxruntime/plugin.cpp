// The library's only exported function, which SessionOptions.register_custom_ops_library calls.
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "custom_op.hpp"

namespace deltaworks::ort {

namespace {

constexpr std::uint32_t kApiVersion = 18;  // the oldest interface that has every function used here

// Sessions keep pointers into both for as long as they live, so they live as long as the process.
struct Registration {
  std::vector<std::unique_ptr<CustomOp>> ops;
  std::vector<OrtCustomOpDomain*> domains;

  explicit Registration(const OrtApi& api) {
    for (const Domain& domain : ort::domains()) {
      check(api, api.CreateCustomOpDomain(domain.name, &domains.emplace_back()));
      for (const Operator& op : domain.operators) {
        ops.push_back(std::make_unique<CustomOp>(op));
        check(api, api.CustomOpDomain_Add(domains.back(), ops.back().get()));
      }
    }
  }
};

// A process may hold more than one ONNX Runtime; each gets domains of its own.
const Registration& registration_for(const OrtApi& api) {
  static std::mutex mutex;
  static auto& known = *new std::map<const OrtApi*, std::unique_ptr<Registration>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Registration>& registration = known[&api];
  if (registration == nullptr) registration = std::make_unique<Registration>(api);
  return *registration;
}

OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase& base) {
  const OrtApi* const api = base.GetApi(kApiVersion);
  if (api == nullptr) {
    const std::string message =
        std::string("deltaworks needs ONNX Runtime 1.23.2 or later, this is ") +
        base.GetVersionString();
    return base.GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  try {
    for (OrtCustomOpDomain* domain : registration_for(*api).domains) {
      check(*api, api->AddCustomOpDomain(options, domain));
    }
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, (std::string("deltaworks: ") + error.what()).c_str());
  }
}

}  // namespace

}  // namespace deltaworks::ort

extern "C" [[gnu::visibility("default")]] OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  return deltaworks::ort::register_operators(options, *base);
}
