// The cache-blocked loop over one piece of C, for any Ops. Internal; included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/float8.h"
#include "kernels/gemm_path.h"
#include "kernels/panels.h"

namespace lignum::kernels {

template <class Ops>
struct GemmBlock {
  using P = Panels<Ops>;

  // fn(p) with p typed as the dtype's elements (bf16: their bits).
  template <class F>
  LIGNUM_INLINE void with_type(DType dtype, const void* p, F fn) {
    switch (dtype) {
      case DType::bf16:
        return fn(static_cast<const uint16_t*>(p));
      case DType::f8e4m3fn:
        return fn(static_cast<const E4m3*>(p));
      case DType::f8e5m2:
        return fn(static_cast<const E5m2*>(p));
      default:
        return fn(static_cast<const float*>(p));
    }
  }

  // Rows [i, i + rows) of A, or columns [j, j + columns) of B, and [p, p + kc) of k.
  static void pack_a(const Gemm& g, const void* a, int64_t i, int64_t rows, int64_t p, int64_t kc,
                     float* packed) {
    with_type(g.a, a, [&](const auto* x) {
      P::pack_a(g.trans_a ? x + p * g.lda + i : x + i * g.lda + p, g.lda, !g.trans_a, rows, kc, packed);
    });
  }
  static void pack_b(const Gemm& g, const void* b, int64_t j, int64_t columns, int64_t p, int64_t kc,
                     float* packed) {
    with_type(g.b, b, [&](const auto* x) {
      P::pack_b(g.trans_b ? x + j * g.ldb + p : x + p * g.ldb + j, g.ldb, g.trans_b, columns, kc, packed);
    });
  }

  static void block(const Gemm& g, const GemmScratch& scratch, const void* a, const void* b, void* c,
                    int64_t row, int64_t rows, int64_t column, int64_t columns, float* workspace) {
    const bool bf16_c = g.c == DType::bf16;
    const bool partial = bf16_c && g.k > kGemmKc;
    const int64_t row_step = partial ? kGemmPartialRows : rows;
    constexpr int64_t kMc = kGemmMc / Ops::kRows * Ops::kRows;
    float* packed_a = workspace + scratch.a;
    float* packed_b = workspace + scratch.b;
    for (int64_t r0 = row; r0 < row + rows; r0 += row_step) {
      const int64_t r1 = P::smaller(r0 + row_step, row + rows);
      for (int64_t j = column; j < column + columns; j += kGemmNc) {
        const int64_t nc = P::smaller(kGemmNc, column + columns - j);
        for (int64_t p = 0; p < g.k; p += kGemmKc) {
          const int64_t kc = P::smaller(kGemmKc, g.k - p);
          const bool last = p + kc == g.k;
          pack_b(g, b, j, nc, p, kc, packed_b);
          for (int64_t i = r0; i < r1; i += kMc) {
            const int64_t mc = P::smaller(kMc, r1 - i);
            pack_a(g, a, i, mc, p, kc, packed_a);
            typename P::Out out;
            if (partial && !last) {
              out.c = workspace + scratch.partial + (i - r0) * nc;
              out.ldc = nc;
            } else {
              out.c = static_cast<char*>(c) + (i * g.ldc + j) * (bf16_c ? 2 : 4);
              out.ldc = g.ldc;
              out.c_is_bf16 = bf16_c;
            }
            if (p > 0) {
              out.add =
                  partial ? workspace + scratch.partial + (i - r0) * nc : static_cast<const float*>(out.c);
              out.ld_add = partial ? nc : g.ldc;
            }
            if (last && g.row_scale != nullptr) {
              out.row_scale = g.row_scale + i;
              out.column_scale = g.column_scale + j;
            }
            P::multiply(mc, nc, kc, packed_a, kc, packed_b, out);
          }
        }
      }
    }
  }

  static const char* refuses(const Gemm&) { return nullptr; }

  static constexpr GemmPath path(const char* name, Isa isa) {
    return GemmPath{name, isa, &refuses, Ops::kRows, P::kColumns, &block};
  }
};

}  // namespace lignum::kernels
