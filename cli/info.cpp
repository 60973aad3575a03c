// deltaworks info: what this machine has and what this build can use of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/version.hpp"
#include "processor.hpp"
#include "report.hpp"
#include "runtime.hpp"

namespace deltaworks::cli {

namespace {

using nlohmann::json;

json runtime_json() {
  try {
    const Runtime& runtime = load_runtime();
    return {{"path", runtime.path}, {"version", runtime.version}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

json operators_library_json() {
  try {
    return {{"path", find_operators("", "").string()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

json collect() {
  return {{"version", version()},
          {"processor",
           {{"name", processor_name()},
            {"threads", std::thread::hardware_concurrency()},
            {"instruction_sets", cpu_targets()},
            {"used", cpu_target()}}},
          {"onnxruntime", runtime_json()},
          {"operators_library", operators_library_json()},
          {"backends", {"cpu"}},
          {"compiler", DELTAWORKS_COMPILER}};
}

std::string path_or_error(const json& found) {
  return found.contains("error") ? found.at("error").get<std::string>()
                                 : found.at("path").get<std::string>();
}

std::string to_text(const json& info) {
  const json &processor = info.at("processor"), &runtime = info.at("onnxruntime");
  std::string text =
      fmt::format("deltaworks        {}, compiled for the CPU by {}\n",
                  info.at("version").get<std::string>(), info.at("compiler").get<std::string>());
  text += fmt::format("processor         {}, {} threads\n", processor.at("name").get<std::string>(),
                      processor.at("threads").get<int>());
  text +=
      fmt::format("instruction sets  {}; used: {}\n",
                  fmt::join(processor.at("instruction_sets").get<std::vector<std::string>>(), ", "),
                  processor.at("used").get<std::string>());
  text += fmt::format(
      "ONNX Runtime      {}{}\n",
      runtime.contains("version") ? runtime.at("version").get<std::string>() + ", " : "",
      path_or_error(runtime));
  return text + fmt::format("operators for it  {}\n", path_or_error(info.at("operators_library")));
}

}  // namespace

void add_info(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("info", "What this machine has and this build can use");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "As one JSON object");
  command->callback([&chosen, as_json] {
    chosen = [as_json] {
      const json info = collect();
      if (*as_json) {
        write_json(info);
      } else {
        write_output(to_text(info));
      }
      return 0;
    };
  });
}

}  // namespace deltaworks::cli
