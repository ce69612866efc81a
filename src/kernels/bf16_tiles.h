// Packing for bf16 dots by pairs, and the product itself, over any way of taking them (way_*.h). Internal;
// for ISA files only (isa.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/float8.h"
#include "kernels/tile_product.h"
#include "kernels/unroll.h"

namespace lignum::kernels {

// One way: Way names vectors (Ops of vec_avx512.h) and is a type of the ISA file's own.
template <class Way>
struct Bf16Tiles {
  using Ops = typename Way::Ops;
  using V = typename Ops::V;

  LIGNUM_INLINE __mmask32 first(int64_t n) { return n >= 32 ? ~0U : (1U << n) - 1U; }
  LIGNUM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  // Two vectors of f32 to 32 bf16, the first one first; to nearest even, subnormals to zero.
  LIGNUM_INLINE __m512i narrow(V low, V high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
  // The same interleaved: lane i is the pair (low[i], high[i]).
  LIGNUM_INLINE __m512i narrow_pairs(V low, V high) {
    return _mm512_permutexvar_epi16(pair_order(), narrow(low, high));
  }
  LIGNUM_INLINE __m512i pair_order() {
    // 0 16 1 17 ...: words of the two halves in turn.
    const __m512i half =
        _mm512_cvtepu16_epi32(_mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    return _mm512_or_si512(half, _mm512_slli_epi32(_mm512_add_epi32(half, _mm512_set1_epi32(16)), 16));
  }

  // Lines to columns: 16 rows of 16 dwords.
  LIGNUM_INLINE void transpose(__m512i (&r)[16]) {
    V v[16];
    LIGNUM_UNROLL
    for (int i = 0; i < 16; ++i) v[i] = _mm512_castsi512_ps(r[i]);
    Ops::transpose(v);
    LIGNUM_UNROLL
    for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(v[i]);
  }

  LIGNUM_INLINE void store_tile(const __m512i (&r)[16], char* tile) {
    LIGNUM_UNROLL
    for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * 64, r[i]);
  }

  // 32 values as bf16: bf16's own bits, or 8-bit floats widened, exactly. Lanes that the mask lacks are
  // zeros.
  LIGNUM_INLINE __m512i words(const uint16_t* p) { return _mm512_loadu_si512(p); }
  LIGNUM_INLINE __m512i words(const uint16_t* p, __mmask32 mask) { return _mm512_maskz_loadu_epi16(mask, p); }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE __m512i words(const F* p) {
    return widened<F>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE __m512i words(const F* p, __mmask32 mask) {
    return widened<F>(_mm256_maskz_loadu_epi8(mask, p));
  }
  // 16 of them.
  LIGNUM_INLINE __m256i half_words(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  LIGNUM_INLINE __m256i half_words(const uint16_t* p, __mmask16 mask) {
    return _mm256_maskz_loadu_epi16(mask, p);
  }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE __m256i half_words(const F* p) {
    return half_widened<F>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <class F>
    requires(sizeof(F) == 1)
  LIGNUM_INLINE __m256i half_words(const F* p, __mmask16 mask) {
    return half_widened<F>(_mm_maskz_loadu_epi8(mask, p));
  }

  // Codes below 2^mantissa are subnormal: code times the grid's step, which is normal in bf16, by table.
  template <class F>
  struct Tiny {
    alignas(64) uint16_t word[32] = {};
    constexpr Tiny() {
      for (int i = 0; i < 1 << F::kMantissa; ++i) {
        const float x = static_cast<float>(i) * kFloat8Grid<F>;
        word[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16);
      }
    }
  };
  template <class F>
  LIGNUM_INLINE __m512i widened(__m256i codes) {
    static constexpr Tiny<F> kTiny{};
    const auto all = [](uint32_t v) { return _mm512_set1_epi16(static_cast<int16_t>(v)); };
    const __m512i c = _mm512_cvtepu8_epi16(codes);
    const __m512i m = _mm512_and_si512(c, all(0x7f));
    const __m512i sign = _mm512_slli_epi16(_mm512_sub_epi16(c, m), 8);
    __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(m, 7 - F::kMantissa), all((127 - F::kBias) << 7));
    const __m512i tiny = _mm512_permutexvar_epi16(m, _mm512_load_si512(kTiny.word));
    bits = _mm512_mask_mov_epi16(bits, _mm512_cmplt_epi16_mask(m, all(1U << F::kMantissa)), tiny);
    bits = _mm512_mask_mov_epi16(bits, _mm512_cmpge_epi16_mask(m, all(F::kFirstSpecial)), all(0x7fc0));
    bits = _mm512_mask_mov_epi16(bits, _mm512_cmpeq_epi16_mask(m, all(F::kInfinity)), all(0x7f80));
    return _mm512_or_si512(bits, sign);
  }
  template <class F>
  LIGNUM_INLINE __m256i half_widened(__m128i codes) {
    return _mm512_castsi512_si256(widened<F>(_mm256_castsi128_si256(codes)));
  }

  // `count` lines of 32 k (fewer: k_left) with unit stride along k.
  template <class T>
  LIGNUM_INLINE void load_lines(const T* src, int64_t ld, int64_t count, int64_t k_left, __m512i (&r)[16]) {
    const __mmask32 mask = first(k_left);
    if (count == 16 && k_left >= 32) {
      LIGNUM_UNROLL
      for (int i = 0; i < 16; ++i) r[i] = words(src + i * ld);
      return;
    }
    LIGNUM_UNROLL
    for (int i = 0; i < 16; ++i) r[i] = i < count ? words(src + i * ld, mask) : _mm512_setzero_si512();
  }

  // Rows of pairs of `count` lines with unit stride across lines: src[k * ld + line].
  template <class T>
  LIGNUM_INLINE void load_pairs(const T* src, int64_t ld, int64_t count, int64_t k_left, __m512i (&r)[16]) {
    const __mmask16 mask = static_cast<__mmask16>(first(count));
    const bool whole = count == 16 && k_left >= 32;
    LIGNUM_UNROLL
    for (int p = 0; p < 16; ++p) {
      __m256i even = _mm256_setzero_si256(), odd = even;
      if (whole) {
        even = half_words(src + 2 * p * ld);
        odd = half_words(src + (2 * p + 1) * ld);
      } else {
        if (2 * p < k_left) even = half_words(src + 2 * p * ld, mask);
        if (2 * p + 1 < k_left) odd = half_words(src + (2 * p + 1) * ld, mask);
      }
      r[p] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
  }

  // kOfB: tiles of B, else of A. kAcross: stored [k, lines], else [lines, k]. Packs `lines` lines from src
  // on, in whole pairs of panels. T: uint16_t (bf16's bits), E4m3 or E5m2.
  template <bool kOfB, bool kAcross, class T>
  static void pack_panels(const T* src, int64_t ld, int64_t lines, int64_t k, char* to) {
    const int64_t panel = panel_bytes(k);
    const int64_t panels = 2 * tiles_of(lines, 2 * kTileLines);
    for (int64_t i = 0; i < panels; ++i, to += panel) {
      const int64_t count = smaller(kTileLines, lines - i * kTileLines);
      if (count <= 0) {
        for (int64_t at = 0; at < panel; at += 64) _mm512_store_si512(to + at, _mm512_setzero_si512());
        continue;
      }
      const T* from = src + i * kTileLines * (kAcross ? 1 : ld);
      char* tile = to;
      for (int64_t at = 0; at < k; at += kTileK, tile += kTileBytes) {
        __m512i r[16];
        if constexpr (kAcross) {
          load_pairs(from + at * ld, ld, count, k - at, r);
        } else {
          load_lines(from + at, ld, count, k - at, r);
        }
        if constexpr (kOfB != kAcross) transpose(r);
        store_tile(r, tile);
      }
    }
  }

  template <class T>
  static void pack_a(const T* src, int64_t ld, bool across, int64_t lines, int64_t k, char* to) {
    if (across) {
      pack_panels<false, true>(src, ld, lines, k, to);
    } else {
      pack_panels<false, false>(src, ld, lines, k, to);
    }
  }
  template <class T>
  static void pack_b(const T* src, int64_t ld, bool across, int64_t lines, int64_t k, char* to) {
    if (across) {
      pack_panels<true, true>(src, ld, lines, k, to);
    } else {
      pack_panels<true, false>(src, ld, lines, k, to);
    }
  }

  // Up to [32, 32] of C from four tiles of sums, [2][2][16][16].
  static void store_sums(float* sums, const TileProduct& x, int64_t row, int64_t column) {
    const int64_t rows = smaller(32, x.rows - row), columns = smaller(32, x.columns - column);
    if (x.row_scale != nullptr && x.scale_tiles == 0)
      scale_sums(sums, x.row_scale + row, rows, x.column_scale + column, columns);
    if (x.c_is_bf16) {
      const __mmask32 mask = first(columns);
      for (int64_t i = 0; i < rows; ++i) {
        const float* from = sums + i / 16 * 512 + i % 16 * 16;
        uint16_t* to = static_cast<uint16_t*>(x.c) + (row + i) * x.ldc + column;
        const __m512i v = narrow(_mm512_load_ps(from), _mm512_load_ps(from + 256));
        if (columns == 32) {
          _mm512_storeu_si512(to, v);
        } else {
          _mm512_mask_storeu_epi16(to, mask, v);
        }
      }
      return;
    }
    const auto low = static_cast<__mmask16>(first(columns)),
               high = static_cast<__mmask16>(first(columns) >> 16);
    for (int64_t i = 0; i < rows; ++i) {
      const float* from = sums + i / 16 * 512 + i % 16 * 16;
      float* to = static_cast<float*>(x.c) + (row + i) * x.ldc + column;
      _mm512_mask_storeu_ps(to, low, _mm512_load_ps(from));
      _mm512_mask_storeu_ps(to + 16, high, _mm512_load_ps(from + 256));
    }
  }

  static void scale_sums(float* sums, const float* row_scale, int64_t rows, const float* column_scale,
                         int64_t columns) {
    const __mmask32 mask = first(columns);
    const V low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), column_scale),
            high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), column_scale + 16);
    for (int64_t i = 0; i < rows; ++i) {
      float* at = sums + i / 16 * 512 + i % 16 * 16;
      const V row = Ops::set1(row_scale[i]);
      _mm512_store_ps(at, Ops::mul(Ops::mul(_mm512_load_ps(at), row), low));
      _mm512_store_ps(at + 256, Ops::mul(Ops::mul(_mm512_load_ps(at + 256), row), high));
    }
  }

