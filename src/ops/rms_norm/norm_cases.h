// The cases that rms_norm, layer_norm and their gradients share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops/facets.h"

namespace lignum::ops {

// inputs(dtype, dims, scale): those of the op where x is a `dtype` of `dims` and the scale a [dims.back()] of
// `scale`.
template <class Inputs>
std::vector<Case> norm_cases(const Attrs& attrs, Inputs inputs) {
  constexpr DType f32 = DType::f32, bf16 = DType::bf16;
  const auto make = [&](std::string name, DType dtype, const Dims& dims, DType scale, bool bench = false) {
    return Case{std::move(name), inputs(dtype, dims, scale), attrs, 1, bench};
  };
  return {
      make("one_row", f32, {1, 16}, f32),     make("one_element", f32, {3, 1}, f32),
      make("vector", f32, {7}, f32),          make("odd", f32, {3, 5, 37}, f32),
      make("misaligned", f32, {2, 211}, f32), make("many_rows", f32, {131, 6}, f32),
      make("bf16", bf16, {6, 37}, bf16),      make("bf16_f32_scale", bf16, {2, 2, 64}, f32),
      make("empty", f32, {0, 5}, f32),        make("bench", bf16, {2048, 4096}, f32, true),
  };
}

}  // namespace lignum::ops
