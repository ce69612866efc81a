// What attention and its gradient share: their shape, and the scores in their decompositions.
#pragma once

#include "kernels/attention.h"
#include "ops/facets.h"

namespace lignum::ops {

// q [B, S, H, D], k and v [B, S, Hkv, D]: type errors of the three, and of the attributes.
Status check_attention(const Type& q, const Type& k, const Type& v, const Attrs& attrs);

kernels::Attention attention_shape(const Type& q, const Type& k, const Attrs& attrs);

// Type of the logarithms of the sums: f32[B, H, S].
Type lse_type(const Type& q);

// Factor 0 walks the batch. Heads are one factor only without grouping: two dims of different size, H and
// Hkv, have no common factor.
struct AttentionFactors {
  std::vector<int> q, kv, lse;
};
AttentionFactors attention_factors(const Type& q, const Type& k);

// Pairs of query and key that a mask leaves.
double attention_pairs(const kernels::Attention&);

// Queries by group of heads: [B, S, H, D] as [B, S, Hkv, H / Hkv, D].
Value grouped(Builder&, Value q, const kernels::Attention&);
// First position that query i sees, and one past the last.
struct Seen {
  int64_t begin, end;
};
Seen seen_by(const kernels::Attention&, int64_t i);

// scale q . k of grouped queries in f32, soft-capped, [B, Hkv, S, H / Hkv, S]; a large negative number where
// masked.
Value attention_scores(Builder&, Value grouped_q, Value k, const Attrs& attrs, const kernels::Attention&);

Case attention_case(std::string name, const kernels::Attention&, bool bench = false);  // q, k, v

}  // namespace lignum::ops
