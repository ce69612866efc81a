// Where a tile of a product goes. Internal; always inlined (isa.h).
#pragma once

#include <cstdint>

namespace lignum::kernels {

// c[i * ldc + j] = the tile (+ add[i * ld_add + j] if add) (* row_scale[i] * column_scale[j] if these), for
// j < columns; with scales_part the tile is scaled before `add` is added.
struct TileOut {
  const float* add = nullptr;
  int64_t ld_add = 0;
  void* c = nullptr;
  int64_t ldc = 0;
  bool c_is_bf16 = false;
  int columns = 0;
  const float* row_scale = nullptr;
  const float* column_scale = nullptr;
  bool scales_part = false;

  // The tile i rows below and j columns beside.
  [[gnu::always_inline]] TileOut at(int64_t i, int64_t j) const {
    TileOut to = *this;
    to.c = static_cast<char*>(c) + (i * ldc + j) * (c_is_bf16 ? 2 : 4);
    if (add != nullptr) to.add = add + i * ld_add + j;
    if (row_scale != nullptr) {
      to.row_scale = row_scale + i;
      to.column_scale = column_scale + j;
    }
    return to;
  }
};

}  // namespace lignum::kernels
