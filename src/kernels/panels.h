// Packed panels and the register tile: what GEMM and attention share. Internal; included by ISA files only
// (isa.h).
//
// A panel holds the operand's k-th row (B) or column (A) at k * stride, so that the tile reads both with unit
// stride:
//   A panel: kRows rows of A, stride kWidth (the rest is padding that nothing reads);
//   B panel: 2 kWidth columns of B, stride 2 kWidth (columns beyond the edge repeat the last one).
#pragma once

#include <cstdint>

#include "kernels/tile_out.h"
#include "kernels/unroll.h"

namespace lignum::kernels {

template <class Ops>
struct Panels {
  using V = typename Ops::V;
  static constexpr int kWidth = Ops::kWidth;
  static constexpr int kRows = Ops::kRows;
  static constexpr int kColumns = 2 * kWidth;

  using Out = TileOut;

  LIGNUM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  // Floats of the panels of that many rows of A, or columns of B.
  LIGNUM_INLINE int64_t a_floats(int64_t rows, int64_t k) { return (rows + kRows - 1) / kRows * kWidth * k; }
  LIGNUM_INLINE int64_t b_floats(int64_t columns, int64_t k) {
    return (columns + kColumns - 1) / kColumns * kColumns * k;
  }

  // Lines of the source become columns of the panel: src[line * ld + k] -> dst[k * stride + line], lines <=
  // kWidth.
  template <class T>
  static void pack_lines(const T* src, int64_t ld, int lines, int64_t k, float* dst, int64_t stride) {
    const T* from[kWidth];
    for (int i = 0; i < kWidth; ++i) from[i] = src + smaller(i, lines - 1) * ld;
    V r[kWidth];
    int64_t at = 0;
    for (; at + kWidth <= k; at += kWidth) {
      LIGNUM_UNROLL
      for (int i = 0; i < kWidth; ++i) r[i] = Ops::load(from[i] + at);
      Ops::transpose(r);
      LIGNUM_UNROLL
      for (int i = 0; i < kWidth; ++i) Ops::store(dst + (at + i) * stride, r[i]);
    }
    if (at == k) return;
    const int rest = static_cast<int>(k - at);
    for (int i = 0; i < kWidth; ++i) r[i] = Ops::load_n(from[i] + at, rest);
    Ops::transpose(r);
    for (int i = 0; i < rest; ++i) Ops::store(dst + (at + i) * stride, r[i]);
  }

  // The source is laid out as the panel is: src[k * ld + column] -> dst[k * stride + column], columns <=
  // kWidth.
  template <class T>
  static void pack_columns(const T* src, int64_t ld, int columns, int64_t k, float* dst, int64_t stride) {
    if (columns == kWidth) {
      for (int64_t i = 0; i < k; ++i) Ops::store(dst + i * stride, Ops::load(src + i * ld));
    } else {
      for (int64_t i = 0; i < k; ++i) Ops::store(dst + i * stride, Ops::load_n(src + i * ld, columns));
    }
  }

  // Rows [0, rows) and k of A at src (the first element wanted); `lines`: A is stored [rows, k], else [k,
  // rows].
  template <class T>
  static void pack_a(const T* src, int64_t ld, bool lines, int64_t rows, int64_t k, float* dst) {
    const int64_t whole = lines ? 0 : rows / kRows * kRows;
    // A stored row is read in one go: column by column each of its lines would come from L3 by itself, in 2.5
    // times the time.
    for (int64_t p = 0; p < (whole > 0 ? k : 0); ++p) {
      const T* from = src + p * ld;
      float* to = dst + p * kWidth;
      for (int64_t i = 0; i < whole; i += kRows, to += k * kWidth)
        Ops::store(to, Ops::load_n(from + i, kRows));
    }
    dst += whole / kRows * k * kWidth;
    for (int64_t i = whole; i < rows; i += kRows, dst += k * kWidth) {
      const int n = static_cast<int>(smaller(kRows, rows - i));
      if (lines) {
        pack_lines(src + i * ld, ld, n, k, dst, kWidth);
      } else {
        pack_columns(src + i, ld, n, k, dst, kWidth);
      }
    }
  }

  // Columns [0, columns) and k of B at src; `lines`: B is stored [columns, k], else [k, columns].
  template <class T>
  static void pack_b(const T* src, int64_t ld, bool lines, int64_t columns, int64_t k, float* dst) {
    int64_t j = 0;
    if (!lines) {
      // Both vectors of a row at once: the second line comes along with the first.
      for (; j + kColumns <= columns; j += kColumns) {
        for (int64_t i = 0; i < k; ++i) {
          const T* from = src + i * ld + j;
          Ops::store(dst + j * k + i * kColumns, Ops::load(from));
          Ops::store(dst + j * k + i * kColumns + kWidth, Ops::load(from + kWidth));
        }
      }
    }
    for (; j < columns; j += kWidth) {
      const int n = static_cast<int>(smaller(kWidth, columns - j));
      float* half = dst + j / kColumns * kColumns * k + j % kColumns;
      if (lines) {
        pack_lines(src + j * ld, ld, n, k, half, kColumns);
      } else {
        pack_columns(src + j, ld, n, k, half, kColumns);
      }
    }
  }

