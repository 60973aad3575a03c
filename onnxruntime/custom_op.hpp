// One operator row as ONNX Runtime's custom-operator interface sees it: a table of its inputs and
// outputs, and the C callbacks, the same for all, which turn exceptions into statuses.
#pragma once

#include "operator.hpp"

namespace deltaworks::ort {

class CustomOp : public OrtCustomOp {
 public:
  explicit CustomOp(const Operator& op);
  const Operator& description() const { return op_; }

 private:
  const Operator& op_;  // of domains()
};

}  // namespace deltaworks::ort
