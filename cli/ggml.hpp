// ggml's kernels, which Python's package xllamacpp brings along inside a module for Python.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ceilings.hpp"

namespace deltaworks::cli {

// Whether ggml has something like the operator; all of them are "".
bool ggml_has(const std::string& op);

// What bench/ggml_bench.py measures of it, in the Python environment of this ONNX Runtime. Nothing,
// after a line on standard error, where that lacks xllamacpp. Throws std::runtime_error when the
// script fails.
std::optional<nlohmann::json> ggml_figures(const std::filesystem::path& runtime,
                                           const std::string& op, const bench::Effort& effort);

}  // namespace deltaworks::cli
