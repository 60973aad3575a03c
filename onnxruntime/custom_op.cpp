#include "custom_op.hpp"

#include <limits>

namespace deltaworks::ort {

namespace {

// What the C interface carries from creation to runs.
struct Instance {
  const OrtApi& api;
  const CustomOp& op;
  std::unique_ptr<Kernel> kernel;
};

const Operator& description(const OrtCustomOp* op) {
  return static_cast<const CustomOp*>(op)->description();
}

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
  const auto& ours = static_cast<const CustomOp&>(*op);
  return guarded(*api, ours.description().name, [&] {
    Node node = node_of(*api, *info);
    node.engine = ours.engine();
    *kernel = new Instance{*api, ours, ours.description().create(node)};
  });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const auto& instance = *static_cast<const Instance*>(kernel);
  return guarded(instance.api, instance.op.description().name, [&] {
    Call call(instance.api, *context);
    instance.kernel->compute(call);
    call.finish();
  });
}

OrtCustomOpInputOutputCharacteristic characteristic(const Port& port) {
  return port.is_optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

}  // namespace

CustomOp::CustomOp(const Operator& op, Engine engine) : OrtCustomOp{}, op_(op), engine_(engine) {
  version = 18;  // the fields below; ONNX Runtime 1.18 and every later one takes it
  GetName = [](const OrtCustomOp* self) { return ort::description(self).name; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  GetInputTypeCount = [](const OrtCustomOp* self) { return ort::description(self).inputs.size(); };
  GetOutputTypeCount = [](const OrtCustomOp* self) {
    return ort::description(self).outputs.size();
  };
  GetInputType = [](const OrtCustomOp* self, std::size_t i) {
    return ort::description(self).inputs[i].type;
  };
  GetOutputType = [](const OrtCustomOp* self, std::size_t i) {
    return ort::description(self).outputs[i].type;
  };
  GetInputCharacteristic = [](const OrtCustomOp* self, std::size_t i) {
    return characteristic(ort::description(self).inputs[i]);
  };
  GetOutputCharacteristic = [](const OrtCustomOp* self, std::size_t i) {
    return characteristic(ort::description(self).outputs[i]);
  };
  GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputMinArity = GetVariadicInputMinArity;
  GetVariadicOutputHomogeneity = GetVariadicInputHomogeneity;
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = [](void* kernel) { delete static_cast<Instance*>(kernel); };
  // InferOutputShapeFn stays empty: with it ONNX Runtime 1.23 crashes on a node that leaves out an
  // input in the middle, and no version reports its errors.
  if (op_.in_place != nullptr) {
    GetMayInplace = op_.in_place;
    ReleaseMayInplace = [](int*, int*) {};
  }
}

}  // namespace deltaworks::ort
