// Elementary functions for kernels: branch-free, no libm, the same bits on every ISA and in scalar code,
// since each step is a correctly rounded operation (fma included). Always inlined: see isa.h for why.
#pragma once

#include <cstdint>

namespace lignum::kernels {

// Vector operations of one lane, and the model for those of the ISAs (vec_*.h): V is the vector type.
struct ScalarOps {
  using V = float;
  [[gnu::always_inline]] static inline V set1(float x) { return x; }
  [[gnu::always_inline]] static inline V add(V a, V b) { return a + b; }
  [[gnu::always_inline]] static inline V sub(V a, V b) { return a - b; }
  [[gnu::always_inline]] static inline V mul(V a, V b) { return a * b; }
  [[gnu::always_inline]] static inline V div(V a, V b) { return a / b; }
  [[gnu::always_inline]] static inline V if_ge(V a, V b, V x, V y) { return a >= b ? x : y; }
  [[gnu::always_inline]] static inline V fma(V a, V b, V c) { return __builtin_fmaf(a, b, c); }
  // If either is NaN: b (what MAXPS and MINPS do), so clamp(NaN) is NaN with the limit first.
  [[gnu::always_inline]] static inline V max(V a, V b) { return a > b ? a : b; }
  [[gnu::always_inline]] static inline V min(V a, V b) { return a < b ? a : b; }
  // p * 2^n, rounded once, where shifted = 1.5 * 2^23 + n and |n| <= 252: two factors, each a normal number.
  [[gnu::always_inline]] static inline V scale_by_power(V p, V shifted) {
    const uint32_t n = __builtin_bit_cast(uint32_t, shifted) - 0x4b400000u;
    const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(n) >> 1);
    const float first = __builtin_bit_cast(float, (half + 127u) << 23);
    const float second = __builtin_bit_cast(float, (n - half + 127u) << 23);
    return p * first * second;
  }
};

// e^x: at most 1 ulp off (checked at a prime step through the bit patterns: isa_test.cc), subnormal results
// included; 0 below -104, Inf above 88.73, NaN for NaN. x = n ln2 + r, |r| <= ln2 / 2; e^r = 1 + r + r^2
// P(r), P the Chebyshev interpolant of degree 5.
template <class Ops>
[[gnu::always_inline]] static inline typename Ops::V exp_of(typename Ops::V x) {
  const auto shift = Ops::set1(0x1.8p23f);
  x = Ops::min(Ops::set1(89.0f), Ops::max(Ops::set1(-104.5f), x));
  const auto shifted = Ops::fma(x, Ops::set1(0x1.715476p0f), shift);
  const auto n = Ops::sub(shifted, shift);
  auto r = Ops::fma(n, Ops::set1(-0x1.62e430p-1f), x);
  r = Ops::fma(n, Ops::set1(0x1.05c610p-29f), r);
  auto p = Ops::set1(0x1.a12652p-13f);
  p = Ops::fma(p, r, Ops::set1(0x1.6d44b2p-10f));
  p = Ops::fma(p, r, Ops::set1(0x1.1110e0p-7f));
  p = Ops::fma(p, r, Ops::set1(0x1.5554e8p-5f));
  p = Ops::fma(p, r, Ops::set1(0x1.555556p-3f));
  p = Ops::fma(p, r, Ops::set1(0.5f));
  p = Ops::fma(Ops::mul(p, r), r, r);
  return Ops::scale_by_power(Ops::add(p, Ops::set1(1.0f)), shifted);
}

// tanh x: at most 2.5 ulp off. Where 1 - e^-2|x| would cancel, x + x^3 P(x^2), P the Chebyshev interpolant of
// degree 4 on [0, 0.25], 1.3e-9 off. -0 becomes 0. Ops has if_ge(a, b, x, y): x where a >= b, else y, y for
// NaN.
template <class Ops>
[[gnu::always_inline]] static inline typename Ops::V tanh_of(typename Ops::V x) {
  const auto zero = Ops::set1(0.0f), one = Ops::set1(1.0f);
  const auto size = Ops::if_ge(x, zero, x, Ops::sub(zero, x));
  const auto z = Ops::mul(x, x);
  auto p = Ops::fma(Ops::set1(-0x1.c7033cp-8f), z, Ops::set1(0x1.5fc692p-6f));
  p = Ops::fma(p, z, Ops::set1(-0x1.b9d2aep-5f));
  p = Ops::fma(p, z, Ops::set1(0x1.111080p-3f));
  p = Ops::fma(p, z, Ops::set1(-0x1.555554p-2f));
  const auto near = Ops::fma(Ops::mul(x, z), p, x);
  const auto e = exp_of<Ops>(Ops::mul(Ops::set1(-2.0f), size));
  const auto far = Ops::div(Ops::sub(one, e), Ops::add(one, e));
  return Ops::if_ge(Ops::set1(0.5f), size, near, Ops::if_ge(x, zero, far, Ops::sub(zero, far)));
}

// e^x of one float. In a loop of a *_avx2.cc or *_avx512.cc file the compiler vectorises it; elsewhere the
// fma is a library call on CPUs compiled for without FMA: right, and slow.
[[gnu::always_inline]] static inline float exp_of(float x) { return exp_of<ScalarOps>(x); }

}  // namespace lignum::kernels
