#include "report/series.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lignum::report {

Result<RunSeries> parse_series(std::string_view text, const std::string& what) {
  RunSeries out;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const std::string where = fmt::format("{}, line {}", what, ++number);
    LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json j, parse_json(text.substr(begin, end - begin), where));
    begin = end + 1;
    const auto has = [&](const char* key) { return j.contains(key) && j[key].is_number(); };
    const auto number_of = [&](const char* key) { return has(key) ? j[key].get<double>() : 0; };
    const auto optional = [&](const char* key) {
      return has(key) ? std::optional<double>(j[key].get<double>()) : std::nullopt;
    };
    const bool skipped = j.is_object() && j.contains("skipped");
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer() ||
        !(has("loss") || has("eval_loss") || skipped))
      return user_error("{}: not the record of a step or an evaluation", where);
    // A number that is not finite is null: no point of a chart.
    const auto is_null = [&](const char* key) { return j.contains(key) && j[key].is_null(); };
    if (skipped && (is_null("loss") || is_null("grad_norm"))) continue;
    const auto step = j["step"].get<int64_t>();
    if (has("eval_loss")) {
      out.evals.push_back({step, number_of("eval_loss")});
      continue;
    }
    StepRow row;
    row.step = step;
    row.loss = number_of("loss");
    row.grad_norm = number_of("grad_norm");
    row.learning_rate = number_of("learning_rate");
    row.tokens = number_of("tokens");
    row.tokens_per_s = number_of("tokens_per_s");
    row.tflops = number_of("tflops");
    row.memory_bytes = number_of("memory_bytes");
    row.mfu = optional("mfu");
    row.hfu = optional("hfu");
    if (const auto q = j.find("quantization"); q != j.end() && q->is_object()) {
      const auto percent = [&](const char* key, double factor) {
        const auto it = q->find(key);
        return it != q->end() && it->is_number() ? std::optional(factor * it->get<double>()) : std::nullopt;
      };
      row.saturation = percent("saturation_percent", 1);
      row.underflow = percent("underflow_percent", 1);
      row.quantization_error = percent("relative_error", 100);
    }
    out.steps.push_back(row);
  }
  return out;
}

std::vector<Point> thinned(const std::vector<Point>& points, size_t most) {
  if (points.size() <= most || most < 4) return points;
  const size_t stretches = (most - 2) / 2, inner = points.size() - 2;
  std::vector<Point> out = {points.front()};
  for (size_t s = 0; s < stretches; ++s) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(1 + s * inner / stretches),
               end = points.begin() + static_cast<std::ptrdiff_t>(1 + (s + 1) * inner / stretches);
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (low != high) out.push_back(*high);
  }
  out.push_back(points.back());
  return out;
}

}  // namespace lignum::report
