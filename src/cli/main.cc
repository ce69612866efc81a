#include <fmt/core.h>

#include <cstdio>

#include "cli/verbs.h"
#include "tune_commit.h"

int main(int argc, char** argv) {
  using namespace lignum::cli;
  CLI::App app("Plans, trains and tunes large language models.", "lignum");
  app.require_subcommand(1);
  app.set_version_flag("--version", "lignum 0.1 (" LIGNUM_COMMIT ")");
  app.footer("lignum VERB --help has examples.");
  Outcome outcome;
  for (const auto add :
       {add_train, add_eval, add_plan, add_compile, add_calibrate, add_inspect, add_verify_model})
    add(app, outcome);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "lignum: {}\n", e.what());
    return static_cast<int>(lignum::Code::user_error);
  } catch (const std::exception& e) {
    fmt::print(stderr, "lignum: {}\n", e.what());
    return static_cast<int>(lignum::Code::internal);
  }
  // What a script reads must be whole: a full disk or a closed pipe is not a success.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (outcome.status.ok() && !written)
    outcome.status = lignum::user_error("standard output cannot be written");
  if (outcome.status.ok()) return outcome.code;
  fmt::print(stderr, "lignum: {}\n", outcome.status.message());
  return static_cast<int>(outcome.status.code());
}
