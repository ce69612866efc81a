// Dot products of stored lines with a few vectors: what a GEMM of few rows and a decoding step's scores are
// made of. Internal; included by ISA files only (isa.h).
//
// kWidth lines are read side by side and transposed in registers, so that lane i of a sum belongs to line i
// and each sum is one chain of fused multiply-adds in ascending k: the bits of the blocked GEMM (gemm.h),
// with every byte of the lines read once, in order, and nothing written but the results. A 16x16 tile of f32
// costs 64 shuffles for 1 KiB of lines: 16 bytes a cycle, some four times what one core of a server gets from
// memory.
#pragma once

#include <cstdint>

#include "kernels/unroll.h"

namespace lignum::kernels {

template <class Ops>
struct Lines {
  using V = typename Ops::V;
  static constexpr int kWidth = Ops::kWidth;

  // sum[r][i] += the products of line i with x[r], over [0, k), in one chain each. Lines beyond `lines`
  // repeat the last one. `ahead`: elements from a line to what will be read after these lines (the next ones,
  // say), which is asked for on the way.
  template <int kR, class T>
  LIGNUM_INLINE void dot(const T* first, int64_t ld, int lines, int64_t k, const float* x, int64_t ldx,
                         int64_t ahead, V (&sum)[kR]) {
    const T* from[kWidth];
    LIGNUM_UNROLL
    for (int i = 0; i < kWidth; ++i) from[i] = first + (i < lines ? i : lines - 1) * ld;
    V r[kWidth];
    int64_t at = 0;
    for (; at + kWidth <= k; at += kWidth) {
      LIGNUM_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        __builtin_prefetch(from[i] + at + ahead);
        r[i] = Ops::load(from[i] + at);
      }
      Ops::transpose(r);
      LIGNUM_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        LIGNUM_UNROLL
        for (int m = 0; m < kR; ++m) sum[m] = Ops::fma(Ops::set1(x[m * ldx + at + i]), r[i], sum[m]);
      }
    }
    if (at == k) return;
    const int rest = static_cast<int>(k - at);
    LIGNUM_UNROLL
    for (int i = 0; i < kWidth; ++i) r[i] = Ops::load_n(from[i] + at, rest);
    Ops::transpose(r);
    LIGNUM_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      if (i < rest) {
        LIGNUM_UNROLL
        for (int m = 0; m < kR; ++m) sum[m] = Ops::fma(Ops::set1(x[m * ldx + at + i]), r[i], sum[m]);
      }
    }
  }
};

}  // namespace lignum::kernels
