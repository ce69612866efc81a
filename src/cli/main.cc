#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/verbs.h"
#include "tune_commit.h"

namespace lignum::cli {
namespace {

// What a script reads must be whole: a full disk or a closed pipe is not a success.
bool stdout_written() {
  const bool written = !std::cout.flush().fail() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written) fmt::print(stderr, "lignum: standard output cannot be written\n");
  return written;
}

// The first word is a verb or an option (of main's: --help, --version).
Status check_verb(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) names.push_back(verb->get_name());
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return {};
  if (word.empty()) return user_error("a verb is needed; there are {} (--help)", fmt::join(names, ", "));
  return user_error("{}: no such verb; there are {}{}", shown(word), fmt::join(names, ", "),
                    nearest_hint(word, {names.begin(), names.end()}));
}

int run(int argc, char** argv) {
  CLI::App app("Plans, trains and tunes large language models.", "lignum");
  app.require_subcommand(1);
  app.set_version_flag("--version", "lignum 0.1 (" LIGNUM_COMMIT ")");
  app.footer("lignum VERB --help has examples.");
  Outcome outcome;
  for (const auto add :
       {add_train, add_report, add_eval, add_generate, add_plan, add_compare, add_compile, add_convert,
        add_calibrate, add_inspect, add_tokenizer, add_verify_mesh, add_verify_model})
    add(app, outcome);
  if (const Status status = check_verb(app, argc > 1 ? argv[1] : ""); !status.ok()) {
    fmt::print(stderr, "lignum: {}\n", status.message());
    return static_cast<int>(status.code());
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
    return stdout_written() ? 0 : static_cast<int>(Code::user_error);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "lignum: {}\n", e.what());
    return static_cast<int>(Code::user_error);
  }
  if (outcome.status.ok()) return stdout_written() ? outcome.code : static_cast<int>(Code::user_error);
  if (!outcome.said) fmt::print(stderr, "lignum: {}\n", outcome.status.message());
  return static_cast<int>(outcome.status.code());
}

}  // namespace
}  // namespace lignum::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is then an error of write, with its name
  try {
    return lignum::cli::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "lignum: %s\n", e.what());
    return static_cast<int>(lignum::Code::internal);
  }
}
