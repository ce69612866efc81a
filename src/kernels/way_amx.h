// bf16 dots by AMX tiles. For *_amx.cc files only (isa.h).
#pragma once

#include "kernels/bf16_tiles.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels::amx {

// Bits: TDPBF16PS adds the 16 products of even k of a tile in one chain and those of odd k in another, both
// from zero, and their sum to the accumulator; subnormals count as zeros, rounding is to nearest even.
struct Way {
  struct Ops : avx512::Ops {};

  // Tiles 0 to 3 hold sums, 4 and 5 A, 6 and 7 B: 16 rows of 64 bytes each. A thread calls begin() before
  // products and end() after them: tiles in use cost each switch of threads 8 KiB.
  LIGNUM_INLINE void begin() {
    alignas(64) uint8_t config[64] = {1};  // palette 1
    LIGNUM_UNROLL
    for (int i = 0; i < 8; ++i) {
      config[16 + 2 * i] = 64;  // bytes of a row
      config[48 + i] = 16;      // rows
    }
    written(config);
    _tile_loadconfig(config);
  }
  LIGNUM_INLINE void end() { _tile_release(); }

  // g++ 12 does not tell its optimiser what a tile load or ldtilecfg reads: the stores before have to be
  // done.
  LIGNUM_INLINE void written(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

  template <int kA, int kB>
  LIGNUM_INLINE void tile(const TileProduct& x, const char* a, const char* b, const float* from,
                          int64_t from_row, float* to, int64_t to_row) {
    written(a);
    if (from != nullptr) {
      _tile_loadd(0, from, 64);
      if constexpr (kB == 2) _tile_loadd(1, from + 256, 64);
      if constexpr (kA == 2) _tile_loadd(2, from + from_row, 64);
      if constexpr (kA == 2 && kB == 2) _tile_loadd(3, from + from_row + 256, 64);
    } else {
      _tile_zero(0);
      if constexpr (kB == 2) _tile_zero(1);
      if constexpr (kA == 2) _tile_zero(2);
      if constexpr (kA == 2 && kB == 2) _tile_zero(3);
    }
    const int64_t a_panel = x.a_panel, b_panel = x.b_panel;
    for (int64_t t = 0; t < x.k_tiles; ++t, a += kTileBytes, b += kTileBytes) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kB == 2) {
        _tile_loadd(7, b + b_panel, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kA == 2) {
        _tile_loadd(5, a + a_panel, 64);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kB == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, to, 64);
    if constexpr (kB == 2) _tile_stored(1, to + 256, 64);
    if constexpr (kA == 2) _tile_stored(2, to + to_row, 64);
    if constexpr (kA == 2 && kB == 2) _tile_stored(3, to + to_row + 256, 64);
  }
};

}  // namespace lignum::kernels::amx
