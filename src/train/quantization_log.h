// What 8-bit operands lost in a step, layer by layer (RUN/quantization.jsonl).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "plan/program.h"
#include "train/metrics.h"

namespace lignum::train {

// Of one layer, or of the whole where the operand is of none.
struct OperandLoss {
  int64_t layer = -1;
  double saturation = 0, underflow = 0;  // percent of its elements: clipped; not zero, and rounded to it
  double scale = 0;                      // the largest; under accumulation the mean over micro-steps
  double relative_error = 0;             // the root of sum (x - q scale)^2 / sum x^2; 0 of zeros
};
struct OperandLosses {
  std::string operand;            // passes::WatchedOperand's
  std::vector<std::string> dots;  // that read it
  DType format;
  std::vector<OperandLoss> layers;
};

// Of the executor's last step, whose program has been made with watch.errors.
std::vector<OperandLosses> quantization_losses(const plan::Program& program, int64_t accumulation,
                                               const exec::Executor& executor);

WorstLoss worst_of(const std::vector<OperandLosses>& losses);

// How far operands reached over steps: what save_quant_stats_path is given, and load_quant_stats_path reads
// (plan/quantization.h).
class RangeRecorder {
 public:
  // Of a program made with watch.ranges; it outlives the recorder.
  RangeRecorder(const plan::Program& program, int64_t accumulation, int64_t layers);
  // The executor's last step.
  void add(const exec::Executor& executor);
  // Of each dot and operand, layer by layer, the mean over steps (and micro-steps) and the largest of a step.
  // Nothing is written where there was no step.
  Status write(const std::string& path) const;

 private:
  struct Rows {
    std::vector<double> sum, largest;
  };
  const plan::Program& program_;
  double micro_steps_;
  int64_t layers_, steps_ = 0;
  std::vector<Rows> rows_;  // of each watched operand
};

// A line of quantization.jsonl: an entry an operand, with a list over its layers for each number.
nlohmann::ordered_json to_json(int64_t step, const std::vector<OperandLosses>& losses);

}  // namespace lignum::train
