// lignum verify-model: a folder's model against what PyTorch computed for it.
#include "train/verify_model.h"

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/verbs.h"

namespace lignum::cli {
namespace {

struct VerifyModelArguments {
  std::string folder;
  std::vector<std::string> settings;
  bool json = false;
};

Result<train::VerifyOptions> verify_options_of(const std::vector<std::string>& settings) {
  for (const std::string& s : settings) {
    if (!s.starts_with("threads=") && !s.starts_with("isa="))
      return user_error("'{}': verify-model takes threads=N and isa=NAME", s);
  }
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::load({}, settings));
  train::VerifyOptions o;
  o.threads = std::max(1, static_cast<int>(config.integer("threads")));
  LIGNUM_ASSIGN_OR_RETURN(o.choice, kernels::choose(kernels::isa_from_name(config.text("isa"))));
  return o;
}

// How far a comparison is in its bound; NaN is beyond any.
double share_of_bound(const train::Comparison& c) {
  if (!(c.error <= c.bound)) return std::isnan(c.error) ? INFINITY : c.error / c.bound;
  return c.bound > 0 ? c.error / c.bound : 0;
}

Status run_verify_model(const VerifyModelArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const train::VerifyOptions options, verify_options_of(a.settings));
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<train::Comparison> all, train::verify_model(a.folder, options));
  std::vector<std::string> kinds;
  std::map<std::string, const train::Comparison*> worst;
  std::map<std::string, int64_t> count;
  int64_t failed = 0;
  for (const train::Comparison& c : all) {
    const train::Comparison*& w = worst[c.kind];
    if (w == nullptr) kinds.push_back(c.kind);
    if (w == nullptr || share_of_bound(c) > share_of_bound(*w)) w = &c;
    ++count[c.kind];
    failed += c.ok() ? 0 : 1;
  }
  nlohmann::ordered_json json = {{"folder", a.folder}, {"compared", all.size()}, {"failed", failed}};
  for (const std::string& kind : kinds) {
    const train::Comparison& w = *worst[kind];
    if (a.json) {
      json["worst"][kind] = {{"name", w.name}, {"error", w.error}, {"norm", w.norm}, {"bound", w.bound}};
    } else {
      print_line(fmt::format("{:<16} {:>3} compared  worst {}: error {:.2e} of norm {:.2e}, bound {:.2e}{}",
                             kind, count[kind], w.name, w.error, w.norm, w.bound, w.ok() ? "" : "  FAILS"));
    }
  }
  if (a.json) print_json(json);
  if (failed > 0)
    return check_failed("{}: {} of {} comparisons are beyond their bounds", a.folder, failed, all.size());
  return {};
}

}  // namespace

void add_verify_model(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "verify-model", "Compares logits, loss, gradients and AdamW steps with a folder's reference values.");
  auto a = std::make_shared<VerifyModelArguments>();
  verb.add_option("folder", a->folder,
                  "config.json, model.safetensors, reference.safetensors, reference.json")
      ->required();
  verb.add_option("settings", a->settings, "threads=N, isa=NAME");
  add_json(verb, a->json, "print one JSON object");
  add_examples(
      verb, "verify-model FOLDER [threads=N] [isa=NAME] [--json]",
      {"verify-model tests/golden/llama_yarn", "verify-model tests/golden/llama_yarn threads=2 --json"});
  verb.final_callback([a, &outcome] { outcome.status = run_verify_model(*a); });
}

}  // namespace lignum::cli
