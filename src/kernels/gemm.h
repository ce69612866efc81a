// C = A B, batched; fp32 or bf16 storage, fp32 accumulation. A and B may be 8-bit floats: these are exact in
// bf16, so a product of them, or of one with bf16, is that of the same values in bf16, bit for bit.
//
// Bits. Element C[i, j] is a function of row i of A, column j of B and k, and of nothing else: not of m, n,
// i, j, the batch, the layout, leading dimensions, alignment, threads; and it is the same on every ISA. The
// sum over k is cut into blocks of 256 products; inside a block it is one chain of fused multiply-adds from 0
// in ascending k, the blocks' sums are added in ascending order in fp32, and the result is rounded once to
// C's type; where rows and columns are scaled, the sum is multiplied by the row's and then by the column's
// factor before that. (Payloads and signs of NaN are not covered.) NaN and infinity propagate, k = 0 gives
// zeros.
//
// Where tiles of k have factors of their own (scale_k), a block also ends where a tile does, and each block's
// sum is multiplied by the factors of its tile's row and then of its column before it is added, in ascending
// order. So it is in the ways below, too, in each of which a tile's sum begins from 0: by pairs a tile is one
// block (amx and vdpbf16ps take tiles that are multiples of 32, other tiles are fma's business), by fp16
// blocks are of 512, or a tile up to 704.
//
// So it is where Choice::bf16_dot is fma or an operand is f32. Dots of two operands of bf16 or less in the
// other ways are a function of the same and nothing else, too, but their sums go by pairs of k:
//   vdpbf16ps: one chain over all k; of a pair the odd k's product is added first, then the even k's;
//   amx: blocks of 32 products; in a block one chain of the even k and one of the odd k, each ascending from
//   0; the
//     sum of the two is added to the blocks before.
// Every step rounds to nearest even, subnormal operands and results count as zeros. With u = 2^-24 an element
// is within (n + 1) u sum |a b| + 2^-126 (sum (|a| + |b|) + 2 k) of the exact one before its last rounding, n
// = k (vdpbf16ps) or k / 32 + 18 (amx).
//
// With Choice::fp8_accumulation = fp16_64 a dot of two operands of 8-bit floats is summed in blocks of 512
// products (one block up to 704), each row of A and column of B times a power of two a block (its largest
// magnitude to [16, 32), at most 2^15). Of 64 products the even k are one chain of fp16 fused multiply-adds
// from 0 in ascending k, the odd k another; their sum is rounded to fp16, and these sums are added in fp32 in
// ascending k from 0; the powers are undone, and blocks added in fp32. A function of the same and nothing
// else. The error of normal data is 5e-4 of sqrt(k) rms(a) rms(b) in the mean, a fiftieth of E4M3's own
// rounding. Rows and columns that hold NaN or infinity give NaN.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/status.h"
#include "kernels/isa.h"

namespace lignum::kernels {

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false;                  // A is stored [k, m], else [m, k]
  bool trans_b = false;                  // B is stored [n, k], else [k, n]
  DType a = DType::f32, b = DType::f32;  // f32, bf16, f8e4m3fn or f8e5m2 each
  DType c = DType::f32;                  // f32 or bf16
  // Elements from one stored row to the next; C is stored [m, n].
  int64_t lda = 0, ldb = 0, ldc = 0;
  // Elements from one matrix of the batch to the next; 0 for A or B repeats it, the matrices of C do not
  // overlap.
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  // Factors of C's rows [m] and columns [n], both or neither, of each matrix of the batch. scale_k > 0, which
  // divides k: of each tile of so many products, row_scale [k / scale_k, m] and column_scale [k / scale_k,
  // n].
  const float* row_scale = nullptr;
  const float* column_scale = nullptr;
  int64_t scale_k = 0;
};

// ok, or a user error that names the field, its value and what is allowed.
Status gemm_supported(const Gemm&);

// Bytes of workspace, a multiple of 64, for a pool of that many threads. Does not depend on the choice.
int64_t gemm_workspace(const Gemm&, int threads);

// Overwrites C. gemm_supported(g) holds; workspace has gemm_workspace(g, pool.threads()) bytes, aligned to
// 64, free for reuse on return. A, B, C need only the alignment of an element; C overlaps neither A nor B.
// Allocates nothing.
void gemm(Choice, const Gemm&, const void* a, const void* b, void* c, void* workspace, Parallel& pool);

// The same bits on the calling thread, for use inside a task; workspace: gemm_workspace(g, 1).
void gemm_serial(Choice, const Gemm&, const void* a, const void* b, void* c, void* workspace);

}  // namespace lignum::kernels
