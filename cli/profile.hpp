// Shares of an ONNX Runtime profile.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace deltaworks::cli {

struct OperatorTime {
  std::string op_type;
  std::int64_t calls = 0;
  double seconds = 0;
};

// Kernel times by operator type, longest first.
std::vector<OperatorTime> operator_times(const nlohmann::json& events);

}  // namespace deltaworks::cli
