// Training: every rank runs the same loop over one step program; the first one speaks.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "hw/spec.h"
#include "train/metrics.h"
#include "train/ranks.h"

namespace lignum::train {

struct TrainOptions {
  std::function<void(const std::string& line)> log;           // lines for people, on the caller's thread
  std::function<void(const nlohmann::ordered_json&)> record;  // each record of metrics.jsonl as it is written
  // After each step, with the number of steps of the run. Where it is set, `log` gets only the last step's
  // line: the others are shown here.
  std::function<void(const StepMetrics&, int64_t steps)> progress;
  const std::atomic<int>* stop = nullptr;                  // a signal's number once it has come, else 0
  std::string commit = "unknown";                          // of the binary, for the record
  const hw::Spec* spec = nullptr;                          // this machine's, for MFU and the prediction
  std::string no_spec = "this machine is not calibrated";  // why it is null
  Processes processes;  // where it holds more than one, log and record are called on the first only
};

struct TrainSummary {
  std::string folder;      // of the run
  int64_t first_step = 0;  // > 0: resumed
  int64_t steps = 0;       // done by this call
  std::optional<StepMetrics> last;
  std::optional<EvalMetrics> eval;  // the newest
  std::string checkpoint;           // the newest one's folder
  int stopped_by = 0;               // the signal, once it ended the run
  std::string ended_early;          // why, where held-out losses ended it before `steps`
  int64_t skipped_steps = 0;        // whose update was left out, since the run's start

  int64_t planned_bytes = 0, resident_bytes = 0;  // of the first rank's arena
  std::vector<int64_t> process_bytes;             // where ranks are processes: the most that each ever held
  double median_step_seconds = 0;                 // of the steps after the first two
  std::optional<double> predicted_step_seconds;   // absent: no_prediction says why
  std::string no_prediction;
  std::string report;  // RUN/report.html; empty where no step was done
};
nlohmann::ordered_json to_json(const TrainSummary&);

// Runs `steps` steps, or what is left of them after the newest checkpoint of the same run_name; writes
// RUN/metrics.jsonl, RUN/tensorboard, RUN/checkpoints, RUN/run.json and, at the end, RUN/report.html. A loss
// or gradient norm that is not finite ends the run with check_failed (unless abort_on_* say to skip such
// steps): the message names step, layer, module path and role, parameters and moments are those before that
// step, and a checkpoint of them is written. Where ranks are processes, each calls it.
Result<TrainSummary> train(const config::Config& config, const TrainOptions& options);

}  // namespace lignum::train
