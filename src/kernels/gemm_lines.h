// The GEMM of few rows against stored lines (A [m, k], B [n, k]: a decoding step's matmuls), bound by the
// reading of B, which is read once and never packed. Internal; included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/gemm_path.h"
#include "kernels/lines.h"

namespace lignum::kernels {

template <class Ops>
struct GemmLines {
  using L = Lines<Ops>;
  using V = typename Ops::V;
  static constexpr int kWidth = Ops::kWidth;

  static const char* refuses(const Gemm& g) {
    if (g.trans_a && g.m > 1) return "A is stored [k, m]";
    if (!g.trans_b) return "B is stored [k, n]";
    if (g.m > kGemmLinesRows) return "too many rows";
    if (g.row_scale != nullptr) return "its rows and columns are scaled";
    for (const DType t : {g.a, g.b})
      if (t != DType::f32 && t != DType::bf16) return "an operand is of 8 bits";
    return nullptr;
  }

  // A's rows as floats, ld apart: in place, or widened into the workspace (gemm_scratch leaves room).
  template <class A>
  LIGNUM_INLINE const float* floats_of(const Gemm& g, const A* a, int64_t rows, float* workspace,
                                       int64_t& ld) {
    const int64_t each = g.trans_a ? g.lda : 1;  // stored [k, 1]: one row, its elements lie lda apart
    if constexpr (sizeof(A) == sizeof(float)) {
      if (each == 1) {
        ld = g.lda;
        return a;
      }
    }
    ld = g.k;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < g.k; ++i) {
        const A x = a[r * g.lda + i * each];
        if constexpr (sizeof(A) == sizeof(float)) {
          workspace[r * ld + i] = x;
        } else {
          workspace[r * ld + i] = __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
        }
      }
    }
    return workspace;
  }

  template <int kR, class A, class B>
  static void columns(const Gemm& g, const A* a, const B* b, char* c, int64_t column, int64_t count,
                      float* workspace) {
    int64_t ld = 0;
    const float* x = floats_of(g, a, kR, workspace, ld);
    for (int64_t j = column; j < column + count; j += kWidth) {
      const int64_t left = column + count - j;
      const int lines = static_cast<int>(left < kWidth ? left : kWidth);
      V total[kR];
      LIGNUM_UNROLL
      for (int r = 0; r < kR; ++r) total[r] = Ops::zero();
      for (int64_t p = 0; p < g.k; p += kGemmKc) {
        const int64_t kc = g.k - p < kGemmKc ? g.k - p : kGemmKc;
        V sum[kR];
        LIGNUM_UNROLL
        for (int r = 0; r < kR; ++r) sum[r] = Ops::zero();
        L::template dot<kR>(b + j * g.ldb + p, g.ldb, lines, kc, x + p, ld, kWidth * g.ldb, sum);
        LIGNUM_UNROLL
        for (int r = 0; r < kR; ++r) total[r] = p == 0 ? sum[r] : Ops::add(total[r], sum[r]);
      }
      LIGNUM_UNROLL
      for (int r = 0; r < kR; ++r) {
        const int64_t at = r * g.ldc + j;
        if (g.c == DType::bf16) {
          Ops::store_n(reinterpret_cast<uint16_t*>(c) + at, total[r], lines);
        } else {
          Ops::store_n(reinterpret_cast<float*>(c) + at, total[r], lines);
        }
      }
    }
  }

  template <int kR, class A, class B>
  static void rows(const Gemm& g, const A* a, const B* b, char* c, int64_t row, int64_t rows_left,
                   int64_t column, int64_t count, float* workspace) {
    if constexpr (kR > 1) {
      if (rows_left < kR) return rows<kR - 1>(g, a, b, c, row, rows_left, column, count, workspace);
    }
    columns<kR>(g, a + row * g.lda, b, c + row * g.ldc * (g.c == DType::bf16 ? 2 : 4), column, count,
                workspace);
  }

  static void block(const Gemm& g, const GemmScratch&, const void* a, const void* b, void* c, int64_t row,
                    int64_t count_rows, int64_t column, int64_t count, float* workspace) {
    const auto with_b = [&](const auto* typed_a) {
      char* to = static_cast<char*>(c);
      if (g.b == DType::bf16) {
        rows<kGemmLinesRows>(g, typed_a, static_cast<const uint16_t*>(b), to, row, count_rows, column, count,
                             workspace);
      } else {
        rows<kGemmLinesRows>(g, typed_a, static_cast<const float*>(b), to, row, count_rows, column, count,
                             workspace);
      }
    };
    if (g.a == DType::bf16) {
      with_b(static_cast<const uint16_t*>(a));
    } else {
      with_b(static_cast<const float*>(a));
    }
  }

  static constexpr GemmPath path(Isa isa) { return GemmPath{"lines", isa, &refuses, 1, kWidth, &block}; }
};

}  // namespace lignum::kernels
