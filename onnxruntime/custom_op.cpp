#include "custom_op.hpp"

#include <exception>
#include <limits>
#include <utility>

namespace deltaworks::ort {

namespace {

// What the C interface carries from creation to runs.
struct Instance {
  const OrtApi& api;
  const CustomOp& op;
  OrtAllocator* allocator;
  std::unique_ptr<Kernel> kernel;

  ~Instance() { api.ReleaseAllocator(allocator); }
};

// Runs `body`; no exception crosses the C interface.
template <class Body>
OrtStatus* guarded(const OrtApi& api, const char* op, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const InvalidArgument& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, message_of(op, error.what()).c_str());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, message_of(op, error.what()).c_str());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, op);
  }
}

const Operator& description(const OrtCustomOp* op) {
  return static_cast<const CustomOp*>(op)->description();
}

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
  const Operator& description = ort::description(op);
  return guarded(*api, description.name, [&] {
    auto created = description.create(node_of(*api, *info));
    OrtAllocator* allocator = nullptr;
    check(*api, api->KernelInfoGetAllocator(info, OrtMemTypeDefault, &allocator));
    *kernel = new Instance{*api, static_cast<const CustomOp&>(*op), allocator, std::move(created)};
  });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const auto& instance = *static_cast<const Instance*>(kernel);
  return guarded(instance.api, instance.op.description().name, [&] {
    Call call(instance.api, *context, *instance.allocator);
    instance.kernel->compute(call);
    call.finish();
  });
}

OrtCustomOpInputOutputCharacteristic characteristic(const Port& port) {
  return port.is_optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

}  // namespace

CustomOp::CustomOp(const Operator& op) : OrtCustomOp{}, op_(op) {
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
