// Softmax attention with grouped queries, without the [S, S] matrix (online softmax over blocks of keys:
// Milakov and Gimelshein 2018; the tiling of Dao et al. 2022, with keys along rows so that every softmax step
// is vertical).
//
//   out[i] = sum_j p[i, j] v[j],  p[i, :] = softmax_j(scale q[i] . k[j]),  causal: over j <= i only,
//   window w: over j > i - w only,  softcap c: of c tanh(score / c) (Gemma 2, 2024),
//   segments: over the keys of the query's own document only.
// A query that sees no key has out = 0 and lse = -inf, and gives nothing to any gradient.
//
// Layouts, dense: q, out [B, Sq, H, D]; k, v [B, Sk, Hkv, D]; lse [B, H, Sq] in f32. Query head h reads head
// h / (H / Hkv). lse is the natural logarithm of the sum of exp(scaled score). fp32 arithmetic; stored values
// are rounded once.
//
// i and j are positions. The queries stand in pieces of as many consecutive positions each, and so do the
// keys; where each piece begins is data (AttentionTokens): a rank has some tokens of a row, and meets those
// of others in any order.
//
// Bits. A result depends on its own batch entry and on its (group of) heads only, not on B, H, Hkv, threads
// or alignment, and is the same on every ISA: blocks are 224 positions of a piece, every sum has a fixed
// order: the pieces as they stand. NaN
// propagates to every row that reads it, and may reach rows of the same block that a causal mask hides it
// from (0 * NaN); likewise from one document to another.
//
// bf16 inputs with Choice::bf16_dot other than fma: products by pairs as in kernels/gemm.h, the same bits
// whatever the threads; p (before it is divided by its sum) and, in the gradient, the gradient of the scores
// are rounded to bf16 before they are multiplied. h = 2^-8 bounds such a rounding: beside fma's bounds
// (docs/numerics.md) out and dv have h sum |terms| more, dq and dk h sum |terms| more.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/status.h"
#include "kernels/isa.h"

namespace lignum::kernels {

struct Attention {
  int64_t batch = 1, queries = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;
  DType dtype = DType::f32;  // of q, k, v, out and their gradients: f32 or bf16
  float scale = 1.0f;
  bool causal = true;
  int64_t window = 0;    // positions that a query sees, its own among them; 0: all. Needs causal
  float softcap = 0.0f;  // 0: none
  int64_t query_pieces = 1, key_pieces = 1;  // divide queries and keys
};

// Of the tokens of a call. Null starts: one piece, from position 0 on. Null segments: a row is one document;
// else the number of each token's, 0 to 2^24. Equal numbers are one document wherever they stand; blocks of
// other documents' keys are passed over.
struct AttentionTokens {
  const int32_t* query_starts = nullptr;    // [query_pieces]
  const int32_t* key_starts = nullptr;      // [key_pieces]
  const int32_t* query_segments = nullptr;  // [B, Sq]; both or none
  const int32_t* key_segments = nullptr;    // [B, Sk]
};

// ok, or a user error that names the field, its value and what is allowed.
Status attention_supported(const Attention&);

// ok, or a user error that names the first number of a document, or start of a piece, that is not allowed.
Status tokens_supported(const Attention&, const AttentionTokens&);

// Bytes of workspace, multiples of 64, for a pool of that many threads. Neither depends on the ISA. The
// gradient's holds fp32 sums of dq, dk and dv beside each thread's tiles if dtype is bf16.
int64_t attention_workspace(const Attention&, int threads);
int64_t attention_grad_workspace(const Attention&, int threads);

// The shape and the tokens are supported; workspace is aligned to 64 and free for reuse on return; inputs and
// outputs do not overlap. Allocates nothing.
void attention(Choice, const Attention&, const void* q, const void* k, const void* v, void* out, float* lse,
               void* workspace, Parallel& pool, const AttentionTokens& tokens = {});

// Gradients from the forward's inputs and results; overwrites dq [B, Sq, H, D], dk and dv [B, Sk, Hkv, D].
// out and lse may be those of more keys than these: dq is then what these keys give to it, and dk and dv are
// whole.
void attention_grad(Choice, const Attention&, const void* dout, const void* q, const void* k, const void* v,
                    const void* out, const float* lse, void* dq, void* dk, void* dv, void* workspace,
                    Parallel& pool, const AttentionTokens& tokens = {});

}  // namespace lignum::kernels
