// What attention and its gradient share: their shape, and the scores in their decompositions.
#pragma once

#include <optional>

#include "kernels/attention.h"
#include "ops/facets.h"

namespace lignum::ops {

// q [B, S, H, D], k and v [B, S, Hkv, D]: type errors of the three, and of the attributes.
Status check_attention(const Type& q, const Type& k, const Type& v, const Attrs& attrs);
// With attribute segmented the last input is `segments`, i32 [B, S]: the number of each position's document.
// `without`: how many inputs there are else. An error where they are not as many, or it is of another type.
bool is_segmented(const Attrs& attrs);
Status check_segments(std::span<const Type> in, size_t without, const Type& q, const Attrs& attrs);

kernels::Attention attention_shape(const Type& q, const Type& k, const Attrs& attrs);

// Type of the logarithms of the sums: f32[B, H, S].
Type lse_type(const Type& q);

// Factor 0 walks the batch, factor 1 the heads: those of q and the key heads that they read, which a rank's
// share has only where the ranks divide both numbers.
struct AttentionFactors {
  std::vector<int> q = {0, -1, 1, -1}, kv = {0, -1, 1, -1}, lse = {0, 1, -1};
};

// Pairs of query and key that the causal mask and the window leave; documents are not known before the run.
double attention_pairs(const kernels::Attention&);

// Queries by group of heads: [B, t, H, D] as [B, t, Hkv, H / Hkv, D].
Value grouped(Builder&, Value q, int64_t kv_heads);
// The positions that query i of a row of the batch sees, ascending; segments: the input's values, or null.
std::vector<int64_t> seen_by(const kernels::Attention&, const RefTensor* segments, int64_t batch, int64_t i);

// Some queries of each row of the batch and the keys that they may see: t consecutive queries, `keys` keys
// from first_key on, and where documents are told apart, the numbers of both.
struct QueryRows {
  Value q;                                  // [B, t, H, D]
  Value k, v;                               // [B, keys, Hkv, D]
  Value positions;                          // of the queries: i32 [t]
  int64_t first_key = 0;                    // position of the first key
  std::optional<Value> of_query, of_key{};  // documents: i32 [B, t], [B, keys]
};
// All queries and all keys.
QueryRows all_rows(Builder&, Value q, Value k, Value v, std::optional<Value> segments);

// scale q . k in f32, soft-capped, [B, Hkv, t, H / Hkv, keys]; a large negative number where masked.
Value attention_scores(Builder&, const QueryRows&, const Attrs& attrs);

// The cases of both. `change` makes an op's own of one with the inputs q, k and v; where documents are told
// apart, their numbers come behind what it adds: three documents in any order.
std::vector<Case> attention_cases(FunctionRef<void(Case&, const kernels::Attention&)> change);

}  // namespace lignum::ops
