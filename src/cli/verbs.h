// The verbs of the binary, one file each. add_VERB adds the subcommand; when the command line names it, it
// runs after parsing and leaves its Outcome.
#pragma once

#include <CLI/CLI.hpp>

#include "base/status.h"

namespace lignum::cli {

// What the process ends with: a Status, or the exit code of a verb that stopped in a way of its own.
struct Outcome {
  Status status;
  int code = 0;       // if status is ok
  bool said = false;  // status has been printed, or is another rank's to print
};

void add_train(CLI::App& app, Outcome& outcome);
void add_report(CLI::App& app, Outcome& outcome);
void add_eval(CLI::App& app, Outcome& outcome);
void add_generate(CLI::App& app, Outcome& outcome);
void add_plan(CLI::App& app, Outcome& outcome);
void add_compile(CLI::App& app, Outcome& outcome);
void add_convert(CLI::App& app, Outcome& outcome);
void add_compare(CLI::App& app, Outcome& outcome);
void add_calibrate(CLI::App& app, Outcome& outcome);
void add_inspect(CLI::App& app, Outcome& outcome);
void add_tokenizer(CLI::App& app, Outcome& outcome);
void add_verify_mesh(CLI::App& app, Outcome& outcome);
void add_verify_model(CLI::App& app, Outcome& outcome);

}  // namespace lignum::cli
