// Context parallelism: attention of a rank that has some tokens of each row.
//
// Gathered: the rank's queries meet the keys of all ranks, which are gathered in the ranks' order; what the
// queries give to dk and dv is left open over the ranks. In a ring the keys and values of one rank after the
// other come by; each meeting has an attention of its own, and attention_merge puts them together by their
// lse (Liu, Zaharia and Abbeel 2023, "Ring Attention"; the balanced order is that of Li et al. 2023,
// "DistFlashAttn", and of MaxText). In the backward pass the sums of dk and dv travel with their keys, in
// f32, and a last hop brings them home. A meeting in which no rank's query sees a key, by causal mask and
// window, is left out, and the shards go further at once.
#pragma once

#include "ops/op.h"

namespace lignum::ops {

Values local_attention(const PlacedCall&);
Values local_attention_grad(const PlacedCall&);

}  // namespace lignum::ops
