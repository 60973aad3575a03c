// One operator row as ONNX Runtime's custom-operator interface sees it: a table of its inputs and
// outputs, and the C callbacks, the same for all, which turn exceptions into statuses.
#pragma once

#include "operator.hpp"

namespace deltaworks::ort {

class CustomOp : public OrtCustomOp {
 public:
  // `engine`: that the sessions of this table ask for.
  CustomOp(const Operator& op, Engine engine);
  const Operator& description() const { return op_; }
  Engine engine() const { return engine_; }

 private:
  const Operator& op_;  // of domains()
  Engine engine_;
};

}  // namespace deltaworks::ort
