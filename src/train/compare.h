// One training step as it is quantised, beside the same step as it is not: same weights, same batch.
#pragma once

#include "config/config.h"
#include "train/quantization_log.h"

namespace lignum::train {

// Of one tensor of one layer, under its name in files.
struct GradientDifference {
  std::string name;
  double error = 0, norm = 0;  // Euclidean norms of what differs, and of what it differs from
  double relative() const { return error == 0 ? 0 : error / norm; }
};

struct StepDifference {
  DType dtype;                                // of the step that is not quantised
  double plain_loss = 0, quantised_loss = 0;  // means over supervised tokens
  double plain_norm = 0, quantised_norm = 0;  // of the gradients of the means
  double error = 0;                           // norm of what differs, over all gradients
  std::vector<GradientDifference> gradients;  // in the order of the model
  std::vector<OperandLosses> operands;
  double relative() const { return error == 0 ? 0 : error / plain_norm; }
};

// `weights`: a Hugging Face folder or a checkpoint; empty: the initial ones. The batch is the first one of
// training. Ranks are threads. A user's error where the configuration quantises nothing.
Result<StepDifference> compare_precisions(const config::Config& config, const std::string& weights);

}  // namespace lignum::train
