// What a run reports: a record a step, as JSON (RUN/metrics.jsonl) and as a line for people.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace lignum::train {

// Of all 8-bit operands and layers the worst, each number by itself (train/quantization_log.h).
struct WorstLoss {
  double saturation = 0, underflow = 0, relative_error = 0;
};

// Step k's loss is the one before update k; the first step is 0.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       // mean over the supervised tokens of the global batch
  double grad_norm = 0;  // of the mean loss, before clipping
  double learning_rate = 0;
  std::optional<double> z_loss;  // with z_loss_multiplier: what it adds to the loss that is trained on, apart
  std::optional<WorstLoss> quantization;  // with quantization_metrics, on the steps that get a line
  std::string skipped;                    // why the update was left out; "" where it was not
  int64_t tokens = 0;                     // supervised, of all ranks
  double seconds = 0;                     // by a clock round the step
  double tokens_per_s = 0;
  double tflops = 0;  // 1e12 FLOP/s of a rank, counted as MaxText counts them
  // Model FLOPs over what the specification's peak gives in that time; absent without a specification.
  std::optional<double> mfu;
  std::optional<double> hfu;          // likewise, with the FLOPs of recomputed layers: mfu where nothing is
  int64_t memory_bytes = 0;           // resident pages of a rank's arena, from the kernel
  int64_t process_bytes = 0;          // of the whole process: all its ranks, code, data
  std::optional<double> eta_seconds;  // to the last step, at the pace so far; after it absent; not recorded
};
nlohmann::ordered_json to_json(const StepMetrics&);
std::string to_line(const StepMetrics&);

// Resident pages of this process, as the kernel counts them.
Result<int64_t> process_resident_bytes();

// Held-out loss of the state after `step` updates.
struct EvalMetrics {
  int64_t step = 0;
  double loss = 0;                      // nats a token
  std::optional<double> loss_per_byte;  // of the held-out text, whatever its tokens are: comparable
  int64_t tokens = 0;
  double seconds = 0;
  // Where eval_files names sets: each of them; the numbers above are of all their tokens.
  struct Set {
    std::string name;
    double loss = 0;
    std::optional<double> loss_per_byte;
    int64_t tokens = 0;
  };
  std::vector<Set> sets;
};
nlohmann::ordered_json to_json(const EvalMetrics&);
std::string to_line(const EvalMetrics&);

// One JSON object a line, each in the file when append() returns (though not synced to disk).
class MetricsFile {
 public:
  // Opens for appending; what an earlier run wrote of step first_step and later is dropped, since it is done
  // again.
  static Result<MetricsFile> open(const std::string& path, int64_t first_step);

  Status append(const nlohmann::ordered_json& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  MetricsFile(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  File file_;
};

}  // namespace lignum::train
