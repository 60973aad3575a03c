// The functions of an ONNX model, which its nodes call by name.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <string>

namespace deltaworks::cli {

// What a call gives the attributes of a function, by their names there.
using OnnxAttributes = std::map<std::string, onnx::AttributeProto>;

// Of the call itself, and the function's own for those that it leaves out.
OnnxAttributes attributes_of(const onnx::NodeProto& call, const onnx::FunctionProto& function);

// Puts values for the attributes that stand for one of the function around the node. One that the
// call does not give either is left out, as ONNX has it.
void resolve(const OnnxAttributes& attributes, onnx::NodeProto& node);

class OnnxFunctions {
 public:
  // Throws std::runtime_error when functions call themselves, or each other without a sane end:
  // whatever follows calls would never come back. The model outlives this.
  explicit OnnxFunctions(const onnx::ModelProto& model);

  const onnx::FunctionProto* find(const onnx::NodeProto& call) const;

 private:
  std::map<std::string, const onnx::FunctionProto*> functions_;
};

}  // namespace deltaworks::cli
