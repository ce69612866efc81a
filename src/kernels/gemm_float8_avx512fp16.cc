// GEMM of two operands of 8-bit floats by fp16 FMA (Fp8Accumulation::fp16_64): twice the products of fp32
// FMA. Internal; for CPUs with AVX512-FP16 and VBMI2.
//
// Every row of A and every column of B is packed as fp16, times the power of two that brings its largest
// magnitude within a block of k into [16, 32). So 64 products are at most 64 * 30 * 30 = 57600 (no mantissa
// of the formats is above 1.875) and no chain overflows; the powers are undone in fp32.
//
// A 32-bit lane holds a pair of k. Panels, in dwords:
//   A: 14 rows a pair, stride 16; B: 32 columns a pair, first the even ones, then the odd ones.
// So a row of A is broadcast by the load port alone, and the two lanes of a pair, added to each other when
// they are promoted to fp32, come out in the order of columns.
#include "kernels/float8.h"
#include "kernels/gemm_loop.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels {
namespace avx512fp16 {

template <int...>
struct Rows {};

struct Float8Gemm {
  using F32 = avx512::Ops;
  static constexpr int kRows = 14, kStride = 16, kColumns = 32;
  static constexpr int kPairs = 32;  // of k between promotions: 64 products
  static constexpr int64_t kMc = int64_t{8} * kRows;
  static constexpr int kTop = 4;  // the largest magnitude of a packed row is in [2^kTop, 2 2^kTop)

  // Rows of A or columns of B where they lie.
  struct Lines {
    const uint8_t* p = nullptr;
    int64_t ld = 0;
    bool across = false;  // stored [k, lines], else [lines, k]
    const uint8_t* at(int64_t line, int64_t k) const {
      return across ? p + k * ld + line : p + line * ld + k;
    }
  };

