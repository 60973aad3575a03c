// Time per operator, measured apart: profiling would slow the run whose tokens/s are reported.
#pragma once

#include <cstdint>
#include <vector>

#include "decode.hpp"
#include "package.hpp"
#include "report.hpp"

namespace deltaworks::cli {

// Decodes the beginning of the text again in a session that profiles.
OperatorShares profiled_run(const Package& package, int threads,
                            const std::vector<std::int32_t>& prompt, const Sampler& sampler,
                            Decoding how, const Generation& unprofiled);

}  // namespace deltaworks::cli
