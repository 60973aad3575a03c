#include "ggml.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "runtime.hpp"

namespace deltaworks::cli {

namespace {

namespace fs = std::filesystem;

// For the shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return result + "'";
}

std::string output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  std::string output;
  char part[4096];
  while (const std::size_t size = std::fread(part, 1, sizeof part, pipe)) output.append(part, size);
  if (pclose(pipe) != 0) throw std::runtime_error("ggml was not measured: this failed: " + command);
  return output;
}

}  // namespace

bool ggml_has(const std::string& op) {
  return op.empty() || op == "gated_delta_net" || op == "varlen_causal_conv";
}

std::optional<nlohmann::json> ggml_figures(const fs::path& runtime, const std::string& op,
                                           const bench::Effort& effort) {
  // <environment>/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.32.0
  const fs::path packages = runtime.parent_path().parent_path().parent_path();
  const fs::path environment = packages.parent_path().parent_path().parent_path();
  const fs::path python = environment / "bin/python3";
  const fs::path script = program_folder() / "../../../bench/ggml_bench.py";
  if (!fs::exists(packages / "xllamacpp")) {
    fmt::print(stderr, "ggml is not measured: `{} -m pip install xllamacpp` (34 MB) brings it\n",
               fs::exists(python) ? python.string() : "python3");
    return std::nullopt;
  }
  if (!fs::exists(python) || !fs::exists(script)) {
    fmt::print(
        stderr,
        "ggml is not measured: that needs the source tree around this program, and a virtual "
        "environment with onnxruntime and xllamacpp\n");
    return std::nullopt;
  }
  return nlohmann::json::parse(output_of(fmt::format(
      "{} {} --json --threads {} --seconds {}{}", quoted(python.string()), quoted(script.string()),
      effort.threads, effort.seconds, op.empty() ? "" : " --only " + op)));
}

}  // namespace deltaworks::cli