  LIGNUM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
  LIGNUM_INLINE uint64_t bytes_mask(int64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

  // Codes in the high bytes of words as fp16; E4M3's times 2^-kGiven.
  template <class F>
  static constexpr int kGiven = F::kMantissa == 3 ? 8 : 0;
  template <class F>
  LIGNUM_INLINE __m512h decode(__m512i words) {
    if constexpr (F::kMantissa == 3)
      words = _mm512_and_si512(_mm512_srai_epi16(words, 1), _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
    return _mm512_castsi512_ph(words);
  }

  // What becomes of a line whose largest code without sign is `code`: the power of two, as fp16 in both
  // words, that its decoded elements are multiplied by, at most 2^15 (a smaller line has room enough), and
  // the factor that undoes it (NaN where the line holds one or an infinity).
  struct Scale {
    uint32_t factor = 0x3c003c00;
    float undo = 1;
  };
  template <class F>
  static Scale scale_of(unsigned code) {
    if (code >= F::kFirstSpecial) return {0x3c003c00, __builtin_nanf("")};
    if (code == 0) return {};
    const int exponent = code >> F::kMantissa != 0 ? static_cast<int>(code >> F::kMantissa) - F::kBias
                                                   : 31 - __builtin_clz(code) + 1 - F::kBias - F::kMantissa;
    const int power = static_cast<int>(smaller(kTop - exponent + kGiven<F>, 15));
    return {static_cast<uint32_t>(power + 15) * 0x04000400u,
            __builtin_bit_cast(float, static_cast<uint32_t>(127 - power + kGiven<F>) << 23)};
  }

  // The largest codes without sign of lines over k.
  static void largest(const Lines& x, int64_t line, int count, int64_t k0, int64_t k, unsigned* codes) {
    const __m512i no_sign = _mm512_set1_epi8(0x7f);
    if (x.across) {
      for (int i = 0; i < count; i += 64) {
        const uint64_t mask = bytes_mask(count - i);
        __m512i most = _mm512_setzero_si512();
        for (int64_t p = 0; p < k; ++p)
          most = _mm512_max_epu8(most, _mm512_maskz_loadu_epi8(mask, x.at(line + i, k0 + p)) & no_sign);
        alignas(64) uint8_t bytes[64];
        _mm512_store_si512(bytes, most & no_sign);
        for (int c = 0; c < smaller(64, count - i); ++c) codes[i + c] = bytes[c];
      }
      return;
    }
    for (int i = 0; i < count; ++i) {
      __m512i most = _mm512_setzero_si512();
      const uint8_t* from = x.at(line + i, k0);
      for (int64_t p = 0; p < k; p += 64)
        most = _mm512_max_epu8(
            most, _mm512_and_si512(no_sign, _mm512_maskz_loadu_epi8(bytes_mask(k - p), from + p)));
      __m256i half = _mm256_max_epu8(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
      __m128i quarter = _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
      quarter = _mm_max_epu8(quarter, _mm_srli_epi16(quarter, 8));  // the low bytes of words
      quarter = _mm_xor_si128(_mm_set1_epi16(0xff), _mm_and_si128(quarter, _mm_set1_epi16(0xff)));
      codes[i] = 0xffu ^ static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(quarter), 0));
    }
  }

  // 16 lines, every `step`-th from `line` on, of which `count` are there, into a vector of dwords a pair.
  template <class F>
  static void pack_lines(const Lines& x, int64_t line, int step, int count, int64_t k0, int64_t k,
                         const uint32_t* factors, uint32_t* to, int64_t stride) {
    __m512 r[16];
    for (int64_t p = 0; p < k; p += 32) {
      const auto mask = static_cast<__mmask32>(bytes_mask(smaller(k - p, 32)));
      LIGNUM_UNROLL
      for (int i = 0; i < 16; ++i) {
        const __mmask32 here = i < count ? mask : 0;
        const __m256i codes = _mm256_maskz_loadu_epi8(here, x.at(line + (i < count ? i * step : 0), k0 + p));
        const __m512h v = decode<F>(_mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8));
        const __m512h factor = _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int>(factors[i])));
        r[i] = _mm512_castph_ps(_mm512_mul_ph(v, factor));
      }
      F32::transpose(r);
      const int64_t pairs = smaller(16, (k - p + 1) / 2);
      for (int64_t i = 0; i < pairs; ++i) _mm512_storeu_ps(to + (p / 2 + i) * stride, r[i]);
    }
  }

  // Rows [row, row + rows) of A, at most kMc. Stored across, a line of all panels is read in one go: it lies
  // far from the next one.
  template <class F>
  static void pack_rows(const Lines& x, int64_t row, int64_t rows, int64_t k0, int64_t k, uint32_t* to,
                        float* undo) {
    constexpr int kPanels = kMc / kRows;
    unsigned codes[kMc];
    alignas(64) uint32_t factors[kPanels][kStride] = {};
    const int64_t panel = (k + 1) / 2 * kStride;
    largest(x, row, static_cast<int>(rows), k0, k, codes);
    for (int64_t i = 0; i < rows; ++i) {
      const Scale s = scale_of<F>(codes[i]);
      factors[i / kRows][i % kRows] = s.factor;
      undo[i] = s.undo;
    }
    if (!x.across) {
      for (int64_t i = 0; i < rows; i += kRows, to += panel)
        pack_lines<F>(x, row + i, 1, static_cast<int>(smaller(kRows, rows - i)), k0, k, factors[i / kRows],
                      to, kStride);
      return;
    }
    for (int64_t p = 0; p < k; p += 2, to += kStride) {
      const bool pair = p + 1 < k;
      for (int64_t i = 0; i < rows; i += kRows) {
        const auto mask = static_cast<__mmask16>(bytes_mask(smaller(kRows, rows - i)));
        const __m128i even = _mm_maskz_loadu_epi8(mask, x.at(row + i, k0 + p));
        const __m128i odd =
            _mm_maskz_loadu_epi8(pair ? mask : __mmask16{0}, x.at(row + i, k0 + p + (pair ? 1 : 0)));
        const __m512i words = _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu8_epi32(even), 8),
                                              _mm512_slli_epi32(_mm512_cvtepu8_epi32(odd), 24));
        const __m512h by = _mm512_load_ph(factors[i / kRows]);
        _mm512_store_ph(to + i / kRows * panel, _mm512_mul_ph(decode<F>(words), by));
      }
    }
  }

  // Columns [column, column + columns) of B, two panels at a time: stored across, they share cache lines.
  template <class F>
  static void pack_columns(const Lines& x, int64_t column, int64_t columns, int64_t k0, int64_t k,
                           uint32_t* to, float* undo) {
    constexpr int kBoth = 2 * kColumns;
    const int64_t panel = (k + 1) / 2 * kColumns;
    for (int64_t j = 0; j < columns; j += kBoth, to += 2 * panel) {
      const int n = static_cast<int>(smaller(kBoth, columns - j));
      unsigned codes[kBoth];
      alignas(64) uint32_t factors[2][kColumns] = {};  // of the even columns, then of the odd ones
      largest(x, column + j, n, k0, k, codes);
      for (int c = 0; c < n; ++c) {
        const Scale s = scale_of<F>(codes[c]);
        factors[c / kColumns][c % 2 * 16 + c % kColumns / 2] = s.factor;
        undo[j + c] = s.undo;
      }
      for (int h = 0; h < 2 && h * kColumns < n; ++h) {
        const int64_t at = column + j + int64_t{h} * kColumns;
        const int m = static_cast<int>(smaller(kColumns, n - h * kColumns));
        if (x.across) continue;
        pack_lines<F>(x, at, 2, (m + 1) / 2, k0, k, factors[h], to + h * panel, kColumns);
        pack_lines<F>(x, at + (m > 1 ? 1 : 0), 2, m / 2, k0, k, factors[h] + 16, to + h * panel + 16,
                      kColumns);
      }
      for (int64_t p = 0; x.across && p < k; p += 2) {
        for (int h = 0; h < 2 && h * kColumns < n; ++h)
          pack_pair<F>(x, column + j + int64_t{h} * kColumns, n - h * kColumns, k0 + p, p + 1 < k, factors[h],
                       to + h * panel + p / 2 * kColumns);
      }
    }
  }

  // A pair of k, or the first k alone, of up to kColumns columns that are stored across.
  template <class F>
  LIGNUM_INLINE void pack_pair(const Lines& x, int64_t column, int64_t columns, int64_t k, bool pair,
                               const uint32_t* factors, uint32_t* to) {
    const auto mask = static_cast<__mmask32>(bytes_mask(smaller(kColumns, columns)));
    const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi8(mask, x.at(column, k)));
    const __m512i second = _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi8(pair ? mask : __mmask32{0}, x.at(column, k + (pair ? 1 : 0))));
    const __m512i high = _mm512_set1_epi32(0xff00);
    const __m512i even = _mm512_or_si512(_mm512_slli_epi32(_mm512_andnot_si512(high, first), 8),
                                         _mm512_slli_epi32(second, 24));
    const __m512i odd =
        _mm512_or_si512(_mm512_and_si512(first, high), _mm512_slli_epi32(_mm512_and_si512(second, high), 16));
    _mm512_store_ph(to, _mm512_mul_ph(decode<F>(even), _mm512_load_ph(factors)));
    _mm512_store_ph(to + 16, _mm512_mul_ph(decode<F>(odd), _mm512_load_ph(factors + 16)));
  }

  // The tile is undone first.
  struct Out : TileOut {
    const float* undo_rows = nullptr;
    const float* undo_columns = nullptr;
  };

  using TileFn = void (*)(int64_t, const uint32_t*, const uint32_t*, const Out&);
  template <int... kR>
  static TileFn tile_of(int64_t rows, Rows<kR...>) {
    static constexpr TileFn kTiles[] = {&tile<kR + 1>...};
    return kTiles[rows - 1];
  }

  template <int kR>
  static void tile(int64_t pairs, const uint32_t* a, const uint32_t* b, const Out& out) {
    alignas(64) float sum[kR][kColumns] = {};
    // C's rows lie far apart, in L3 or beyond: asked for during the products, a few at a time, they are there
    // after.
    const char* c =
        out.add != nullptr ? reinterpret_cast<const char*>(out.add) : static_cast<const char*>(out.c);
    const int64_t ld = out.add != nullptr ? out.ld_add * 4 : out.ldc * (out.c_is_bf16 ? 2 : 4);
    const int64_t pace = int64_t{2} * kR * kPairs / (pairs + kPairs) + 1;
    for (int64_t line = 0; pairs > 0;) {
      const int64_t n = smaller(pairs, kPairs);
      pairs -= n;
      for (const int64_t to = smaller(line + pace, int64_t{2} * kR); line < to; ++line)
        __builtin_prefetch(c + line / 2 * ld + line % 2 * 64, 0, 2);
      __m512h chain[kR][2];
      LIGNUM_UNROLL
      for (int i = 0; i < kR; ++i) chain[i][0] = chain[i][1] = _mm512_setzero_ph();
      for (int64_t p = 0; p < n; ++p, a += kStride, b += kColumns) {
        const __m512h even = _mm512_load_ph(b), odd = _mm512_load_ph(b + 16);
        LIGNUM_UNROLL
        for (int i = 0; i < kR; ++i) {
          const __m512h row = _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int>(a[i])));
          chain[i][0] = _mm512_fmadd_ph(row, even, chain[i][0]);
          chain[i][1] = _mm512_fmadd_ph(row, odd, chain[i][1]);
        }
      }
      // Even k + odd k, columns in order: a word of `crossed` is what is missing in the same word of one
      // chain.
      LIGNUM_UNROLL
      for (int i = 0; i < kR; ++i) {
        asm volatile(""
                     : "+v"(chain[i][0]),
                       "+v"(chain[i][1]));  // g++ 12 copies all chains to the stack first else
        const __m512h crossed = _mm512_castsi512_ph(
            _mm512_shrdi_epi32(_mm512_castph_si512(chain[i][0]), _mm512_castph_si512(chain[i][1]), 16));
        const __m512i both = _mm512_castph_si512(
            _mm512_mask_add_ph(_mm512_add_ph(crossed, chain[i][0]), 0xaaaaaaaau, crossed, chain[i][1]));
        const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(both));
        const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(both, 1));
        _mm512_store_ps(&sum[i][0], _mm512_add_ps(_mm512_load_ps(&sum[i][0]), low));
        _mm512_store_ps(&sum[i][16], _mm512_add_ps(_mm512_load_ps(&sum[i][16]), high));
      }
    }
    for (int i = 0; i < kR; ++i) {
      const __m512 undo = _mm512_set1_ps(out.undo_rows[i]);
      for (int h = 0; h < 2; ++h) {
        const int at = 16 * h, n = static_cast<int>(smaller(16, out.columns - at));
        if (n <= 0) break;
        __m512 v = _mm512_mul_ps(_mm512_load_ps(&sum[i][at]), undo);
        v = _mm512_mul_ps(v, F32::load_n(out.undo_columns + at, n));
        const auto scale = [&] {
          v = _mm512_mul_ps(v, _mm512_set1_ps(out.row_scale[i]));
          v = _mm512_mul_ps(v, F32::load_n(out.column_scale + at, n));
        };
        if (out.scales_part) scale();
        if (out.add != nullptr) v = _mm512_add_ps(F32::load_n(out.add + i * out.ld_add + at, n), v);
        if (out.row_scale != nullptr && !out.scales_part) scale();
        const int64_t to = i * out.ldc + at;
        if (out.c_is_bf16) {
          F32::store_n(static_cast<uint16_t*>(out.c) + to, v, n);
        } else {
          F32::store_n(static_cast<float*>(out.c) + to, v, n);
        }
      }
    }
  }

  // GemmLoop's. What undoes the powers of rows and columns stands in front of the panels.
  static int64_t block_of(const Gemm& g) { return float8_block(scaled_tile(g)); }
  static void pack_a(const Gemm& g, const GemmScratch& scratch, const void* a, int64_t i, int64_t rows,
                     int64_t p, int64_t kc, float* workspace) {
    const Lines x{static_cast<const uint8_t*>(a), g.lda, g.trans_a};
    auto* to = reinterpret_cast<uint32_t*>(workspace + scratch.a);
    if (g.a == DType::f8e4m3fn) {
      pack_rows<E4m3>(x, i, rows, p, kc, to, workspace);
    } else {
      pack_rows<E5m2>(x, i, rows, p, kc, to, workspace);
    }
  }
  static void pack_b(const Gemm& g, const GemmScratch& scratch, const void* b, int64_t j, int64_t columns,
                     int64_t p, int64_t kc, float* workspace) {
    const Lines x{static_cast<const uint8_t*>(b), g.ldb, !g.trans_b};
    auto* to = reinterpret_cast<uint32_t*>(workspace + scratch.b);
    if (g.b == DType::f8e4m3fn) {
      pack_columns<E4m3>(x, j, columns, p, kc, to, workspace + kMc);
    } else {
      pack_columns<E5m2>(x, j, columns, p, kc, to, workspace + kMc);
    }
  }
  // One panel of B stays in L1 while the panels of A pass.
  static void multiply(const GemmScratch& scratch, int64_t rows, int64_t columns, int64_t k,
                       const float* workspace, TileOut out) {
    const int64_t pairs = (k + 1) / 2;
    const auto* b = reinterpret_cast<const uint32_t*>(workspace + scratch.b);
    for (int64_t j = 0; j < columns; j += kColumns, b += kColumns * pairs) {
      out.columns = static_cast<int>(smaller(kColumns, columns - j));
      const auto* a = reinterpret_cast<const uint32_t*>(workspace + scratch.a);
      for (int64_t i = 0; i < rows; i += kRows, a += kStride * pairs) {
        tile_of(smaller(kRows, rows - i), Rows<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13>{})(
            pairs, a, b, {out.at(i, j), workspace + i, workspace + kMc + j});
      }
    }
  }

  static const char* refuses(const Gemm& g) {
    const auto is_float8 = [](DType d) { return d == DType::f8e4m3fn || d == DType::f8e5m2; };
    return is_float8(g.a) && is_float8(g.b) ? nullptr : "an operand is no 8-bit float";
  }
};

}  // namespace avx512fp16

constexpr GemmPath kGemmFloat8Fp16 = {"fp16_64",
                                      Isa::avx512,
                                      &avx512fp16::Float8Gemm::refuses,
                                      avx512fp16::Float8Gemm::kRows,
                                      avx512fp16::Float8Gemm::kColumns,
                                      &GemmLoop<avx512fp16::Float8Gemm>::block};

}  // namespace lignum::kernels
