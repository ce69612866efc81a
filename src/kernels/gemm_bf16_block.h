// The path of one way. Internal; for ISA files only (isa.h).
#pragma once

#include "kernels/bf16_tiles.h"
#include "kernels/gemm_bf16.h"

namespace lignum::kernels {

template <class Way>
struct GemmBf16 {
  static const char* refuses(const Gemm& g) {
    if (g.scale_k % kTileK != 0) return "its tiles of k are no multiples of 32";
    return g.a != DType::f32 && g.b != DType::f32 ? nullptr : "an operand is f32";
  }
  static void multiply(const TileProduct& x) {
    Way::begin();
    Bf16Tiles<Way>::multiply(x);
    Way::end();
  }
  static void pack_a(DType dtype, const void* src, int64_t ld, bool across, int64_t lines, int64_t k,
                     char* to) {
    with_type(dtype, src, [&](const auto* x) { Bf16Tiles<Way>::pack_a(x, ld, across, lines, k, to); });
  }
  static void pack_b(DType dtype, const void* src, int64_t ld, bool across, int64_t lines, int64_t k,
                     char* to) {
    with_type(dtype, src, [&](const auto* x) { Bf16Tiles<Way>::pack_b(x, ld, across, lines, k, to); });
  }
  template <class F>
  LIGNUM_INLINE void with_type(DType dtype, const void* p, F fn) {
    if (dtype == DType::f8e4m3fn) return fn(static_cast<const E4m3*>(p));
    if (dtype == DType::f8e5m2) return fn(static_cast<const E5m2*>(p));
    fn(static_cast<const uint16_t*>(p));
  }
  static constexpr GemmBf16Path path(Bf16Dot dot) { return {dot, &refuses, &pack_a, &pack_b, &multiply}; }
};

}  // namespace lignum::kernels
