// Vector operations on AVX2 with FMA. Contract: vec_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/float8.h"
#include "kernels/unroll.h"

namespace lignum::kernels::avx2 {

struct Ops {
  using V = __m256;
  static constexpr int kWidth = 8;
  // Rows of a GEMM tile of 2 kWidth columns: 12 of the 16 registers accumulate.
  static constexpr int kRows = 6;

  LIGNUM_INLINE V zero() { return _mm256_setzero_ps(); }
  LIGNUM_INLINE V set1(float x) { return _mm256_set1_ps(x); }
  LIGNUM_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
  LIGNUM_INLINE V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  LIGNUM_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  LIGNUM_INLINE V div(V a, V b) { return _mm256_div_ps(a, b); }
  LIGNUM_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  LIGNUM_INLINE V max(V a, V b) { return _mm256_max_ps(a, b); }
  LIGNUM_INLINE V min(V a, V b) { return _mm256_min_ps(a, b); }
  LIGNUM_INLINE V scale_by_power(V p, V shifted) {
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
    const __m256i half = _mm256_srai_epi32(n, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(n, half)));
  }
  LIGNUM_INLINE V if_ge(V a, V b, V x, V y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
  }

  LIGNUM_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
  LIGNUM_INLINE void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  LIGNUM_INLINE V load_n(const float* p, int n) { return _mm256_maskload_ps(p, mask(n)); }
  LIGNUM_INLINE void store_n(float* p, V v, int n) { _mm256_maskstore_ps(p, mask(n), v); }

  LIGNUM_INLINE V load(const uint16_t* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LIGNUM_INLINE void store(uint16_t* p, V v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v)); }
  // AVX2 has no masks for 16-bit lanes; these are edges.
  LIGNUM_INLINE V load_n(const uint16_t* p, int n) {
    alignas(16) uint16_t lanes[kWidth] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  LIGNUM_INLINE void store_n(uint16_t* p, V v, int n) {
    alignas(16) uint16_t lanes[kWidth];
    store(lanes, v);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }

  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE V load(const F* p) {
    return widen8<F>(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE V load_n(const F* p, int n) {
    alignas(8) F lanes[kWidth] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }

  LIGNUM_INLINE void transpose(V (&r)[kWidth]) {
    V t[kWidth];
    LIGNUM_UNROLL
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    LIGNUM_UNROLL
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    LIGNUM_UNROLL
    for (int c = 0; c < 4; ++c) {
      t[c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
      t[4 + c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
    }
    LIGNUM_UNROLL
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }

 private:
  LIGNUM_INLINE __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  LIGNUM_INLINE V power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  LIGNUM_INLINE V widen(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  template <class F>
  LIGNUM_INLINE V widen8(__m128i codes) {
    const __m256i c = _mm256_cvtepu8_epi32(codes);
    const __m256i m = _mm256_and_si256(c, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_sub_epi32(c, m), 24);
    const __m256i normal =
        _mm256_add_epi32(_mm256_slli_epi32(m, 23 - F::kMantissa), _mm256_set1_epi32((127 - F::kBias) << 23));
    const __m256i tiny =
        _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_set1_ps(kFloat8Grid<F>)));
    const auto code = [](uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); };
    __m256i bits = _mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(code(1u << F::kMantissa), m));
    bits = _mm256_blendv_epi8(bits, code(0x7fc00000), _mm256_cmpgt_epi32(m, code(F::kFirstSpecial - 1)));
    bits = _mm256_blendv_epi8(bits, code(0x7f800000), _mm256_cmpeq_epi32(m, code(F::kInfinity)));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
  }
  LIGNUM_INLINE __m128i narrow(V v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
};

}  // namespace lignum::kernels::avx2
