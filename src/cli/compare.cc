// lignum compare: a training step in 8-bit floats beside the same step without.
#include "train/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common.h"
#include "cli/verbs.h"

namespace lignum::cli {
namespace {

struct CompareArguments {
  explicit CompareArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  bool json = false;
  size_t top = 8;
  std::optional<double> tolerance;
};

double percent_off(double value, double from) { return 100 * (value / from - 1); }

// The largest `top` by `key`.
template <class T, class Key>
std::vector<T> worst(std::vector<T> all, size_t top, Key key) {
  std::stable_sort(all.begin(), all.end(), [&](const T& a, const T& b) { return key(a) > key(b); });
  all.resize(std::min(all.size(), top));
  return all;
}

struct Row {
  const train::OperandLosses* operand;
  const train::OperandLoss* loss;
};
std::vector<Row> rows_of(const train::StepDifference& d) {
  std::vector<Row> rows;
  for (const train::OperandLosses& o : d.operands)
    for (const train::OperandLoss& l : o.layers) rows.push_back({&o, &l});
  return rows;
}

void print_text(const train::StepDifference& d, size_t top) {
  print_line(fmt::format("{:<16} {:>10} {:>10}", "", dtype_name(d.dtype), "quantised"));
  print_line(fmt::format("{:<16} {:>10.4f} {:>10.4f}  {:+.3f} %", "loss", d.plain_loss, d.quantised_loss,
                         percent_off(d.quantised_loss, d.plain_loss)));
  print_line(fmt::format("{:<16} {:>10.4f} {:>10.4f}  {:+.3f} %", "gradient norm", d.plain_norm,
                         d.quantised_norm, percent_off(d.quantised_norm, d.plain_norm)));
  print_line(fmt::format("the gradients differ by {:.2f} % of their norm", 100 * d.relative()));

  print_line("\ngradients that differ most");
  for (const auto& g : worst(d.gradients, top, [](const auto& one) { return one.relative(); }))
    print_line(fmt::format("  {:>8.2f} %  {}", 100 * g.relative(), g.name));

  print_line("\noperands that lose most");
  print_line(fmt::format("  {:>8}  {:>9}  {:>9}  {:>9}  {:>5}  {:<6}  {}", "error", "saturated", "underflow",
                         "scale", "layer", "", "of dot"));
  // E5M2 alone rounds twice as coarsely as E4M3.
  const auto beyond_rounding = [](const Row& one) {
    return one.loss->relative_error * (one.operand->format == DType::f8e5m2 ? 0.5 : 1);
  };
  for (const Row& r : worst(rows_of(d), top, beyond_rounding))
    print_line(fmt::format("  {:>6.2f} %  {:>7.3f} %  {:>7.3f} %  {:>9.3g}  {:>5}  {:<6}  {}",
                           100 * r.loss->relative_error, r.loss->saturation, r.loss->underflow, r.loss->scale,
                           r.loss->layer < 0 ? "-" : std::to_string(r.loss->layer), r.operand->operand,
                           fmt::join(r.operand->dots, " ")));
}

nlohmann::ordered_json json_of(const train::StepDifference& d) {
  nlohmann::ordered_json j = {{"dtype", dtype_name(d.dtype)},
                              {"loss", d.plain_loss},
                              {"quantised_loss", d.quantised_loss},
                              {"grad_norm", d.plain_norm},
                              {"quantised_grad_norm", d.quantised_norm},
                              {"gradient_error", d.relative()}};
  for (const train::GradientDifference& g : d.gradients)
    j["gradients"][g.name] = {{"error", g.error}, {"norm", g.norm}};
  j["operands"] = train::to_json(0, d.operands)["operands"];
  return j;
}

Status run_compare(const CompareArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  std::string weights = config.text("model_path");
  if (!config.text("run_name").empty()) {
    LIGNUM_ASSIGN_OR_RETURN(const RunWeights newest, newest_weights(config));
    weights = newest.folder;
  }
  LIGNUM_ASSIGN_OR_RETURN(const train::StepDifference d, train::compare_precisions(config, weights));
  if (a.json) {
    print_json(json_of(d));
  } else {
    print_line(weights.empty() ? "initial weights" : weights);
    print_text(d, a.top);
  }
  if (!std::isfinite(d.quantised_loss) || !std::isfinite(d.quantised_norm))
    return check_failed("the quantised step is not finite: loss {}, gradient norm {}", d.quantised_loss,
                        d.quantised_norm);
  if (a.tolerance && !(d.relative() <= *a.tolerance))
    return check_failed("the gradients differ by {:.4g} of their norm, more than --tolerance {}",
                        d.relative(), *a.tolerance);
  return {};
}

}  // namespace

void add_compare(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "compare", "Runs one step quantised and not: loss, gradients, and where most is lost.");
  auto a = std::make_shared<CompareArguments>(verb);
  verb.add_option("--top", a->top, "rows of each table")->check(CLI::Range(0, 100000));
  verb.add_option("--tolerance", a->tolerance,
                  "exit with 1 where the gradients differ by more than this part of their norm");
  add_json(verb, a->json, "print one JSON object, every gradient and operand in it");
  add_examples(
      verb, "compare [config.yml] [key=value ...] [--top N] [--tolerance X] [--json]",
      {"compare configs/quickstart.yml use_qwix_quantization=true quantization=fp8_full dtype=bfloat16",
       "compare configs/quickstart.yml run_name=first use_qwix_quantization=true quantization=fp8_full "
       "--tolerance 0.2"});
  verb.final_callback([a, &outcome] { outcome.status = run_compare(*a); });
}

}  // namespace lignum::cli
