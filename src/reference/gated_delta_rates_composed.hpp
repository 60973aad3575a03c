// gated_delta_rates as a graph of separate element-wise operators would run it: the twin whose bits
// the operator has, and the benchmark's peer.
#pragma once

#include <vector>

#include "deltaworks/gated_delta_rates.hpp"

namespace deltaworks::reference {

template <class Step>
struct ComposedRatesSteps {
  std::vector<Step> sum, softplus;
};

// What one operator of the graph hands to the next. Kept between calls, as a framework's arena is.
template <class T>
struct ComposedRatesArrays {
  ComposedRatesSteps<float> float32;
  ComposedRatesSteps<T> activation;
  std::vector<float> scale, product, negated;
};

// Sigmoid; Add, Softplus, Exp of a_log, Multiply, Negate, Exp: each a pass over whole arrays on one
// thread, each element rounded to its array's type. The elementary functions are those of
// src/cpu/math-inl.h on vectors of the instruction set in use; what the operator saves is the
// passes. Arguments are not checked; a_log and dt_bias have no gaps.
template <class T>
void gated_delta_rates_composed(const GatedDeltaRatesArgs<T>& args, ComposedRatesArrays<T>& arrays);

}  // namespace deltaworks::reference
