// lignum eval: the held-out loss of a run's newest checkpoint, or of a Hugging Face folder.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "train/evaluate.h"

namespace lignum::cli {
namespace {

struct EvalArguments {
  explicit EvalArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  bool json = false;
};

Result<RunWeights> find_weights(const config::Config& config) {
  if (!config.text("run_name").empty()) return newest_weights(config);
  if (!config.text("model_path").empty()) return RunWeights{config.text("model_path"), 0};
  return user_error("nothing to evaluate: give run_name (its newest checkpoint) or model_path");
}

Status run_eval(const EvalArguments& a, const config::Config& config, const train::Processes& processes) {
  LIGNUM_ASSIGN_OR_RETURN(const RunWeights weights, find_weights(config));
  LIGNUM_ASSIGN_OR_RETURN(const train::EvalMetrics m,
                          train::evaluate(config, weights.folder, weights.step, processes));
  if (!speaks(processes)) return {};
  if (a.json) {
    nlohmann::ordered_json j = {{"folder", weights.folder}};
    j.update(to_json(m));
    print_json(j);
  } else {
    print_line(weights.folder);
    print_line(to_line(m));
  }
  return {};
}

}  // namespace

void add_eval(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand("eval", "The loss of a run's newest checkpoint on held-out files.");
  auto a = std::make_shared<EvalArguments>(verb);
  add_json(verb, a->json, "print one JSON object");
  add_examples(verb, "eval [config.yml] [key=value ...] [--json]",
               {"eval configs/quickstart.yml run_name=first",
                "eval model_path=some/folder dataset_type=text eval_files=held_out.txt"});
  verb.final_callback([a, &outcome] {
    run_on_ranks(a->config, outcome,
                 [&](const config::Config& config, const train::Processes& processes, int&) {
                   return run_eval(*a, config, processes);
                 });
  });
}

}  // namespace lignum::cli
