// The 8-bit formats, bit for bit as base/dtype.h has them, without branches: for loops that the compiler
// vectorises and, by their constants, for vec_*.h. Internal; always inlined (isa.h).
#pragma once

#include <cstdint>

#include "kernels/unroll.h"

namespace lignum::kernels {

// An exponent of bias `kBias` over kMantissa bits. Codes, without their sign: up to kLargest finite,
// kInfinity where the format has one, NaN else; kNan is the NaN that is written.
struct E4m3 {
  uint8_t bits;
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr uint32_t kLargest = 0x7e, kNan = 0x7f, kFirstSpecial = 0x7f;
  static constexpr uint32_t kInfinity = 0x100;  // none
};
struct E5m2 {
  uint8_t bits;
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr uint32_t kLargest = 0x7b, kNan = 0x7f, kFirstSpecial = 0x7c;
  static constexpr uint32_t kInfinity = 0x7c;
};

// The step of subnormals, 2^(1 - bias - mantissa).
template <class F>
inline constexpr float kFloat8Grid =
    __builtin_bit_cast(float, static_cast<uint32_t>(127 + 1 - F::kBias - F::kMantissa) << 23);

template <class F>
LIGNUM_INLINE float float_of(F x) {
  const uint32_t code = x.bits & 0x7fu;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80u) << 24;
  const uint32_t normal = (code << (23 - F::kMantissa)) + (static_cast<uint32_t>(127 - F::kBias) << 23);
  const float tiny = static_cast<float>(static_cast<int32_t>(code)) * kFloat8Grid<F>;
  uint32_t bits = code < (1u << F::kMantissa) ? __builtin_bit_cast(uint32_t, tiny) : normal;
  bits = code >= F::kFirstSpecial ? (code == F::kInfinity ? 0x7f800000u : 0x7fc00000u) : bits;
  return __builtin_bit_cast(float, bits | sign);
}

// To nearest even, saturating, NaN kept.
template <class F>
LIGNUM_INLINE F float8_of(float x) {
  constexpr int kDrop = 23 - F::kMantissa;
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t a = u & 0x7fffffffu;
  const uint32_t rounded = (a + ((1u << (kDrop - 1)) - 1u) + ((a >> kDrop) & 1u)) >> kDrop;
  uint32_t code = rounded - (static_cast<uint32_t>(127 - F::kBias) << F::kMantissa);
  // Below the smallest normal: adding a float whose ulp is the grid's step rounds to the grid.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 1 - F::kBias - F::kMantissa + 23) << 23;
  const float shifted = __builtin_bit_cast(float, a) + __builtin_bit_cast(float, kMagic);
  code = a < (static_cast<uint32_t>(128 - F::kBias) << 23) ? __builtin_bit_cast(uint32_t, shifted) - kMagic
                                                           : code;
  code = code > F::kLargest ? F::kLargest : code;
  code = a > 0x7f800000u ? F::kNan : code;
  return F{static_cast<uint8_t>(code | ((u >> 24) & 0x80u))};
}

// To one of the two neighbours, the nearer one more often: what is dropped is added to as many of the random
// bits, and what that makes is truncated; below the smallest normal, 24 random bits are a part of the grid's
// step. A value of the format stays itself. Saturating, NaN kept.
template <class F>
LIGNUM_INLINE F float8_stochastic(float x, uint32_t random) {
  constexpr int kDrop = 23 - F::kMantissa;
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t a = u & 0x7fffffffu;
  uint32_t code =
      ((a + (random >> (32 - kDrop))) >> kDrop) - (static_cast<uint32_t>(127 - F::kBias) << F::kMantissa);
  const bool tiny = a < (static_cast<uint32_t>(128 - F::kBias) << 23);
  const float steps = __builtin_bit_cast(float, tiny ? a : 0u) * (1.0f / kFloat8Grid<F>);
  const float part = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f;
  code = tiny ? static_cast<uint32_t>(static_cast<int32_t>(steps + part)) : code;
  code = code > F::kLargest ? F::kLargest : code;
  code = a > 0x7f800000u ? F::kNan : code;
  return F{static_cast<uint8_t>(code | ((u >> 24) & 0x80u))};
}

}  // namespace lignum::kernels