  // Steps of k, at most, between two lines of C that are asked for. In one go the requests take all of the
  // core's fill buffers and the products wait for A: 91 % of the FMA rate against 94 % (GEMM, AVX-512).
  static constexpr int64_t kPace = 8;

  // A tile of kR rows and kV vectors of columns: one chain of fused multiply-adds an element, in ascending k.
  template <int kR, int kV>
  static void tile(int64_t k, const float* a, const float* b, const Out& out) {
    V sum[kR][kV];
    LIGNUM_UNROLL
    for (int i = 0; i < kR; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < kV; ++j) sum[i][j] = Ops::zero();
    }
    // C's rows lie far apart, in L3 or beyond: asked for during the products, they are there after.
    const char* c =
        out.add != nullptr ? reinterpret_cast<const char*>(out.add) : static_cast<const char*>(out.c);
    const int64_t ld = out.add != nullptr ? out.ld_add * 4 : out.ldc * (out.c_is_bf16 ? 2 : 4);
    const int64_t pace = k < 2 * kR * kPace ? k / (2 * kR) + 1 : kPace;
    for (int line = 0; k > 0; ++line) {
      if (line < 2 * kR) __builtin_prefetch(c + line / 2 * ld + line % 2 * 64, 0, 2);
      const int64_t steps = smaller(pace, k);
      k -= steps;
      for (int64_t at = 0; at < steps; ++at, a += kWidth, b += kColumns) {
        V column[kV];
        LIGNUM_UNROLL
        for (int j = 0; j < kV; ++j) column[j] = Ops::load(b + j * kWidth);
        LIGNUM_UNROLL
        for (int i = 0; i < kR; ++i) {
          const V row = Ops::set1(a[i]);
          LIGNUM_UNROLL
          for (int j = 0; j < kV; ++j) sum[i][j] = Ops::fma(row, column[j], sum[i][j]);
        }
      }
    }
    const auto scale = [&] {
      LIGNUM_UNROLL
      for (int j = 0; j < kV; ++j) {
        const V column = Ops::load_n(out.column_scale + j * kWidth,
                                     static_cast<int>(smaller(kWidth, out.columns - j * kWidth)));
        LIGNUM_UNROLL
        for (int i = 0; i < kR; ++i)
          sum[i][j] = Ops::mul(Ops::mul(sum[i][j], Ops::set1(out.row_scale[i])), column);
      }
    };
    if (out.scales_part) scale();
    if (out.add != nullptr) {
      LIGNUM_UNROLL
      for (int i = 0; i < kR; ++i) {
        const float* add = out.add + i * out.ld_add;
        LIGNUM_UNROLL
        for (int j = 0; j < kV; ++j) {
          const int n = static_cast<int>(smaller(kWidth, out.columns - j * kWidth));
          sum[i][j] = Ops::add(n == kWidth ? Ops::load(add + j * kWidth) : Ops::load_n(add + j * kWidth, n),
                               sum[i][j]);
        }
      }
    }
    if (out.row_scale != nullptr && !out.scales_part) scale();
    LIGNUM_UNROLL
    for (int i = 0; i < kR; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < kV; ++j) {
        const int n = static_cast<int>(smaller(kWidth, out.columns - j * kWidth));
        const int64_t at = i * out.ldc + j * kWidth;
        if (out.c_is_bf16) {
          store_some(static_cast<uint16_t*>(out.c) + at, sum[i][j], n);
        } else {
          store_some(static_cast<float*>(out.c) + at, sum[i][j], n);
        }
      }
    }
  }

  template <class T>
  LIGNUM_INLINE void store_some(T* p, V v, int n) {
    if (n == kWidth) {
      Ops::store(p, v);
    } else {
      Ops::store_n(p, v, n);
    }
  }

  using TileFn = void (*)(int64_t, const float*, const float*, const Out&);

  // The tile of exactly that many rows (1..kRows) and enough vectors for the columns.
  static TileFn tile_of(int rows, int columns) {
    static constexpr Table<1> kOne{};
    static constexpr Table<2> kTwo{};
    return columns <= kWidth ? kOne.fn[rows - 1] : kTwo.fn[rows - 1];
  }

  // C [rows, columns] from packed panels, the first k of their k: A was packed with packed_k. c, ldc, add and
  // ld_add as in Out. One panel of B stays in L1 while the panels of A pass.
  static void multiply(int64_t rows, int64_t columns, int64_t k, const float* a, int64_t packed_k,
                       const float* b, Out out) {
    for (int64_t j = 0; j < columns; j += kColumns, b += kColumns * k) {
      out.columns = static_cast<int>(smaller(kColumns, columns - j));
      const TileFn whole = tile_of(kRows, out.columns);
      const float* panel = a;
      for (int64_t i = 0; i < rows; i += kRows, panel += kWidth * packed_k) {
        const int r = static_cast<int>(smaller(kRows, rows - i));
        (r == kRows ? whole : tile_of(r, out.columns))(k, panel, b, out.at(i, j));
      }
    }
  }

 private:
  template <int kV>
  struct Table {
    TileFn fn[kRows];
    constexpr Table() : fn{} { fill<kRows>(); }
    template <int kR>
    constexpr void fill() {
      fn[kR - 1] = &tile<kR, kV>;
      if constexpr (kR > 1) fill<kR - 1>();
    }
  };
};

}  // namespace lignum::kernels
