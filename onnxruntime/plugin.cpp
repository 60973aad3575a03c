// The library's only exported function, which SessionOptions.register_custom_ops_library calls.
#include <exception>
#include <initializer_list>
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
struct Domain {
  std::vector<std::unique_ptr<CustomOp>> ops;
  OrtCustomOpDomain* handle = nullptr;

  Domain(const OrtApi& api, const char* name, std::initializer_list<std::vector<Operator>> groups) {
    check(api, api.CreateCustomOpDomain(name, &handle));
    for (const std::vector<Operator>& group : groups) {
      for (const Operator& op : group) {
        ops.push_back(std::make_unique<CustomOp>(op));
        check(api, api.CustomOpDomain_Add(handle, ops.back().get()));
      }
    }
  }
};

struct Domains {
  Domain microsoft, deltaworks;

  explicit Domains(const OrtApi& api)
      : microsoft(api, "com.microsoft",
                  {varlen_causal_conv_operators(), gated_delta_net_operators(),
                   paged_attention_operators(), state_replay_operators()}),
        deltaworks(api, "deltaworks", {replay_operators(), dflash2_dynamic_conv_operators()}) {}
};

// A process may hold more than one ONNX Runtime; each gets domains of its own.
const Domains& domains_for(const OrtApi& api) {
  static std::mutex mutex;
  static auto& known = *new std::map<const OrtApi*, std::unique_ptr<Domains>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Domains>& domains = known[&api];
  if (domains == nullptr) domains = std::make_unique<Domains>(api);
  return *domains;
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
    const Domains& domains = domains_for(*api);
    check(*api, api->AddCustomOpDomain(options, domains.microsoft.handle));
    check(*api, api->AddCustomOpDomain(options, domains.deltaworks.handle));
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
