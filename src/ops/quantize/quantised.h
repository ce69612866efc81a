// Nodes that quantise a tensor: its statistic, the scale of that, and the quotient in an 8-bit format.
// Methods and numbers are Qwix's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ops/op.h"

namespace lignum::ops {

// How far a tensor's magnitudes reach, which is what fills the format:
//   absmax[,k]   k times the largest (k = 1 without it)
//   rms,k        k times the root of the mean square
//   fixed,m      m, of the whole tensor, whatever it holds (also as fixed,-m,m)
//   static[,k]   k times a range that was recorded (a value of the graph), of the whole tensor
struct Calibration {
  enum class Method : uint8_t { absmax, rms, fixed, recorded } method = Method::absmax;
  double factor = 1;  // k or m

  // Some magnitudes lie outside by intent: they are clipped, and have no gradient. What is clipped because a
  // tensor has outgrown its recorded range keeps its gradient, by which it may come back.
  bool clips() const { return method == Method::rms || method == Method::fixed || factor < 1; }
  // A tensor c times as large has a bound c times as large; a range that was recorded has been the tensor's.
  bool follows_scale() const { return method != Method::fixed; }
  // One scale a tensor, whatever dims of scales are asked for.
  bool whole() const { return method == Method::fixed || method == Method::recorded; }
  std::string text() const;  // as parse_calibration takes it
};
// A user error that says what is allowed. minmax is Qwix's for integers: an 8-bit float has no zero point.
Result<Calibration> parse_calibration(std::string_view text);

// Which dims of a tensor have scales of their own: dims of the scales, 1 where one is shared.
struct Quantised {
  Value q, scale;
};
// Random rounding (quantize_stochastic): keys are i32, one for each index of x's first dim.
struct Noise {
  Value keys;
  int64_t stream = 0;
};
// What a quotient takes beside the tensor.
struct QuantiseInputs {
  std::optional<Value> range;  // f32 of one element: where the method is recorded, and only there
  std::optional<Noise> noise;  // of what has no gradient: nothing is masked where a calibration clips
};
// x in `format` (an 8-bit float) with scales of those dims; all 1 where the method is whole(). `as`: the
// dtype of the scales, x's, or bf16 for an f32 that is to be quantised as if it were bf16. Scales carry the
// remat name kScaleName, the quotient `name`.
Quantised quantised(Builder&, Value x, DType as, DType format, const Calibration&,
                    std::vector<int64_t> scale_dims, std::string name, const QuantiseInputs& with = {});

// Scales are small, and to make one again takes a pass over its tensor (and between ranks an all_reduce):
// remat keeps them under every policy.
inline constexpr std::string_view kScaleName = "quantization_scale";

// The name of the quotient of an operand that a weight's gradient takes in other tiles than the forward dot.
inline constexpr std::string_view kResidualName = "quantization_residual";

// The module path of the nodes that make the keys of a micro-step's rows for quantize_stochastic: the last of
// them, an elementwise of i32 [rows], is a graph's or a body's.
inline constexpr std::string_view kRoundingKeys = "decoder/rounding_keys";

}  // namespace lignum::ops
