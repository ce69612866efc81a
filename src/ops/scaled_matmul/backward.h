// The backward dots of a scaled_matmul: how they are quantised, and the nodes.
#pragma once

#include <optional>

#include "ops/quantize/quantised.h"

namespace lignum::ops {

// What a scaled_matmul's attributes say of its two backward dots, each of which takes dy and one operand:
//   bwd_dtype, bwd_calibration, bwd_channelwise
//     dy in that format, one scale for each index of the dims that are not contracted, or one a tensor
//   weight (0 or 1, the operand that is one), bwd_tile
//     with scales for tiles of bwd_tile along the innermost contracted dim, in the dot whose result is the
//     weight's gradient
//   weight (where there is one), bwd_block, bwd_residual
//     dy with scales for tiles of bwd_block along the innermost contracted dim in both dots, each index of
//     the others its own; the operand that is no weight is quantised again likewise, by bwd_residual
//   bwd_stream
//     dy by quantize_stochastic of that stream
// Two of them bring inputs that the backward dots alone read, after the operands and their scales and in this
// order:
//   range   where bwd_calibration is static: f32 [], that of dy
//   keys    where there is bwd_stream: i32, one for each index of the result's first dim
struct BackwardDots {
  DType dtype = DType::f8e5m2;
  Calibration calibration;
  bool channelwise = true;
  std::optional<int64_t> weight;
  int64_t tile = 0, block = 0;
  Calibration residual;
  std::optional<int64_t> stream;

  // Numbers of those inputs, and of all.
  std::optional<size_t> range_input() const;
  std::optional<size_t> keys_input() const;
  size_t inputs() const;

  void set(Attrs&) const;
};
// Nothing where the attributes have no bwd_dtype.
Result<std::optional<BackwardDots>> backward_dots(const Attrs&);

// The gradients of a and b, in the dtype of their scales. (Qwix: dot_general_qt. What is quantised in the
// forward pass is read again:)
//   - with scales of no dims but those that are contracted now, each index its own, or of none: by its
//     quotients; the scales go into dy before that is quantised. (Qwix moves a scale of the whole tensor into
//     dy, too: the quotient is the same number unless the bound is fixed, and dy is quantised once for both
//     operands here.)
//   - with scales of tiles, or of indices that are no longer contracted: by what the quotients were made of;
//   dy stays quantised.
//   - with bwd_block: the weight by its quotients, whose square blocks are tiles along either dim; the other
//     quantised again.
// Without bwd_dtype: dots of dy and of what the operands were quantised from, in their own dtype. An 8-bit
// float that is no result of `quantize` is read as it is in any case.
Gradients backward(const GradCall&);

}  // namespace lignum::ops
