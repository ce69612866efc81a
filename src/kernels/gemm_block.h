// The cache-blocked loop over one piece of C, for any Ops. Internal; included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/gemm_path.h"
#include "kernels/panels.h"

namespace lignum::kernels {

template <class Ops>
struct GemmBlock {
  using P = Panels<Ops>;

  template <class T>
  static void run(const Gemm& g, const GemmScratch& scratch, const T* a, const void* b, void* c, int64_t row,
                  int64_t rows, int64_t column, int64_t columns, float* workspace) {
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
          if (g.b == DType::bf16) {
            pack_b(g, static_cast<const uint16_t*>(b), j, nc, p, kc, packed_b);
          } else {
            pack_b(g, static_cast<const float*>(b), j, nc, p, kc, packed_b);
          }
          for (int64_t i = r0; i < r1; i += kMc) {
            const int64_t mc = P::smaller(kMc, r1 - i);
            P::pack_a(g.trans_a ? a + p * g.lda + i : a + i * g.lda + p, g.lda, !g.trans_a, mc, kc, packed_a);
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
            P::multiply(mc, nc, kc, packed_a, kc, packed_b, out);
          }
        }
      }
    }
  }

  template <class T>
  static void pack_b(const Gemm& g, const T* b, int64_t j, int64_t nc, int64_t p, int64_t kc, float* packed) {
    P::pack_b(g.trans_b ? b + j * g.ldb + p : b + p * g.ldb + j, g.ldb, g.trans_b, nc, kc, packed);
  }

  static void block(const Gemm& g, const GemmScratch& scratch, const void* a, const void* b, void* c,
                    int64_t row, int64_t rows, int64_t column, int64_t columns, float* workspace) {
    if (g.a == DType::bf16) {
      run(g, scratch, static_cast<const uint16_t*>(a), b, c, row, rows, column, columns, workspace);
    } else {
      run(g, scratch, static_cast<const float*>(a), b, c, row, rows, column, columns, workspace);
    }
  }

  static const char* refuses(const Gemm&) { return nullptr; }

  static constexpr GemmPath path(const char* name, Isa isa) {
    return GemmPath{name, isa, &refuses, Ops::kRows, P::kColumns, &block};
  }
};

}  // namespace lignum::kernels
