// What 8-bit operands lose, as outputs of a step.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace lignum::passes {

struct WatchOptions {
  bool errors = false;  // what was lost, and the scales
  bool ranges = false;  // the largest magnitudes before that
  bool any() const { return errors || ranges; }
};

// One quotient, and the dots that read it.
struct WatchedOperand {
  // "weight", "act"; of the gradients that come into backward dots "bwd" where one quotient is for both, else
  // "dgrad" (of the dot whose result is the input's gradient) or "wgrad" (the weight's). "residual": an
  // activation that the weight's gradient takes in other tiles than the forward dot.
  std::string operand;
  std::vector<std::string> dots;  // their module paths
  DType format = DType::f8e4m3fn;
  double elements = 0;  // of a layer and micro-step, over all ranks
  // Row i of its outputs is of layer first_layer + i * stride; -1: of no layer, and the outputs have no rows.
  int64_t first_layer = -1, stride = 1, rows = 1;
  // Names of outputs, f32; empty where they are not asked for. Under accumulation each is the sum over
  // micro-steps.
  std::string error;  // [rows, 4]: quantization_error
  std::string scale;  // [rows]: the largest
  std::string
      range;  // [rows]: the largest magnitude; of a gradient, before other operands' scales go into it
};

struct Watched {
  ir::Graph graph;
  std::vector<WatchedOperand> operands;
};

// `step`: GLOBAL, after remat (what is computed again is not looked at again) and before what moves to host
// memory or is accumulated. Nothing that was there changes. The outputs' names begin with kWatchPrefix, by
// which later passes know them.
Watched watch_quantization(const ir::Graph& step, const WatchOptions& options);

inline constexpr std::string_view kWatchPrefix = "quantization:";

}  // namespace lignum::passes
