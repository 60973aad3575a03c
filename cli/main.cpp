// The command table.
#include <fmt/core.h>

#include <exception>

#include "command.hpp"
#include "deltaworks/version.hpp"

int main(int argc, char** argv) {
  namespace cli = deltaworks::cli;
  CLI::App app("Gated-delta-net operators: run a model, look at this machine, check the operators",
               "deltaworks");
  app.set_version_flag("--version", deltaworks::version());
  app.require_subcommand(1);
  app.footer("Exit status: 0 done, 1 the work failed, 2 the call was wrong.");
  cli::Action chosen;
  cli::add_generate(app, chosen);
  cli::add_info(app, chosen);
  cli::add_check(app, chosen);
  try {
    app.parse(argc, argv);
    return chosen();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const cli::UsageError& error) {
    fmt::print(stderr, "deltaworks: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "deltaworks: {}\n", error.what());
    return 1;
  }
}
