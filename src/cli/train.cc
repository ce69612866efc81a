// lignum train: runs the training loop; SIGTERM and SIGINT save and stop it.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "train/progress_bar.h"
#include "train/trainer.h"
#include "tune_commit.h"

namespace lignum::cli {
namespace {

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

void install_stop() {
  struct sigaction action{};
  action.sa_handler = [](int signal) { stop_signal.store(signal); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the second one ends the process at once
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

struct TrainArguments {
  explicit TrainArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  bool json = false;
};

Status run_train(const TrainArguments& a, const config::Config& config, const train::Processes& processes,
                 int& code) {
  train::TrainOptions options;
  options.processes = processes;
  LIGNUM_ASSIGN_OR_RETURN(const std::optional<hw::Spec> spec, find_spec(config, options.no_spec));
  options.commit = LIGNUM_COMMIT;
  install_stop();
  std::optional<train::ProgressBar> bar;
  if (a.json) {
    options.record = print_json;
  } else if (train::ProgressBar::fits(STDOUT_FILENO)) {
    bar.emplace(stdout);
    options.log = [&](const std::string& line) { bar->line(line); };
    options.progress = [&](const train::StepMetrics& m, int64_t steps) { bar->step(m, steps); };
  } else {
    options.log = print_line;
  }
  options.stop = &stop_signal;
  options.spec = spec ? &*spec : nullptr;
  LIGNUM_ASSIGN_OR_RETURN(const train::TrainSummary summary, train::train(config, options));
  const bool first = speaks(processes);
  bar.reset();
  if (a.json && first) print_json(to_json(summary));
  if (summary.stopped_by != 0) {
    code = kSavedOnSignal;
    if (!a.json && first)
      print_line(fmt::format("stopped by signal {}; {}", summary.stopped_by,
                             config.boolean("enable_checkpointing")
                                 ? "the same command goes on"
                                 : "nothing is saved (enable_checkpointing=false)"));
  }
  return {};
}

}  // namespace

void add_train(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand("train", "Trains a model; resumes a run that has checkpoints.");
  auto a = std::make_shared<TrainArguments>(verb);
  add_json(verb, a->json, "print the records of metrics.jsonl, then a summary, instead of lines");
  add_examples(
      verb, "train [config.yml] [key=value ...] [--json]",
      {"train configs/quickstart.yml run_name=first", "train configs/quickstart.yml steps=1000 threads=2",
       "train configs/quickstart.yml ranks=2 ici_fsdp_parallelism=2",
       "train configs/quickstart.yml ranks=2 ici_fsdp_parallelism=2 comm=mpi",
       "train model_path=some/folder dataset_type=text train_files=a.txt steps=100"});
  verb.final_callback([a, &outcome] {
    run_on_ranks(a->config, outcome,
                 [&](const config::Config& config, const train::Processes& processes, int& code) {
                   return run_train(*a, config, processes, code);
                 });
  });
}

}  // namespace lignum::cli
