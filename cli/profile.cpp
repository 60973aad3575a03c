#include "profile.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace deltaworks::cli {

std::vector<OperatorTime> operator_times(const nlohmann::json& events) {
  std::map<std::string, OperatorTime> by_type;
  for (const auto& event : events) {
    const std::string name = event.value("name", "");
    if (event.value("cat", "") != "Node" || !name.ends_with("_kernel_time")) continue;
    const std::string op_type = event.at("args").value("op_name", "");
    OperatorTime& entry = by_type[op_type];
    entry.op_type = op_type;
    entry.calls += 1;
    entry.seconds += event.value("dur", 0.0) * 1e-6;
  }
  std::vector<OperatorTime> times;
  for (auto& [type, entry] : by_type) times.push_back(std::move(entry));
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace deltaworks::cli
