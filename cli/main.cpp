// The command table.
#include <fmt/core.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "command.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/error.hpp"
#include "deltaworks/version.hpp"

namespace {

// The operators read DELTAWORKS_CPU_TARGET when the first of them runs: a wrong one is found here.
void check_cpu_target() {
  try {
    deltaworks::cpu_target();
  } catch (const deltaworks::InvalidArgument& error) {
    throw deltaworks::cli::UsageError(error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  namespace cli = deltaworks::cli;
  CLI::App app(
      "Gated-delta-net operators: run a model, look at this machine, check and time the operators",
      "deltaworks");
  app.set_version_flag("--version", deltaworks::version());
  app.require_subcommand(1);
  app.footer("Exit status: 0 done, 1 the work failed, 2 the call was wrong.");
  cli::Action chosen;
  cli::add_generate(app, chosen);
  cli::add_info(app, chosen);
  cli::add_check(app, chosen);
  cli::add_bench(app, chosen);
  cli::add_explain(app, chosen);
  try {
    app.parse(argc, argv);
    check_cpu_target();
    return chosen();
  } catch (const CLI::RequiredError& error) {
    // Where something is missing and something else is too much, that is a word in the wrong place.
    const std::vector<std::string> unexpected = app.remaining(true);
    if (unexpected.empty()) {
      app.exit(error);
    } else {
      app.exit(CLI::ExtrasError(app.get_name(), unexpected));
    }
    return 2;
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    if (std::cout.flush()) return 0;
    fmt::print(stderr, "deltaworks: cannot write to standard output\n");
    return 1;
  } catch (const cli::UsageError& error) {
    fmt::print(stderr, "deltaworks: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "deltaworks: {}\n", error.what());
    return 1;
  }
}
