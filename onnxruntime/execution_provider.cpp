#include "execution_provider.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deltaworks/version.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "DeltaworksExecutionProvider";

// A claimed node: the kernel that the custom-operator interface would run.
class ClaimedNode : public OrtNodeComputeInfo {
 public:
  ClaimedNode(const OrtApi& api, std::uint32_t version, Made made, Order order)
      : OrtNodeComputeInfo{}, api_(api), made_(std::move(made)), order_(std::move(order)) {
    ort_version_supported = version;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) {
      return static_cast<const ClaimedNode*>(self)->compute(*context);
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  }

 private:
  OrtStatus* compute(OrtKernelContext& context) const noexcept {
    return guarded(api_, made_.op->name, [&] {
      Call call(api_, context, &order_);
      made_.kernel->compute(call);
      call.finish();
    });
  }

  const OrtApi& api_;
  Made made_;
  Order order_;
};

// Where the fused node has the values of the node inside it. It lists neither those that the node
// leaves out nor an output that nothing reads.
std::vector<std::ptrdiff_t> places(const std::vector<Node::Value>& inside,
                                   const std::vector<Node::Value>& fused) {
  std::vector<std::ptrdiff_t> places;
  for (const Node::Value& value : inside) {
    const auto found = std::find_if(fused.begin(), fused.end(), [&](const Node::Value& other) {
      return other.name == value.name;
    });
    if (value.name.empty()) {
      places.push_back(Order::kLeftOut);
    } else {
      places.push_back(found == fused.end() ? Order::kDropped : found - fused.begin());
    }
  }
  return places;
}

class Provider : public OrtEp {
 public:
  Provider(const OrtApi& api, std::uint32_t version, Engine engine, const OrtLogger& logger)
      : OrtEp{}, api_(api), ep_api_(*api.GetEpApi()), engine_(engine), logger_(logger) {
    ort_version_supported = version;
    OrtEp::GetName = [](const OrtEp*) noexcept { return kName; };
    OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph,
                              OrtEpGraphSupportInfo* claims) noexcept {
      const auto& provider = *static_cast<const Provider*>(self);
      return guarded(provider.api_, kName, [&] { provider.claim(*graph, *claims); });
    };
    OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                        std::size_t count, OrtNodeComputeInfo** claimed, OrtNode**) noexcept {
      const auto& provider = *static_cast<const Provider*>(self);
      return guarded(provider.api_, kName, [&] {
        std::vector<std::unique_ptr<ClaimedNode>> compiled;  // all or, when one throws, none
        for (std::size_t i = 0; i < count; ++i) {
          compiled.push_back(provider.compile(*graphs[i], *fused[i]));
        }
        for (std::size_t i = 0; i < count; ++i) claimed[i] = compiled[i].release();
      });
    };
    OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** claimed,
                                        std::size_t count) noexcept {
      for (std::size_t i = 0; i < count; ++i) delete static_cast<ClaimedNode*>(claimed[i]);
    };
  }

 private:
  std::vector<const OrtNode*> nodes_of(const OrtGraph& graph) const {
    std::size_t count = 0;
    check(api_, api_.Graph_GetNumNodes(&graph, &count));
    std::vector<const OrtNode*> nodes(count);
    if (count > 0) check(api_, api_.Graph_GetNodes(&graph, nodes.data(), count));
    return nodes;
  }

  // One of ours that no other provider has.
  bool is_open(const OrtNode& node) const {
    const char *domain = nullptr, *type = nullptr, *provider = nullptr;
    check(api_, api_.Node_GetDomain(&node, &domain));
    check(api_, api_.Node_GetOperatorType(&node, &type));
    if (!is_ours(domain, type)) return false;
    check(api_, api_.Node_GetEpName(&node, &provider));
    return provider == nullptr || *provider == '\0' || std::string(provider) == kName;
  }

  // Each on its own: a fused node is opaque to ONNX Runtime, and nothing here gains from a larger one.
  void claim(const OrtGraph& graph, OrtEpGraphSupportInfo& claims) const {
    for (const OrtNode* node : nodes_of(graph)) {
      if (!is_open(*node)) continue;
      const std::string reason = why_not(*node);
      if (!reason.empty()) {
        warn(reason);
        continue;
      }
      OrtNodeFusionOptions options{};
      options.ort_version_supported = ort_version_supported;
      check(api_, ep_api_.EpGraphSupportInfo_AddNodesToFuse(&claims, &node, 1, &options));
    }
  }

  // Empty for a node to claim. What cannot even be read is not claimed either.
  std::string why_not(const OrtNode& node) const {
    std::string reason;
    try {
      reason = why_not(node_of(api_, node));
    } catch (const std::exception& error) {
      const char* type = nullptr;
      check(api_, api_.Node_GetOperatorType(&node, &type));
      reason = message_of(type, error.what());
    }
    if (reason.empty()) return reason;
    return fmt::format("{} does not claim the node {}: {}", kName, label_of(node), reason);
  }

  // What the contract accepts could still exceed a limit of ours in a run: no provider after this
  // one would get the node then.
  static std::string why_not(const Node& node) {
    const contract::Outcome<Plan> outcome = describe(node);
    if (const auto* complaint = std::get_if<std::string>(&outcome)) return *complaint;
    for (const Extent& extent : std::get<Plan>(outcome).geometry) {
      if (extent.value != contract::kUnknown || extent.most == 0) continue;
      return fmt::format("{}: the graph does not tell {}, expected at most {}", node.type,
                         extent.name, extent.most);
    }
    return {};
  }

  // "gdn.3", or by its first output; asks for nothing else of the node, which may be unreadable.
  std::string label_of(const OrtNode& node) const {
    const char* name = nullptr;
    check(api_, api_.Node_GetName(&node, &name));
    if (*name != '\0') return fmt::format("\"{}\"", name);
    std::size_t count = 0;
    check(api_, api_.Node_GetNumOutputs(&node, &count));
    std::vector<const OrtValueInfo*> outputs(count);
    if (count > 0) check(api_, api_.Node_GetOutputs(&node, outputs.data(), count));
    for (const OrtValueInfo* output : outputs) {
      if (output == nullptr) continue;
      check(api_, api_.GetValueInfoName(output, &name));
      return fmt::format("that computes \"{}\"", name);
    }
    return "without a name";
  }

  void warn(const std::string& text) const {
    OrtStatus* const status = api_.Logger_LogMessage(&logger_, ORT_LOGGING_LEVEL_WARNING,
                                                     text.c_str(), ORT_FILE, __LINE__, "claim");
    if (status != nullptr) api_.ReleaseStatus(status);
  }

  std::unique_ptr<ClaimedNode> compile(const OrtGraph& graph, const OrtNode& fused) const {
    const std::vector<const OrtNode*> nodes = nodes_of(graph);
    if (nodes.size() != 1) throw std::runtime_error("a fused node has more than one node inside");
    Node node = node_of(api_, *nodes.front());
    node.engine = engine_;
    const Node outside = node_of(api_, fused);
    Order order{places(node.inputs, outside.inputs), places(node.outputs, outside.outputs)};
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (order.inputs[i] != Order::kDropped) continue;
      throw std::runtime_error(
          fmt::format("input {} of {} is lost", node.inputs[i].name, node.type));
    }
    contract::Outcome<Made> made = make(std::move(node));
    if (const auto* reason = std::get_if<std::string>(&made)) throw InvalidArgument(*reason);
    return std::make_unique<ClaimedNode>(api_, ort_version_supported,
                                         std::move(std::get<Made>(made)), std::move(order));
  }

  const OrtApi& api_;
  const OrtEpApi& ep_api_;
  const Engine engine_;
  const OrtLogger& logger_;
};

