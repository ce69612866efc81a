// What attention and its gradient share: their shape, and the scores in their decompositions.
#pragma once

#include <optional>

#include "kernels/attention.h"
#include "ops/facets.h"

namespace lignum::ops {

// q [B, Sq, H, D], k and v [B, Sk, Hkv, D]: type errors of the three, and of the attributes.
Status check_attention(const Type& q, const Type& k, const Type& v, const Attrs& attrs);

// What stands behind `base` inputs, by the attributes: those of the queries; those of the keys follow each.
//   segmented: segments, i32 [B, Sq] and [B, Sk], the number of each token's document
//   query_at, key_at: starts, i32 [P] and [K], where each piece of as many consecutive tokens begins. The
//   attributes are as long, and such starts as a rank has: cost() counts what is seen of those
struct TokenInputs {
  std::optional<size_t> segments, starts;
  size_t count = 0;  // of all inputs
};
bool is_segmented(const Attrs& attrs);
bool is_placed(const Attrs& attrs);
TokenInputs token_inputs(const Attrs& attrs, size_t base);
// An error where there are others, or of other types.
Status check_tokens(std::span<const Type> in, size_t base, const Type& q, const Type& k, const Attrs& attrs);

kernels::Attention attention_shape(const Type& q, const Type& k, const Attrs& attrs);
// The inputs themselves, for a kernel, which has taken them.
Result<kernels::AttentionTokens> attention_tokens(const CpuCall&, const kernels::Attention&, size_t base);

// Type of the logarithms of the sums: f32[B, H, S].
Type lse_type(const Type& q);

// Factor 0 walks the batch, 1 the heads (those of q and the key heads that they read, which a rank's share
// has where the ranks divide both numbers, or the key heads the ranks), 2 the queries, which see all keys;
// or, where shards go round, 2 walks the keys of a shard too.
struct AttentionFactors {
  explicit AttentionFactors(bool ring) { kv[1] = key_segments[1] = ring ? 2 : -1; }
  std::vector<int> q = {0, 2, 1, -1}, kv = {0, -1, 1, -1}, lse = {0, 1, 2}, segments = {0, 2},
                   key_segments = {0, -1};
};
// What an op that has its tokens' places is not asked: it is a rank's already.
ShardRule attention_rule(const Site&, FunctionRef<void(const AttentionFactors&, ShardRule&)> operands,
                         Values (*local)(const PlacedCall&));

// Pairs of query and key that the causal mask and the window leave; documents are not known before the run.
double attention_pairs(const kernels::Attention&, const Attrs& attrs);
// FLOPs of that many products for each pair, and the pairs' exponentials.
Cost attention_cost(const Site&, const kernels::Attention&, double products);

// Queries by group of heads: [B, t, H, D] as [B, t, Hkv, H / Hkv, D].
Value grouped(Builder&, Value q, int64_t kv_heads);
// The keys that query i of a row of the batch sees, in order; `base`: as for token_inputs.
std::vector<int64_t> seen_by(const RefCall&, const kernels::Attention&, size_t base, int64_t batch,
                             int64_t i);

// Some queries of each row of the batch and the keys that they may see, and where documents are told apart,
// the numbers of both.
struct QueryRows {
  Value q;                                  // [B, t, H, D]
  Value k, v;                               // [B, keys, Hkv, D]
  Value positions;                          // of the queries: i32 [t]
  std::optional<Value> key_positions{};     // i32 [keys]; without them the keys are consecutive
  int64_t first_key = 0;                    // then the position of the first
  std::optional<Value> of_query, of_key{};  // documents: i32 [B, t], [B, keys]
  // Whether a query may see no key at all.
  bool may_see_nothing() const { return key_positions || of_key; }
};
// All queries and all keys; tokens: the inputs behind the base ones.
QueryRows all_rows(Builder&, Value q, Value k, Value v, std::span<const Value> tokens, const Attrs& attrs);
// Positions i32 [count] of tokens in pieces that begin there.
Value positions_of(Builder&, Value starts, int64_t count);

// scale q . k in f32, soft-capped, [B, Hkv, t, H / Hkv, keys]; a large negative number where masked.
Value attention_scores(Builder&, const QueryRows&, const Attrs& attrs);
// Of such scores, whether it is not masked.
Value is_seen(Builder&, Value scores);

// The cases of both. `change` makes an op's own of one with the inputs q, k and v; where documents are told
// apart, or where they stand is given, these inputs come behind what it adds.
std::vector<Case> attention_cases(FunctionRef<void(Case&, const kernels::Attention&)> change);

}  // namespace lignum::ops
