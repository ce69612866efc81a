// GEMM of two operands of bf16 or 8-bit floats by pairs (kernels/tile_product.h). Internal: gemm.cc comes
// here.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"
#include "kernels/tile_product.h"

namespace lignum::kernels {

struct GemmBf16Path {
  Bf16Dot dot;
  const char* (*refuses)(const Gemm&);  // nullptr, or why this path does not take the shape
  // Bf16Tiles::pack_a and pack_b of elements of that type: `across`: stored [k, lines], else [lines, k].
  void (*pack_a)(DType, const void* src, int64_t ld, bool across, int64_t lines, int64_t k, char* to);
  void (*pack_b)(DType, const void* src, int64_t ld, bool across, int64_t lines, int64_t k, char* to);
  void (*multiply)(const TileProduct&);
};

extern const GemmBf16Path kGemmVdpbf16ps, kGemmAmx;

// The path of that way, nullptr where it is fma's business: the way is fma, or the path refuses the product.
const GemmBf16Path* gemm_bf16_path(Bf16Dot, const Gemm&);

// As gemm_workspace() and gemm(), for products that a path takes, m, n, k and batch at least 1.
int64_t gemm_bf16_workspace(const Gemm&, int threads);
void gemm_bf16(const GemmBf16Path&, const Gemm&, const void* a, const void* b, void* c, void* workspace,
               Parallel& pool);

}  // namespace lignum::kernels
