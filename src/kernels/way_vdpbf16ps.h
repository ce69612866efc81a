// bf16 dots by VDPBF16PS. For *_vdpbf16ps.cc files only (isa.h).
#pragma once

#include "kernels/bf16_tiles.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels::vdpbf16ps {

// Bits: one chain an element, a pair a step: the product of odd k is added first, then that of even k, each
// rounded to nearest even; subnormals count as zeros.
struct Way {
  struct Ops : avx512::Ops {};

  LIGNUM_INLINE void begin() {}
  LIGNUM_INLINE void end() {}

  // Half a panel of A at a time: 8 rows by 2 vectors are 16 chains, which hide the latency (6 on Zen 4).
  static constexpr int kRows = 8;

  template <int kA, int kB>
  LIGNUM_INLINE void tile(const TileProduct& x, const char* a, const char* b, const float* from,
                          int64_t from_row, float* to, int64_t to_row) {
    for (int row = 0; row < kA * 16; row += kRows) {
      const int64_t from_at = row / 16 * from_row + row % 16 * 16, to_at = row / 16 * to_row + row % 16 * 16;
      rows<kB>(x, a + row / 16 * x.a_panel + row % 16 * 64, b, from == nullptr ? nullptr : from + from_at,
               to + to_at);
    }
  }

  template <int kB>
  LIGNUM_INLINE void rows(const TileProduct& x, const char* a, const char* b, const float* from, float* to) {
    __m512 sum[kRows][kB];
    LIGNUM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < kB; ++j) {
        sum[i][j] = from == nullptr ? _mm512_setzero_ps() : _mm512_load_ps(from + i * 16 + j * 256);
      }
    }
    for (int64_t t = 0; t < x.k_tiles; ++t, a += kTileBytes, b += kTileBytes) {
      for (int p = 0; p < 16; ++p) {
        __m512bh column[kB];
        LIGNUM_UNROLL
        for (int j = 0; j < kB; ++j) column[j] = (__m512bh)_mm512_load_si512(b + j * x.b_panel + p * 64);
        LIGNUM_UNROLL
        for (int i = 0; i < kRows; ++i) {
          int pair = 0;
          __builtin_memcpy(&pair, a + i * 64 + p * 4, 4);
          const auto row = (__m512bh)_mm512_set1_epi32(pair);
          LIGNUM_UNROLL
          for (int j = 0; j < kB; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], row, column[j]);
        }
      }
    }
    LIGNUM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < kB; ++j) _mm512_store_ps(to + i * 16 + j * 256, sum[i][j]);
    }
  }
};

}  // namespace lignum::kernels::vdpbf16ps
