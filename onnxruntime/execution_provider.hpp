// DeltaworksExecutionProvider: ONNX Runtime's plugin interface for execution providers. It claims the
// nodes that the contracts accept, each on its own; the rest stays with the other providers.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>

namespace deltaworks::ort {

class ProviderFactory : public OrtEpFactory {
 public:
  // `version`: of the interface, as both sides know it.
  ProviderFactory(const OrtApi& api, std::uint32_t version);

  const OrtApi& api() const { return api_; }

 private:
  const OrtApi& api_;
};

}  // namespace deltaworks::ort
