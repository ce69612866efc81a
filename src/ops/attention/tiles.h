// Attention and its gradient on some rows of queries, and both printed as loops over tiles of queries.
//
// XLA would hold all scores, H S^2 numbers in f32: 8 GiB of a layer of 32 heads and 8192 tokens. Printed in
// tiles it holds kQueryTile rows of them, four times over in the gradient (libtpu 0.0.52 had 4 GiB of such
// tiles for 4 rows of 64 heads and 8192 keys, tiles of 128), so that tiles are smaller where their scores are
// many. Keys that no query of a range of tiles may see (causal mask, window) are left out: a causal loop
// stands in up to kRanges pieces, each over the keys up to its end, which computes 5/8 of all pairs in place
// of a causal half. Of tokens whose places are data all pairs are computed.
#pragma once

#include "ops/attention/scores.h"

namespace lignum::ops {

inline constexpr int64_t kQueryTile = 128, kLeastTile = 16, kRanges = 4;
inline constexpr int64_t kTileBytes = int64_t{256} << 20;

// out [B, t, H, D] in q's dtype, lse f32 [B, H, t].
Values attention_of(Builder&, const QueryRows&, const Attrs& attrs);

struct GradientRows {
  QueryRows rows;
  Value dout, out;  // [B, t, H, D]
  Value lse;        // f32 [B, H, t]
};
// dq [B, t, H, D] in q's dtype; what these queries give to dk and dv, f32 [B, keys, Hkv, D].
Values gradients_of(Builder&, const GradientRows&, const Attrs& attrs);

std::vector<std::string> emit_attention(const EmitCall&);
std::vector<std::string> emit_attention_grad(const EmitCall&);

}  // namespace lignum::ops
