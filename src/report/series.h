// RUN/metrics.jsonl as columns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "report/chart.h"

namespace lignum::report {

struct StepRow {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0, tokens = 0, tokens_per_s = 0, tflops = 0,
         memory_bytes = 0;
  std::optional<double> mfu, hfu;
  // Of all operands of 8-bit dots the worst, in percent.
  std::optional<double> saturation, underflow, quantization_error;
  double seconds() const { return tokens_per_s > 0 ? tokens / tokens_per_s : 0; }
};
struct EvalRow {
  int64_t step = 0;  // updates done
  double loss = 0;
};
struct RunSeries {
  std::vector<StepRow> steps;
  std::vector<EvalRow> evals;
};

// `text`: one JSON object a line. A last line without an end is that of a killed run, and left out; any other
// that is no record is an error with its number. `what`: the file, for errors.
Result<RunSeries> parse_series(std::string_view text, const std::string& what);

// At most about `most` points with the same outline: of every stretch of neighbours the lowest, the highest,
// and both ends of all.
std::vector<Point> thinned(const std::vector<Point>& points, size_t most);

}  // namespace lignum::report
