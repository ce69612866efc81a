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

// Qwix's tile_size: so many indices of the innermost contracted dim share a scale, or that part of the dim,
// rounded. Either must divide the dim.
struct TileSize {
  int64_t size = 0;
  double part = 0;
  bool given() const { return size > 0 || part > 0; }
  int64_t of(int64_t dim) const;  // 0: it does not divide
};

// Qwix's QtRule, and blocks. What is absent stays in its own dtype.
struct QuantizationRule {
  std::string module_path =
      ".*";  // a regular expression (ECMAScript) of the whole path: decoder/layers/mlp/wo
  std::set<std::string, std::less<>> op_names;   // MaxText's, of which dot_general is our matmul; empty: all
  std::optional<DType> weight_dtype, act_dtype;  // without weight_dtype the rule leaves its dots alone
  // Of the gradients that come into the backward dots. Without it these take what the operands were quantised
  // from, in its own dtype.
  std::optional<DType> bwd_dtype;
  ops::Calibration weight, act, bwd;
  // Scales of the dims that are not contracted are each index's own (a row of activations, a column of
  // weights, ...); else one scale a tensor. fixed and static are always one a tensor.
  bool channelwise = true;
  TileSize tile;              // of both operands
  TileSize weight_grad_tile;  // of the gradient, in the dot whose result is a weight's gradient
  // With bwd_dtype: gradients are rounded up or down by chance, under that seed. The graph has the keys of
  // its rows (ops::kRoundingKeys).
  std::optional<uint64_t> rounding_seed;
  // Scales of squares [block, block] of weights, and of [1, block] of activations and gradients along what is
  // contracted, in all three dots (DeepSeek-AI, "DeepSeek-V3", 2024, 3.3). 0: none; else no tile is given.
  int64_t block = 0;
};

// Decoder layers from `begin` to before `end`; no loop of the graph goes over either.
struct QuantisedLayers {
  int64_t begin = 0, end = int64_t{1} << 40;
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
// the ranges are constants, a loop's sliced by layer. Dots of other layers stay as they are. Errors: a
// module_path that is no regular expression; tiles or blocks that do not divide a dot's dims; a rule for an
// embedding, which is no dot; static gradients beside operands with several scales, which would have to go
// into the gradient first (blocks do not); a range that is not there.
Result<Quantised> quantise(const ir::Graph& forward, const std::vector<QuantizationRule>& rules,
                           const QuantizationRanges& ranges = {}, const QuantisedLayers& layers = {});

// Whether the first rule for a matmul of that path quantises it.
Result<bool> quantises(const std::vector<QuantizationRule>& rules, const std::string& path);

}  // namespace lignum::passes
