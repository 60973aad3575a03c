// What the library exports: RegisterCustomOps for SessionOptions.register_custom_ops_library, and the
// other two for onnxruntime.register_execution_provider_library.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "custom_op.hpp"
#include "execution_provider.hpp"

namespace deltaworks::ort {

namespace {

// Sessions keep pointers into both for as long as they live, so they live as long as the process.
struct Registration {
  std::vector<std::unique_ptr<CustomOp>> ops;
  std::vector<OrtCustomOpDomain*> domains;

  Registration(const OrtApi& api, Engine engine) {
    for (const Domain& domain : ort::domains()) {
      check(api, api.CreateCustomOpDomain(domain.name, &domains.emplace_back()));
      for (const Operator& op : domain.operators) {
        ops.push_back(std::make_unique<CustomOp>(op, engine));
        check(api, api.CustomOpDomain_Add(domains.back(), ops.back().get()));
      }
    }
  }
};

// A process may hold more than one ONNX Runtime; each gets domains of its own. A kernel of this interface does not see its
// session's configuration, so each engine has domains of its own too.
const Registration& registration_for(const OrtApi& api, Engine engine) {
  static std::mutex mutex;
  static auto& known =
      *new std::map<std::pair<const OrtApi*, Engine>, std::unique_ptr<Registration>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Registration>& registration = known[{&api, engine}];
  if (registration == nullptr) registration = std::make_unique<Registration>(api, engine);
  return *registration;
}

// A host's ONNX Runtime, and the newest interface that it and this library know. Asking it for a
// newer one would print to standard error.
struct Runtime {
  const OrtApi* api;  // null: too old, or so new that it gave this interface up
  std::uint32_t version;

  explicit Runtime(const OrtApiBase& base) {
    unsigned major = 0, minor = 0;
    std::sscanf(base.GetVersionString(), "%u.%u", &major, &minor);
    version = major == 1 ? std::min<std::uint32_t>(minor, ORT_API_VERSION) : ORT_API_VERSION;
    api = version < kOldestApi ? nullptr : base.GetApi(version);
  }
};

OrtStatus* refusal(const OrtApiBase& base, const Runtime& runtime) noexcept {
  const char* const here = base.GetVersionString();
  char message[128];
  if (runtime.version < kOldestApi) {
    std::snprintf(message, sizeof(message),
                  "deltaworks needs ONNX Runtime 1.23.2 or later, this is %s", here);
  } else if (runtime.api == nullptr) {
    std::snprintf(
        message, sizeof(message),
        "deltaworks needs interface %u of ONNX Runtime, which this one, %s, does not have",
        static_cast<unsigned>(runtime.version), here);
  } else {
    std::snprintf(message, sizeof(message),
                  "deltaworks: this ONNX Runtime, %s, has no interface for execution providers",
                  here);
  }
  return base.GetApi(1)->CreateStatus(ORT_FAIL, message);
}

OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase& base) noexcept {
  const Runtime runtime(base);
  if (runtime.api == nullptr) return refusal(base, runtime);
  return guarded(*runtime.api, "deltaworks", [&] {
    const Engine engine = engine_of(*runtime.api, *options);
    for (OrtCustomOpDomain* domain : registration_for(*runtime.api, engine).domains) {
      check(*runtime.api, runtime.api->AddCustomOpDomain(options, domain));
    }
  });
}

OrtStatus* create_factories(const OrtApiBase& base, OrtEpFactory** factories, std::size_t room,
                            std::size_t* count) noexcept {
  const Runtime runtime(base);
  if (runtime.api == nullptr || runtime.api->GetEpApi() == nullptr) return refusal(base, runtime);
  return guarded(*runtime.api, "deltaworks", [&] {
    *count = 0;
    if (room == 0) throw InvalidArgument("no room for a factory, expected room for one");
    factories[0] = std::make_unique<ProviderFactory>(*runtime.api, runtime.version).release();
    *count = 1;
  });
}

}  // namespace

}  // namespace deltaworks::ort

extern "C" {

[[gnu::visibility("default")]] OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                            const OrtApiBase* base) noexcept {
  return deltaworks::ort::register_operators(options, *base);
}

[[gnu::visibility("default")]] OrtStatus* CreateEpFactories(
    const char* /*registered_name*/, const OrtApiBase* base, const OrtLogger* /*default_logger*/,
    OrtEpFactory** factories, std::size_t room, std::size_t* count) noexcept {
  return deltaworks::ort::create_factories(*base, factories, room, count);
}

[[gnu::visibility("default")]] OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  delete static_cast<deltaworks::ort::ProviderFactory*>(factory);
  return nullptr;
}

}  // extern "C"
