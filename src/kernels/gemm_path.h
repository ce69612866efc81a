// Between gemm.cc and the ISA files. Internal.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"

namespace lignum::kernels {

// Blocking, in elements; the optimum is flat (+-2 % for KC 192..384, NC 512..1024). KC fixes bits: gemm.h.
constexpr int64_t kGemmKc = 256;   // a panel of B, [256, 32] floats, stays in L1
constexpr int64_t kGemmNc = 1024;  // packed B, 1 MiB, stays in L2
constexpr int64_t kGemmMc = 112;   // packed A, 128 KiB, stays in L2 beside it
// Rows whose fp32 partial sums are kept in the workspace when C is bf16 and k > KC.
constexpr int64_t kGemmPartialRows = 448;
constexpr int64_t kGemmLinesRows = 4;  // rows up to which B's lines are read as they lie (gemm_lines.h)

// A block of k of the path of 8-bit floats by fp16: all of it, where it is not much more than a block.
constexpr int64_t float8_block(int64_t k) { return k <= 704 ? k : 512; }

// The products that share a row's and a column's factor.
inline int64_t scaled_tile(const Gemm& g) { return g.scale_k > 0 ? g.scale_k : g.k; }

// Where each part of a thread's workspace begins, in floats.
struct GemmScratch {
  int64_t a = 0, b = 0, partial = 0, end = 0;
};
GemmScratch gemm_scratch(const Gemm&);
GemmScratch float8_scratch(const Gemm&);

struct GemmPath {
  const char* name;
  Isa isa;
  const char* (*refuses)(const Gemm&);  // nullptr, or why this path does not take the shape
  int64_t row_unit, column_unit;        // where a cut of C wastes nothing
  // C[row .. row + rows, column .. column + columns] of one matrix of the batch.
  void (*block)(const Gemm&, const GemmScratch&, const void* a, const void* b, void* c, int64_t row,
                int64_t rows, int64_t column, int64_t columns, float* workspace);
};

extern const GemmPath kGemmScalar, kGemmAvx2, kGemmAvx512;
extern const GemmPath kGemmFloat8Fp16;  // of Fp8Accumulation::fp16_64
extern const GemmPath kGemmLinesScalar, kGemmLinesAvx2, kGemmLinesAvx512;

}  // namespace lignum::kernels
