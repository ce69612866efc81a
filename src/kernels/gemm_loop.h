// The cache-blocked loop over one piece of C, for any way of packing and multiplying its blocks. Internal;
// included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/gemm_path.h"
#include "kernels/tile_out.h"
#include "kernels/unroll.h"

namespace lignum::kernels {

// Blocks: kMc rows of A are packed at a time; block_of(g) products of k are a block. pack_a packs rows
// [i, i + rows) of A and pack_b columns [j, j + columns) of B, both of k [p, p + kc), to the workspace;
// multiply multiplies what was packed.
template <class Blocks>
struct GemmLoop {
  LIGNUM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  static void block(const Gemm& g, const GemmScratch& scratch, const void* a, const void* b, void* c,
                    int64_t row, int64_t rows, int64_t column, int64_t columns, float* workspace) {
    constexpr int64_t kMc = Blocks::kMc;
    const int64_t tile = scaled_tile(g);
    const int64_t block = smaller(Blocks::block_of(g), tile);
    const bool bf16_c = g.c == DType::bf16;
    const bool partial = bf16_c && g.k > block;
    const int64_t row_step = partial ? kGemmPartialRows : rows;
    for (int64_t r0 = row; r0 < row + rows; r0 += row_step) {
      const int64_t r1 = smaller(r0 + row_step, row + rows);
      for (int64_t j = column; j < column + columns; j += kGemmNc) {
        const int64_t nc = smaller(kGemmNc, column + columns - j);
        for (int64_t p = 0, kc = 0; p < g.k; p += kc) {
          kc = smaller(block, tile - p % tile);
          const bool last = p + kc == g.k;
          Blocks::pack_b(g, scratch, b, j, nc, p, kc, workspace);
          for (int64_t i = r0; i < r1; i += kMc) {
            const int64_t mc = smaller(kMc, r1 - i);
            Blocks::pack_a(g, scratch, a, i, mc, p, kc, workspace);
            TileOut out;
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
            out.scales_part = g.scale_k > 0;
            if (g.row_scale != nullptr && (last || out.scales_part)) {
              out.row_scale = g.row_scale + p / tile * g.m + i;
              out.column_scale = g.column_scale + p / tile * g.n + j;
            }
            Blocks::multiply(scratch, mc, nc, kc, workspace, out);
          }
        }
      }
    }
  }
};

}  // namespace lignum::kernels
