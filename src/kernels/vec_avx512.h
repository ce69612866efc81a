// Vector operations on AVX-512 (F, BW, DQ, VL). The contract of an Ops type, for all vec_*.h: see math.h for
// the arithmetic; `_n` forms touch the first n lanes in memory only, 0 <= n <= kWidth, and load zeros
// elsewhere; bf16 is its 16 bits, rounded to nearest even on store, NaN kept (the rules of base/dtype.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/float8.h"
#include "kernels/unroll.h"

namespace lignum::kernels::avx512 {

struct Ops {
  using V = __m512;
  static constexpr int kWidth = 16;
  // Rows of a GEMM tile of 2 kWidth columns: 28 of the 32 registers accumulate.
  static constexpr int kRows = 14;

  LIGNUM_INLINE V zero() { return _mm512_setzero_ps(); }
  LIGNUM_INLINE V set1(float x) { return _mm512_set1_ps(x); }
  LIGNUM_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }
  LIGNUM_INLINE V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  LIGNUM_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  LIGNUM_INLINE V div(V a, V b) { return _mm512_div_ps(a, b); }
  LIGNUM_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  LIGNUM_INLINE V max(V a, V b) { return _mm512_max_ps(a, b); }
  LIGNUM_INLINE V min(V a, V b) { return _mm512_min_ps(a, b); }
  LIGNUM_INLINE V scale_by_power(V p, V shifted) {
    return _mm512_scalef_ps(p, _mm512_sub_ps(shifted, _mm512_set1_ps(0x1.8p23f)));
  }
  // a >= b ? x : y, lane by lane.
  LIGNUM_INLINE V if_ge(V a, V b, V x, V y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
  }

  LIGNUM_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
  LIGNUM_INLINE void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  LIGNUM_INLINE V load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  LIGNUM_INLINE void store_n(float* p, V v, int n) { _mm512_mask_storeu_ps(p, mask(n), v); }

  LIGNUM_INLINE V load(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LIGNUM_INLINE void store(uint16_t* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v));
  }
  LIGNUM_INLINE V load_n(const uint16_t* p, int n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
  LIGNUM_INLINE void store_n(uint16_t* p, V v, int n) { _mm256_mask_storeu_epi16(p, mask(n), narrow(v)); }

  // 8-bit floats, exactly.
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE V load(const F* p) {
    return widen8<F>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE V load_n(const F* p, int n) {
    return widen8<F>(_mm_maskz_loadu_epi8(mask(n), p));
  }

  // Rows become columns.
  LIGNUM_INLINE void transpose(V (&r)[kWidth]) {
    V t[kWidth];
    LIGNUM_UNROLL
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    LIGNUM_UNROLL
    for (int i = 0; i < 16; i += 4) {
      r[i] = pair_lo(t[i], t[i + 2]);
      r[i + 1] = pair_hi(t[i], t[i + 2]);
      r[i + 2] = pair_lo(t[i + 1], t[i + 3]);
      r[i + 3] = pair_hi(t[i + 1], t[i + 3]);
    }
    // r[4 q + c] holds, in 128-bit lane l, column 4 l + c of rows 4 q .. 4 q + 3: now a 4x4 transpose of
    // lanes.
    LIGNUM_UNROLL
    for (int c = 0; c < 4; ++c) {
      t[c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x44);
      t[4 + c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xee);
      t[8 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x44);
      t[12 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xee);
    }
    LIGNUM_UNROLL
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0x88);
      r[4 + c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0xdd);
      r[8 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0x88);
      r[12 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0xdd);
    }
  }

 private:
  LIGNUM_INLINE __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  LIGNUM_INLINE V widen(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  template <class F>
  LIGNUM_INLINE V widen8(__m128i codes) {
    const __m512i c = _mm512_cvtepu8_epi32(codes);
    const __m512i m = _mm512_and_si512(c, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_sub_epi32(c, m), 24);
    const __m512i normal =
        _mm512_add_epi32(_mm512_slli_epi32(m, 23 - F::kMantissa), _mm512_set1_epi32((127 - F::kBias) << 23));
    const __m512i tiny =
        _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(m), _mm512_set1_ps(kFloat8Grid<F>)));
    const auto code = [](uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); };
    __m512i bits = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(m, code(1u << F::kMantissa)), tiny);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpge_epi32_mask(m, code(F::kFirstSpecial)), code(0x7fc00000));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(m, code(F::kInfinity)), code(0x7f800000));
    return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
  }
  LIGNUM_INLINE __m256i narrow(V v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
  LIGNUM_INLINE V pair_lo(V a, V b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  LIGNUM_INLINE V pair_hi(V a, V b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace lignum::kernels::avx512