const OrtApi& api_of(const OrtEpFactory* factory) {
  return static_cast<const ProviderFactory*>(factory)->api();
}

// One device: this processor.
OrtStatus* supported_devices(OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                             std::size_t count, OrtEpDevice** supported, std::size_t room,
                             std::size_t* supported_count) noexcept {
  const OrtApi& api = api_of(self);
  *supported_count = 0;
  for (std::size_t i = 0; i < count && *supported_count < room; ++i) {
    if (api.HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
    OrtStatus* const status = api.GetEpApi()->CreateEpDevice(self, devices[i], nullptr, nullptr,
                                                             &supported[*supported_count]);
    if (status != nullptr) return status;
    ++*supported_count;
  }
  return nullptr;
}

OrtStatus* create_provider(OrtEpFactory* self, const OrtHardwareDevice* const*,
                           const OrtKeyValuePairs* const*, std::size_t,
                           const OrtSessionOptions* options, const OrtLogger* logger,
                           OrtEp** provider) noexcept {
  const OrtApi& api = api_of(self);
  return guarded(api, kName, [&] {
    *provider = std::make_unique<Provider>(api, self->ort_version_supported,
                                           engine_of(api, *options), *logger)
                    .release();
  });
}

}  // namespace

ProviderFactory::ProviderFactory(const OrtApi& api, std::uint32_t version)
    : OrtEpFactory{}, api_(api) {
  ort_version_supported = version;
  GetName = [](const OrtEpFactory*) noexcept { return kName; };
  GetVendor = [](const OrtEpFactory*) noexcept { return "Deltaworks"; };
  GetVendorId = [](const OrtEpFactory*) noexcept { return std::uint32_t{0}; };
  GetVersion = [](const OrtEpFactory*) noexcept { return deltaworks::version(); };
  GetSupportedDevices = supported_devices;
  CreateEp = create_provider;
  ReleaseEp = [](OrtEpFactory*, OrtEp* provider) noexcept {
    delete static_cast<Provider*>(provider);
  };
  // Memory is the CPU's, so ONNX Runtime's own allocator and no copies.
  CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                       OrtAllocator** allocator) noexcept -> OrtStatus* {
    *allocator = nullptr;
    return nullptr;
  };
  ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) noexcept {};
  CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
    *transfer = nullptr;
    return nullptr;
  };
  IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
}

}  // namespace deltaworks::ort
