// The vector operations without vectors: four floats. Contract: vec_avx512.h.
#pragma once

#include <cstdint>

#include "kernels/float8.h"
#include "kernels/math.h"
#include "kernels/unroll.h"

namespace lignum::kernels::scalar {

struct Ops {
  static constexpr int kWidth = 4;
  static constexpr int kRows = 4;
  struct V {
    float lane[kWidth];
  };

  LIGNUM_INLINE V zero() { return V{}; }
  LIGNUM_INLINE V set1(float x) { return V{{x, x, x, x}}; }
  LIGNUM_INLINE V add(V a, V b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  LIGNUM_INLINE V sub(V a, V b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] -= b.lane[i];
    return a;
  }
  LIGNUM_INLINE V mul(V a, V b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  LIGNUM_INLINE V div(V a, V b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] /= b.lane[i];
    return a;
  }
  LIGNUM_INLINE V fma(V a, V b, V c) {
    for (int i = 0; i < kWidth; ++i) c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
    return c;
  }
  LIGNUM_INLINE V max(V a, V b) {
    for (int i = 0; i < kWidth; ++i) b.lane[i] = ScalarOps::max(a.lane[i], b.lane[i]);
    return b;
  }
  LIGNUM_INLINE V min(V a, V b) {
    for (int i = 0; i < kWidth; ++i) b.lane[i] = ScalarOps::min(a.lane[i], b.lane[i]);
    return b;
  }
  LIGNUM_INLINE V scale_by_power(V p, V shifted) {
    for (int i = 0; i < kWidth; ++i) p.lane[i] = ScalarOps::scale_by_power(p.lane[i], shifted.lane[i]);
    return p;
  }
  LIGNUM_INLINE V if_ge(V a, V b, V x, V y) {
    for (int i = 0; i < kWidth; ++i) y.lane[i] = a.lane[i] >= b.lane[i] ? x.lane[i] : y.lane[i];
    return y;
  }

  LIGNUM_INLINE V load(const float* p) { return load_n(p, kWidth); }
  LIGNUM_INLINE void store(float* p, V v) { store_n(p, v, kWidth); }
  LIGNUM_INLINE V load_n(const float* p, int n) {
    V v{};
    for (int i = 0; i < n; ++i) v.lane[i] = p[i];
    return v;
  }
  LIGNUM_INLINE void store_n(float* p, V v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v.lane[i];
  }

  LIGNUM_INLINE V load(const uint16_t* p) { return load_n(p, kWidth); }
  LIGNUM_INLINE void store(uint16_t* p, V v) { store_n(p, v, kWidth); }
  LIGNUM_INLINE V load_n(const uint16_t* p, int n) {
    V v{};
    for (int i = 0; i < n; ++i) v.lane[i] = __builtin_bit_cast(float, static_cast<uint32_t>(p[i]) << 16);
    return v;
  }
  LIGNUM_INLINE void store_n(uint16_t* p, V v, int n) {
    for (int i = 0; i < n; ++i) {
      const uint32_t u = __builtin_bit_cast(uint32_t, v.lane[i]);
      const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
      p[i] = static_cast<uint16_t>((nan ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }

  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE V load(const F* p) {
    return load_n(p, kWidth);
  }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE V load_n(const F* p, int n) {
    V v{};
    for (int i = 0; i < n; ++i) v.lane[i] = float_of(p[i]);
    return v;
  }

  LIGNUM_INLINE void transpose(V (&r)[kWidth]) {
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < i; ++j) {
        const float t = r[i].lane[j];
        r[i].lane[j] = r[j].lane[i];
        r[j].lane[i] = t;
      }
    }
  }
};

}  // namespace lignum::kernels::scalar
