#include "onnx_node.hpp"

#include <onnx/onnx_pb.h>

namespace deltaworks::cli {

namespace {

int element_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return onnx::TensorProto::FLOAT16;
    case DType::kBFloat16: return onnx::TensorProto::BFLOAT16;
    case DType::kInt32: return onnx::TensorProto::INT32;
    case DType::kFloat32: break;
  }
  return onnx::TensorProto::FLOAT;
}

void describe(const OnnxOperand& operand, onnx::ValueInfoProto& info) {
  info.set_name(operand.name);
  onnx::TypeProto::Tensor& tensor = *info.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(element_type(operand.dtype));
  for (const std::int64_t dim : operand.shape) {
    tensor.mutable_shape()->add_dim()->set_dim_value(dim);
  }
}

struct SetAttribute {
  onnx::AttributeProto& attribute;

  void operator()(std::int64_t value) const {
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(value);
  }
  void operator()(float value) const {
    attribute.set_type(onnx::AttributeProto::FLOAT);
    attribute.set_f(value);
  }
  void operator()(const std::string& value) const {
    attribute.set_type(onnx::AttributeProto::STRING);
    attribute.set_s(value);
  }
};

void store(const OnnxOperand& operand, onnx::TensorProto& tensor) {
  tensor.set_name(operand.name);
  tensor.set_data_type(element_type(operand.dtype));
  for (const std::int64_t dim : operand.shape) tensor.add_dims(dim);
  tensor.set_raw_data(operand.data, operand.bytes());
}

}  // namespace

std::size_t OnnxOperand::size() const {
  std::size_t size = 1;
  for (const std::int64_t dim : shape) size *= static_cast<std::size_t>(dim);
  return size;
}

std::size_t OnnxOperand::bytes() const {
  return size() * (dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? 2 : 4);
}

std::string onnx_model(const OnnxNode& node) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  for (const char* domain : {"", "com.microsoft", "deltaworks"}) {
    onnx::OperatorSetIdProto& opset = *model.add_opset_import();
    opset.set_domain(domain);
    opset.set_version(*domain == '\0' ? 17 : 1);
  }
  onnx::GraphProto& graph = *model.mutable_graph();
  graph.set_name("graph");
  onnx::NodeProto& proto = *graph.add_node();
  proto.set_op_type(node.op);
  proto.set_domain(node.domain);
  for (const OnnxOperand& input : node.inputs) {
    proto.add_input(input.name);
    if (input.is_constant) {
      store(input, *graph.add_initializer());
    } else if (!input.name.empty()) {
      describe(input, *graph.add_input());
    }
  }
  for (const OnnxOperand& output : node.outputs) {
    proto.add_output(output.name);
    if (!output.name.empty()) describe(output, *graph.add_output());
  }
  for (const auto& [name, value] : node.attributes) {
    onnx::AttributeProto& attribute = *proto.add_attribute();
    attribute.set_name(name);
    std::visit(SetAttribute{attribute}, value);
  }
  return model.SerializeAsString();
}

}  // namespace deltaworks::cli
