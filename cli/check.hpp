// What the checks of the operators share: the record of errors against float64.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "deltaworks/dtype.hpp"
#include "operands.hpp"
#include "reference/tolerance.hpp"

namespace deltaworks::cli {

// One result of one operator in one type; the largest error on each instruction set.
struct Measurement {
  std::string op, dtype, result;
  double allowed = 0;
  std::map<std::string, double> errors;

  bool within() const {
    return std::all_of(errors.begin(), errors.end(),
                       [&](const auto& error) { return error.second <= allowed; });
  }
};

class Measurements {
 public:
  void set(const std::string& op, const std::string& target) { op_ = op, target_ = target; }

  // `factor` widens the table's tolerance where errors add up.
  template <class T>
  void compare(DType dtype, const std::string& result, const std::vector<T>& actual,
               const std::vector<double>& expected, double factor = 1) {
    record(dtype, result, relative_error(actual, expected), factor * reference::tolerance<T>());
  }
  const std::vector<Measurement>& all() const { return all_; }

 private:
  void record(DType dtype, const std::string& result, double error, double allowed);

  std::string op_, target_;
  std::vector<Measurement> all_;
};

// Each runs its operator on the chosen instruction set, over all its types.
void check_causal_conv_with_state(Draw& draw, Measurements& measurements);
void check_dflash2_dynamic_conv(Draw& draw, Measurements& measurements);
void check_gated_delta_net(Draw& draw, Measurements& measurements);
void check_gated_delta_rates(Draw& draw, Measurements& measurements);
void check_linear_attention(Draw& draw, Measurements& measurements);
void check_paged_attention(Draw& draw, Measurements& measurements);
void check_varlen_causal_conv(Draw& draw, Measurements& measurements);

}  // namespace deltaworks::cli
