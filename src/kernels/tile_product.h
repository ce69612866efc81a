// Operands of bf16 dots by pairs, packed, and a product of them: what GEMM and attention share in the ways
// vdpbf16ps and amx. Internal.
//
// A panel is 16 lines of an operand (rows of A, columns of B) as tiles of 1 KiB, one for each 32 of k,
// ascending; lines and k that do not exist are zeros. Rows of a tile are 64 bytes:
//   of A: row r is line r's 32 values;
//   of B: row p is, for each of the 16 lines, the pair (k = 2p, 2p + 1).
#pragma once

#include <cstdint>

namespace lignum::kernels {

constexpr int64_t kTileLines = 16, kTileK = 32, kTileBytes = 1024;

[[gnu::always_inline]] constexpr int64_t tiles_of(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
[[gnu::always_inline]] constexpr int64_t panel_bytes(int64_t k) { return tiles_of(k, kTileK) * kTileBytes; }
// Bytes of the panels of so many lines; whole pairs of panels, as the product reads them.
[[gnu::always_inline]] constexpr int64_t packed_bytes(int64_t lines, int64_t k) {
  return tiles_of(lines, 2 * kTileLines) * 2 * panel_bytes(k);
}

// C [rows, columns] = A B over k_tiles tiles of k. Pairs are added up in ascending k from `partial` or zero;
// how k is cut into calls leaves no trace in the bits.
struct TileProduct {
  int64_t rows = 0, columns = 0, k_tiles = 0;
  const char* a = nullptr;  // panels, a_panel bytes apart
  int64_t a_panel = 0;
  const char* b = nullptr;
  int64_t b_panel = 0;
  // Sums before and after this k: tiles of [16, 16] floats, from one row of them to the next partial_row
  // floats. add: begin there; store: end there, and leave C alone.
  float* partial = nullptr;
  int64_t partial_row = 0;
  bool add = false, store = false;
  void* c = nullptr;
  int64_t ldc = 0;  // elements
  bool c_is_bf16 = false;
  // Factors of C's rows and columns, both or neither: of the sums that go to C. scale_tiles > 0: of each
  // scale_tiles tiles of k, whose sum begins from zero, is scaled and added to those before; from one's
  // factors to the next's are that many floats.
  const float* row_scale = nullptr;
  const float* column_scale = nullptr;
  int64_t scale_tiles = 0, row_scale_step = 0, column_scale_step = 0;
};

}  // namespace lignum::kernels
