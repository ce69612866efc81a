// GEMM's blocks as panels of floats, for any Ops. Internal; included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/float8.h"
#include "kernels/gemm_loop.h"
#include "kernels/panels.h"

namespace lignum::kernels {

template <class Ops>
struct GemmBlock {
  using P = Panels<Ops>;
  static constexpr int64_t kMc = kGemmMc / Ops::kRows * Ops::kRows;
  static int64_t block_of(const Gemm&) { return kGemmKc; }

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

  static void pack_a(const Gemm& g, const GemmScratch& scratch, const void* a, int64_t i, int64_t rows,
                     int64_t p, int64_t kc, float* workspace) {
    with_type(g.a, a, [&](const auto* x) {
      P::pack_a(g.trans_a ? x + p * g.lda + i : x + i * g.lda + p, g.lda, !g.trans_a, rows, kc,
                workspace + scratch.a);
    });
  }
  static void pack_b(const Gemm& g, const GemmScratch& scratch, const void* b, int64_t j, int64_t columns,
                     int64_t p, int64_t kc, float* workspace) {
    with_type(g.b, b, [&](const auto* x) {
      P::pack_b(g.trans_b ? x + j * g.ldb + p : x + p * g.ldb + j, g.ldb, g.trans_b, columns, kc,
                workspace + scratch.b);
    });
  }
  static void multiply(const GemmScratch& scratch, int64_t rows, int64_t columns, int64_t kc,
                       const float* workspace, const TileOut& out) {
    P::multiply(rows, columns, kc, workspace + scratch.a, kc, workspace + scratch.b, out);
  }

  static const char* refuses(const Gemm&) { return nullptr; }

  static constexpr GemmPath path(const char* name, Isa isa) {
    return GemmPath{name, isa, &refuses, Ops::kRows, P::kColumns, &GemmLoop<GemmBlock>::block};
  }
};

}  // namespace lignum::kernels
