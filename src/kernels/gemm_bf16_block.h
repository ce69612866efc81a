// The path of one way. Internal; for ISA files only (isa.h).
#pragma once

#include "kernels/bf16_tiles.h"
#include "kernels/gemm_bf16.h"

namespace lignum::kernels {

template <class Way>
struct GemmBf16 {
  static const char* refuses(const Gemm& g) {
    return g.a == DType::bf16 && g.b == DType::bf16 ? nullptr : "an operand is not bf16";
  }
  static void multiply(const TileProduct& x) {
    Way::begin();
    Bf16Tiles<Way>::multiply(x);
    Way::end();
  }
  static constexpr GemmBf16Path path(Bf16Dot dot) {
    return {dot, &refuses, &Bf16Tiles<Way>::pack_a, &Bf16Tiles<Way>::pack_b, &multiply};
  }
};

}  // namespace lignum::kernels
