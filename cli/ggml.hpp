// ggml's kernel, which Python's package xllamacpp brings along inside a module for Python.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace deltaworks::cli {

// What bench/ggml_bench.py measures, in the Python environment of this ONNX Runtime. Nothing, after
// a line on standard error, where that lacks xllamacpp. Throws std::runtime_error when the script
// fails.
std::optional<nlohmann::json> ggml_figures(const std::filesystem::path& runtime, int threads);

}  // namespace deltaworks::cli
