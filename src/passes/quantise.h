// Quantised training: matmuls of the GLOBAL forward graph that a rule names become dots of 8-bit floats.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/quantize/quantised.h"

namespace lignum::passes {

// Qwix's QtRule. What is absent stays in its own dtype.
struct QuantizationRule {
  std::string module_path =
      ".*";  // a regular expression (ECMAScript) of the whole path: decoder/layers/mlp/wo
  std::set<std::string, std::less<>> op_names;   // MaxText's, of which dot_general is our matmul; empty: all
  std::optional<DType> weight_dtype, act_dtype;  // without weight_dtype the rule leaves its dots alone
  std::optional<DType> bwd_dtype;                // of the gradients that come into the backward dots
  ops::Calibration weight, act, bwd;
  // Scales of the dims that are not contracted are each index's own (a row of activations, a column of
  // weights, ...); else one scale a tensor. fixed is always one a tensor.
  bool channelwise = true;
};

// What reached how far in a run: by a dot's module path and operand ("weight", "act", "bwd": the gradient
// that comes into its backward dots) the range of each layer, below 0 where it is not known; of a dot outside
// the layers one number.
using QuantizationRanges = std::map<std::string, std::map<std::string, std::vector<double>, std::less<>>>;

struct Quantised {
  ir::Graph graph;
  std::vector<int64_t> dots;  // that each rule has quantised, in the graph's text: a loop's body counts once
};

// Rules in order: the first whose path and op fit is the dot's. Operands become `quantize` nodes, tagged as
// what made them, so that dots of one activation share them; the dot becomes a scaled_matmul, whose gradient
// rule makes the backward dots: the quantised operands are read again, and what a calibration clips has no
// gradient. The quotients of activations have the remat name "quantization". Where a calibration is static
// the ranges are constants, a loop's sliced by layer. Errors: a module_path that is no regular expression; a
// rule with weight_dtype and no bwd_dtype; static gradients beside operands with several scales, which would
// have to go into the gradient first; a range that is not there.
Result<Quantised> quantise(const ir::Graph& forward, const std::vector<QuantizationRule>& rules,
                           const QuantizationRanges& ranges = {});

}  // namespace lignum::passes
