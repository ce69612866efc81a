#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "plan/report.h"
#include "report/axis.h"
#include "report/html.h"

namespace lignum::report {
namespace {

using plan::bytes_text;
using plan::seconds_text;

constexpr size_t kPoints = 1000;   // of a line
constexpr size_t kTableRows = 12;  // of a series
constexpr double kMiB = 1 << 20;

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string error_text(double predicted, double measured) {
  return fmt::format("{:+.1f} %", 100 * (predicted / measured - 1));
}
std::string rate_text(double flops) {
  for (const auto& [scale, unit] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (flops >= scale) return fmt::format("{:.3g} {}FLOP/s", flops / scale, unit);
  return fmt::format("{:.3g} FLOP/s", flops);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The first two steps warm up: threads start, memory is touched for the first time.
std::vector<StepRow> steady(const RunSeries& series) {
  const size_t skip = series.steps.size() > 4 ? 2 : 0;
  return {series.steps.begin() + static_cast<std::ptrdiff_t>(skip), series.steps.end()};
}

std::string section(const std::string& title, const std::string& note, const std::string& body, bool wide) {
  return fmt::format("<section{}><h2>{}</h2>\n{}{}</section>\n", wide ? " class=\"wide\"" : "",
                     escaped(title),
                     note.empty() ? "" : fmt::format("<p class=\"soft\">{}</p>\n", escaped(note)), body);
}

std::string folded(const Table& table, bool open = false) {
  return fmt::format("<details{}><summary>Table</summary>{}</details>\n", open ? " open" : "",
                     to_html(table));
}

// --- lines over steps

template <class Value>
std::vector<Point> points_of(const std::vector<StepRow>& steps, Value value) {
  std::vector<Point> points;
  for (const StepRow& s : steps) points.push_back({static_cast<double>(s.step), value(s)});
  return thinned(points, kPoints);
}

// Some rows of all, the first and the last among them.
std::vector<StepRow> some(const std::vector<StepRow>& steps) {
  std::vector<StepRow> out;
  for (size_t i = 0; i < kTableRows && i < steps.size(); ++i) {
    const size_t rows = std::min(kTableRows, steps.size());
    out.push_back(steps[rows < 2 ? 0 : i * (steps.size() - 1) / (rows - 1)]);
  }
  return out;
}

template <class Value>
Table table_of(const std::vector<StepRow>& steps, std::vector<std::string> head, Value value) {
  Table table;
  table.head = std::move(head);
  for (const StepRow& s : some(steps)) {
    std::vector<std::string> row = {fmt::format("{}", s.step)};
    for (std::string& text : value(s)) row.push_back(std::move(text));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string loss_section(const RunSeries& series) {
  LineChart chart;
  chart.id = "loss";
  chart.x_label = "step";
  chart.y_label = "loss (nats a token)";
  chart.width = 1060;
  chart.height = 320;
  chart.series.push_back(
      {"training", "c1", points_of(series.steps, [](const StepRow& s) { return s.loss; })});
  std::string names;
  if (!series.evals.empty()) {
    Series held_out{"held out", "c2", {}, true};
    for (const EvalRow& e : series.evals) held_out.points.push_back({static_cast<double>(e.step), e.loss});
    chart.series.push_back(std::move(held_out));
    names = legend({{"training", "c1", ""}, {"held out", "c2", "dot"}});
  }
  Table table = table_of(series.steps, {"step", "training loss"}, [](const StepRow& s) {
    return std::vector<std::string>{fmt::format("{:.4f}", s.loss)};
  });
  std::string tables = folded(table);
  if (!series.evals.empty()) {
    Table held_out{{"after steps", "held-out loss", "perplexity"}, {}};
    for (const EvalRow& e : series.evals)
      held_out.rows.push_back(
          {fmt::format("{}", e.step), fmt::format("{:.4f}", e.loss), number_text(std::exp(e.loss))});
    tables += fmt::format("<details><summary>Held-out losses</summary>{}</details>\n", to_html(held_out));
  }
  return section("Loss", "Of each step before its update; held out: of the state after so many steps.",
                 names + to_svg(chart) + tables, true);
}

std::string learning_rate_section(const RunSeries& series) {
  LineChart chart;
  chart.id = "learning-rate";
  chart.from_zero = true;
  chart.x_label = "step";
  chart.y_label = "learning rate";
  chart.series.push_back(
      {"learning rate", "c3", points_of(series.steps, [](const StepRow& s) { return s.learning_rate; })});
  return section(
      "Learning rate", "",
      to_svg(chart) + folded(table_of(series.steps, {"step", "learning rate"},
                                      [](const StepRow& s) {
                                        return std::vector<std::string>{number_text(s.learning_rate)};
                                      })),
      false);
}

std::string grad_norm_section(const RunSeries& series) {
  LineChart chart;
  chart.id = "grad-norm";
  chart.from_zero = true;
  chart.x_label = "step";
  chart.y_label = "gradient norm, before clipping";
  chart.series.push_back(
      {"gradient norm", "c4", points_of(series.steps, [](const StepRow& s) { return s.grad_norm; })});
  return section("Gradient norm", "",
                 to_svg(chart) + folded(table_of(series.steps, {"step", "gradient norm"},
                                                 [](const StepRow& s) {
                                                   return std::vector<std::string>{number_text(s.grad_norm)};
                                                 })),
                 false);
}

std::string throughput_section(const RunSeries& series) {
  LineChart chart;
  chart.id = "throughput";
  chart.from_zero = true;
  chart.x_label = "step";
  chart.y_label = "tokens/s";
  chart.width = 1060;
  chart.height = 260;
  chart.series.push_back(
      {"tokens/s", "c8", points_of(series.steps, [](const StepRow& s) { return s.tokens_per_s; })});
  const auto share = [](const std::optional<double>& v) { return v ? percent_text(*v) : std::string("–"); };
  const Table table =
      table_of(series.steps, {"step", "tokens/s", "step time", "TFLOP/s a rank", "MFU", "HFU", "arena"},
               [&](const StepRow& s) {
                 return std::vector<std::string>{fmt::format("{:.0f}", s.tokens_per_s),
                                                 seconds_text(s.seconds()),
                                                 number_text(s.tflops),
                                                 share(s.mfu),
                                                 share(s.hfu),
                                                 bytes_text(s.memory_bytes)};
               });
  return section("Throughput", "Of all ranks, by a clock round each step.", to_svg(chart) + folded(table),
                 true);
}

// Empty where nothing was looked at.
std::string quantization_section(const RunSeries& series) {
  std::vector<StepRow> steps;
  for (const StepRow& s : series.steps)
    if (s.saturation && s.underflow && s.quantization_error) steps.push_back(s);
  if (steps.empty()) return "";
  LineChart chart;
  chart.id = "quantization";
  chart.from_zero = true;
  chart.x_label = "step";
  chart.y_label = "percent, of the worst operand";
  chart.width = 1060;
  chart.height = 260;
  chart.series = {{"relative error", "c1",
                   points_of(steps, [](const StepRow& s) { return *s.quantization_error; }), true},
                  {"saturated", "c2", points_of(steps, [](const StepRow& s) { return *s.saturation; }), true},
                  {"underflow", "c7", points_of(steps, [](const StepRow& s) { return *s.underflow; }), true}};
  const Table table =
      table_of(steps, {"step", "relative error", "saturated", "underflow"}, [](const StepRow& s) {
        return std::vector<std::string>{percent_text(*s.quantization_error / 100),
                                        percent_text(*s.saturation / 100), percent_text(*s.underflow / 100)};
      });
  return section(
      "8-bit operands",
      "Of all operands and layers the worst, each number by itself; quantization.jsonl has them all.",
      legend({{"relative error", "c1", ""}, {"saturated", "c2", ""}, {"underflow", "c7", ""}}) +
          to_svg(chart) + folded(table),
      true);
}

// --- time

const std::vector<BarChart::Part>& role_parts() {
  static const std::vector<BarChart::Part> kParts = {{"forward", "c1"}, {"dgrad", "c2"},
                                                     {"wgrad", "c7"},   {"remat", "c5"},
                                                     {"update", "c3"},  {"communication engine", "c8"},
                                                     {"waiting", "c6"}};
  return kParts;
}

struct KindTime {
  std::string name;
  std::vector<double> measured;  // seconds a step, by role_parts()
  double total = 0, predicted = 0;
  bool has_predicted = false;
  int64_t runs = 0;
};

std::vector<KindTime> kind_times(const RunRecord& run) {
  std::map<std::string, KindTime> kinds;
  for (const OpRecord& op : run.ops) {
    const auto runs = static_cast<double>(op.runs);
    // An await is compute that waits for the communication engine.
    const std::string name = op.kind == "await" ? "waiting for communication" : op.kind;
    KindTime& k = kinds[name];
    k.name = name;
    k.measured.resize(role_parts().size());
    const std::string part = op.kind == "await" ? "waiting"
                             : op.communication ? "communication engine"
                                                : op.role;
    size_t at = 0;
    while (at + 1 < role_parts().size() && role_parts()[at].name != part) ++at;
    const double seconds = runs * op.measured_seconds.value_or(0);
    k.measured[at] += seconds;
    k.total += seconds;
    k.runs += op.runs;
    if (op.predicted_seconds && op.kind != "await") {
      k.predicted += runs * *op.predicted_seconds;
      k.has_predicted = true;
    }
  }
  std::vector<KindTime> out;
  for (auto& [name, kind] : kinds)
    if (kind.total > 0 || kind.predicted > 0) out.push_back(std::move(kind));
  std::stable_sort(out.begin(), out.end(),
                   [](const KindTime& a, const KindTime& b) { return a.total > b.total; });
  return out;
}

std::string time_section(const RunRecord& run) {
  if (run.traced_steps == 0)
    return section("Time by part", "No step was traced yet: the third one is the first.", "", true);
  constexpr size_t kBars = 16;
  constexpr double kMs = 1e3;
  const std::vector<KindTime> kinds = kind_times(run);
  BarChart chart;
  chart.id = "time";
  chart.x_label = "ms a step";
  std::vector<bool> used(role_parts().size(), false);
  for (const KindTime& k : kinds)
    for (size_t p = 0; p < used.size(); ++p) used[p] = used[p] || k.measured[p] > 0;
  for (size_t p = 0; p < used.size(); ++p)
    if (used[p]) chart.parts.push_back(role_parts()[p]);
  Table table{{"operation", "runs a step", "measured", "of the step", "predicted", "error"}, {}};
  double compute = 0;
  for (const KindTime& k : kinds) {
    for (size_t p = 0; p < used.size(); ++p)
      if (role_parts()[p].name != "communication engine") compute += k.measured[p];
    table.rows.push_back({k.name, fmt::format("{}", k.runs), k.total > 0 ? seconds_text(k.total) : "–",
                          percent_text(k.total / run.traced_step_seconds),
                          k.has_predicted ? seconds_text(k.predicted) : "–",
                          k.has_predicted && k.total > 0 ? error_text(k.predicted, k.total) : "–"});
    if (chart.rows.size() == kBars || k.total <= 0) continue;
    BarChart::Row row;
    row.label = k.name;
    for (size_t p = 0; p < used.size(); ++p)
      if (used[p]) row.values.push_back(kMs * k.measured[p]);
    if (k.has_predicted) {
      row.mark = kMs * k.predicted;
      chart.mark_name = "predicted";
    }
    row.text = seconds_text(k.total);
    chart.rows.push_back(std::move(row));
  }
  const double between = run.traced_step_seconds - compute;
  table.rows.push_back({"between operations", "", seconds_text(std::max(0.0, between)),
                        percent_text(std::max(0.0, between) / run.traced_step_seconds), "–", "–"});
  table.rows.push_back(
      {"step", "", seconds_text(run.traced_step_seconds), "100.0 %",
       run.predicted_step_seconds ? seconds_text(*run.predicted_step_seconds) : "–",
       run.predicted_step_seconds ? error_text(*run.predicted_step_seconds, run.traced_step_seconds) : "–"});
  const std::string note = fmt::format(
      "Of the first rank, mean of {} traced step{}; the communication engine works beside the compute "
      "engine.",
      run.traced_steps, run.traced_steps == 1 ? "" : "s");
  return section("Time by part", note, to_svg(chart) + folded(table), true);
}

// --- memory

std::string memory_section(const RunRecord& run) {
  std::vector<PartRecord> parts = run.memory;
  int64_t used = 0;
  for (const PartRecord& p : parts) used += p.bytes;
  if (run.planned_bytes > used) parts.push_back({"gaps", run.planned_bytes - used});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const PartRecord& a, const PartRecord& b) { return a.bytes > b.bytes; });
  BarChart chart;
  chart.id = "memory";
  chart.x_label = "MiB of a rank";
  chart.parts = {{"planned", "c1"}};
  Table table{{"part", "bytes", "of the arena"}, {}};
  const auto arena = static_cast<double>(run.planned_bytes);
  for (const PartRecord& p : parts) {
    const auto bytes = static_cast<double>(p.bytes);
    chart.rows.push_back({p.name, {bytes / kMiB}, {}, bytes_text(bytes)});
    table.rows.push_back({p.name, bytes_text(bytes), arena > 0 ? percent_text(bytes / arena) : ""});
  }
  table.rows.push_back({"arena", bytes_text(arena), "100.0 %"});
  return section("Memory by part", "Planned, at the fullest moment of a step.", to_svg(chart) + folded(table),
                 true);
}

// --- roofline

struct OpPoint {
  const OpRecord* op;
  double share, rate, intensity;
};

std::string roofline_section(const RunRecord& run) {
  constexpr size_t kNamed = 9;
  constexpr double kLeast = 1e-3;  // of their time together: what takes less only stretches the axes
  double together = 0;             // not of the step's, where ranks may wait for each other at length
  std::vector<OpPoint> points;
  for (const OpRecord& op : run.ops) {
    const double seconds = op.measured_seconds.value_or(0);
    if (op.communication || !(seconds > 0) || !(op.flops > 0) || !(op.bytes > 0)) continue;
    const double share = static_cast<double>(op.runs) * seconds / run.traced_step_seconds;
    together += share;
    points.push_back({&op, share, op.flops / seconds, op.flops / op.bytes});
  }
  std::erase_if(points, [&](const OpPoint& p) { return p.share < kLeast * together; });
  if (points.empty()) return section("Roofline of operations", "No step was traced yet.", "", true);
  std::stable_sort(points.begin(), points.end(),
                   [](const OpPoint& a, const OpPoint& b) { return a.share > b.share; });
  RooflineChart chart;
  chart.id = "roofline";
  const auto ranks = static_cast<double>(run.ranks);
  for (const RoofRecord& roof : run.roofs)
    chart.roofs.push_back(
        {fmt::format("{} matmul, {}", roof.dtype, rate_text(roof.flops / ranks)), roof.flops / ranks});
  if (run.memory_rate) chart.memory_rate = *run.memory_rate / ranks;
  double roof = 0;  // of this run's operands
  for (const RoofRecord& r : run.roofs)
    if (r.dtype == run.dtype) roof = r.flops / ranks;
  Table table{
      {"", "operation", "path", "role", "runs", "one", "share", "FLOP/byte", "rate", "of its roof"}, {}, 3};
  const auto color = [](const OpRecord& op) {
    return op.work == "matmul" ? "c1" : op.work == "attention" ? "c2" : "c3";
  };
  for (size_t i = 0; i < points.size(); ++i) {
    const OpPoint& p = points[i];
    const std::string number = i < kNamed ? fmt::format("{}", i + 1) : "";
    const std::string one = seconds_text(*p.op->measured_seconds);
    chart.marks.push_back({p.intensity, p.rate, p.share, color(*p.op),
                           fmt::format("{} {} {}\n{} at {} FLOP/byte\n{} runs of {}, {} of the step",
                                       p.op->kind, p.op->path, p.op->role, rate_text(p.rate),
                                       number_text(p.intensity), p.op->runs, one, percent_text(p.share)),
                           number});
    if (i >= kNamed + 6) continue;
    const double bound = roof > 0 && chart.memory_rate ? std::min(roof, p.intensity * *chart.memory_rate) : 0;
    table.rows.push_back({number, p.op->kind, p.op->path, p.op->role, fmt::format("{}", p.op->runs), one,
                          percent_text(p.share), number_text(p.intensity), rate_text(p.rate),
                          bound > 0 ? percent_text(p.rate / bound) : "–"});
  }
  std::string note =
      "Of one rank, traced, from 0.1 % of the step on; a circle's area is its part, its number stands in the "
      "table. ";
  note += run.memory_rate ? "What a cache still holds may stand above the memory's slope."
                          : "No roofs: " + run.no_prediction;
  return section(
      "Roofline of operations", note,
      legend({{"matmul", "c1", "dot"}, {"attention", "c2", "dot"}, {"other operations", "c3", "dot"}}) +
          to_svg(chart) + folded(table),
      true);
}

// --- the prediction

std::string prediction_section(const RunRecord& run) {
  Table table{{"", "predicted", "measured", "error"}, {}};
  std::string note;
  const double measured = run.measured_step_seconds.value_or(0);
  if (run.predicted_step_seconds && measured > 0) {
    table.rows.push_back({"step time (median)", seconds_text(*run.predicted_step_seconds),
                          seconds_text(measured), error_text(*run.predicted_step_seconds, measured)});
    const auto tokens = static_cast<double>(run.rows * run.sequence);
    table.rows.push_back({"tokens/s", fmt::format("{:.0f}", tokens / *run.predicted_step_seconds),
                          fmt::format("{:.0f}", tokens / measured),
                          error_text(measured, *run.predicted_step_seconds)});
  } else if (measured > 0) {
    table.rows.push_back({"step time (median)", "–", seconds_text(measured), "–"});
    note = "No prediction of time: " + run.no_prediction;
  }
  const auto planned = static_cast<double>(run.planned_bytes),
             resident = static_cast<double>(run.resident_bytes);
  if (resident > 0)
    table.rows.push_back(
        {"arena of a rank", bytes_text(planned), bytes_text(resident), error_text(planned, resident)});
  if (run.process_bytes > 0)
    table.rows.push_back({"whole process", "–", bytes_text(static_cast<double>(run.process_bytes)), "–"});
  if (table.rows.empty()) return section("Predicted and measured", "The run has not ended yet.", "", true);
  return section("Predicted and measured", note, to_html(table), true);
}

// --- the page

std::string tile(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value), escaped(what));
}

std::string tiles(const RunRecord& run, const RunSeries& series) {
  std::string out = "<div class=\"tiles\">\n";
  if (series.steps.empty()) return "";
  const std::vector<StepRow> rows = steady(series);
  std::vector<double> rates, seconds, mfus;
  for (const StepRow& s : rows) {
    rates.push_back(s.tokens_per_s);
    seconds.push_back(s.seconds());
    if (s.mfu) mfus.push_back(*s.mfu);
  }
  out += tile(fmt::format("{} / {}", series.steps.back().step + 1, run.steps), "steps");
  out += tile(fmt::format("{:.4f}", series.steps.back().loss), "loss of the last step");
  if (!series.evals.empty())
    out += tile(fmt::format("{:.4f}", series.evals.back().loss),
                fmt::format("held-out loss after {} steps", series.evals.back().step));
  out += tile(fmt::format("{:.0f}", median(rates)), "tokens/s (median)");
  out += tile(seconds_text(median(seconds)), "a step (median)");
  if (!mfus.empty()) out += tile(percent_text(median(mfus)), "MFU (median)");
  if (run.resident_bytes > 0)
    out += tile(bytes_text(static_cast<double>(run.resident_bytes)), "arena of a rank");
  return out + "</div>\n";
}

std::string head(const RunRecord& run) {
  std::string out = fmt::format("<h1>{}</h1>\n", escaped(run.name));
  std::string line = fmt::format(
      "{} parameters in {}; {}, {} thread{} a rank, {} kernels; {} rows of {} tokens a step", run.parameters,
      run.dtype, run.mesh, run.threads, run.threads == 1 ? "" : "s", run.isa, run.rows, run.sequence);
  out += fmt::format("<p class=\"soft\">{}</p>\n", escaped(line));
  std::string origin = fmt::format("Began {}, Lignum {}", run.started, run.commit);
  if (!run.machine.empty()) origin += ", on " + run.machine;
  return out + fmt::format("<p class=\"soft\">{}.</p>\n", escaped(origin));
}

}  // namespace

std::string render(const RunRecord& run, const RunSeries& series) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{} – Lignum</title>\n"
      "<style>{}</style></head>\n<body><main>\n",
      escaped(run.name), page_style());
  out += head(run) + tiles(run, series);
  out += "<div class=\"grid\">\n";
  out += loss_section(series) + learning_rate_section(series) + grad_norm_section(series) +
         throughput_section(series) + quantization_section(series);
  out += prediction_section(run) + time_section(run) + roofline_section(run) + memory_section(run);
  out += section(
      "Configuration", "Commented lines are defaults.",
      fmt::format("<details><summary>YAML</summary><pre>{}</pre></details>\n", escaped(run.config)), true);
  return out + fmt::format(
                   "</div></main><div id=\"tip\" role=\"status\"></div>\n<script>{}</script></body></html>\n",
                   page_script());
}

Result<std::string> write_report(const std::string& folder) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 30;
  const std::string record_path = join_path(folder, "run.json"),
                    series_path = join_path(folder, "metrics.jsonl");
  for (const std::string& path : {record_path, series_path}) {
    if (!path_exists(path))
      return user_error("{}: there is no {}; a report is made from the folder of a run, runs/NAME say",
                        folder, path == record_path ? "run.json" : "metrics.jsonl");
  }
  LIGNUM_ASSIGN_OR_RETURN(const std::string record_text, read_text(record_path));
  LIGNUM_ASSIGN_OR_RETURN(const RunRecord run, parse_run_record(record_text, record_path));
  LIGNUM_ASSIGN_OR_RETURN(const std::string series_text, read_text(series_path, kMostBytes));
  LIGNUM_ASSIGN_OR_RETURN(const RunSeries series, parse_series(series_text, series_path));
  std::string path = join_path(folder, "report.html");
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(path, render(run, series)));
  return path;
}

}  // namespace lignum::report
