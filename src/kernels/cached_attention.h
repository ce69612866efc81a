// Causal attention of new tokens over a cache of keys and values.
//
//   out[b, t] = sum_j p[j] v[b, j],  p = softmax_j(scale q[b, t] . k[b, j]) over j <= start[b] + t, for t <
//   count[b]; out[b, t] = 0 for the other t.
//
// Layouts, dense: q, out [B, T, H, D]; k, v [B, P, Hkv, D], the cache with the new tokens' rows written
// already; start, count [B]. Query head h reads head h / (H / Hkv). The bits of a token are those that
// attention.h gives it in a sequence that it ends: they depend neither on T nor on how the sequence came into
// the cache.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/status.h"
#include "kernels/isa.h"

namespace lignum::kernels {

struct CachedAttention {
  int64_t batch = 1, tokens = 0, capacity = 0, heads = 0, kv_heads = 0, dim = 0;
  DType dtype = DType::f32;  // of q, k, v and out: f32 or bf16
  float scale = 1.0f;
  int64_t window = 0;    // positions that a token sees, its own among them; 0: all
  float softcap = 0.0f;  // 0: none
};

// ok, or a user error that names the field, its value and what is allowed.
Status cached_attention_supported(const CachedAttention&);
// start and count lie in the cache: 0 <= count <= T, 0 <= start <= P - count; the error names the row.
Status cached_rows_fit(int64_t batch, int64_t tokens, int64_t capacity, const int32_t* start,
                       const int32_t* count);

// Bytes of workspace, a multiple of 64, for a pool of that many threads. Does not depend on the ISA.
int64_t cached_attention_workspace(const CachedAttention&, int threads);

// The shape is supported and the rows fit; workspace is aligned to 64 and free for reuse on return; out
// overlaps no input. Allocates nothing.
void cached_attention(Choice, const CachedAttention&, const void* q, const void* k, const void* v,
                      const int32_t* start, const int32_t* count, void* out, void* workspace, Parallel& pool);

}  // namespace lignum::kernels