  // One pair of A's panels stays in L1 while the panels of B pass.
  static void multiply(const TileProduct& x) {
    for (int64_t i = 0; i < x.rows; i += 32) {
      const char* a = x.a + i / kTileLines * x.a_panel;
      const bool tall = x.rows - i > 16;
      for (int64_t j = 0; j < x.columns; j += 32) {
        const char* b = x.b + j / kTileLines * x.b_panel;
        const bool wide = x.columns - j > 16;
        if (tall) {
          wide ? block<2, 2>(x, a, b, i, j) : block<2, 1>(x, a, b, i, j);
        } else {
          wide ? block<1, 2>(x, a, b, i, j) : block<1, 1>(x, a, b, i, j);
        }
      }
    }
  }

  // Each part of k that has factors of its own by itself.
  template <int kA, int kB>
  static void scaled_parts(const TileProduct& x, const char* a, const char* b, int64_t row, int64_t column,
                           float* partial) {
    alignas(64) float total[1024] = {};
    alignas(64) float sums[1024];
    const int64_t rows = smaller(32, x.rows - row), columns = smaller(32, x.columns - column);
    // The tiles of [16, 16] that there are, in `total` and in `partial`.
    const auto each_vector = [&](auto fn) {
      for (int i = 0; i < kA; ++i)
        for (int64_t at = 0; at < kB * 256; at += 16) fn(i * 512 + at, i * x.partial_row + at);
    };
    if (x.add) {
      each_vector(
          [&](int64_t to, int64_t from) { _mm512_store_ps(total + to, _mm512_load_ps(partial + from)); });
    }
    TileProduct part = x;
    part.k_tiles = x.scale_tiles;
    const float* row_scale = x.row_scale + row;
    const float* column_scale = x.column_scale + column;
    for (int64_t t = 0; t < x.k_tiles; t += x.scale_tiles) {
      Way::template tile<kA, kB>(part, a + t * kTileBytes, b + t * kTileBytes, nullptr, 0, sums, 512);
      scale_sums(sums, row_scale, rows, column_scale, columns);
      each_vector([&](int64_t to, int64_t) {
        _mm512_store_ps(total + to, Ops::add(_mm512_load_ps(total + to), _mm512_load_ps(sums + to)));
      });
      row_scale += x.row_scale_step;
      column_scale += x.column_scale_step;
    }
    if (!x.store) return store_sums(total, x, row, column);
    each_vector(
        [&](int64_t from, int64_t to) { _mm512_store_ps(partial + to, _mm512_load_ps(total + from)); });
  }

  template <int kA, int kB>
  static void block(const TileProduct& x, const char* a, const char* b, int64_t row, int64_t column) {
    float* partial =
        x.partial == nullptr ? nullptr : x.partial + row / 16 * x.partial_row + column / 16 * 256;
    alignas(64) float sums[1024];
    if (x.scale_tiles > 0) return scaled_parts<kA, kB>(x, a, b, row, column, partial);
    if (x.store) {
      Way::template tile<kA, kB>(x, a, b, x.add ? partial : nullptr, x.partial_row, partial, x.partial_row);
      return;
    }
    Way::template tile<kA, kB>(x, a, b, x.add ? partial : nullptr, x.partial_row, sums, 512);
    store_sums(sums, x, row, column);
  }
};

}  // namespace lignum::kernels
