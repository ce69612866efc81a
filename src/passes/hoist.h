// What XLA does to a loop over layers, done in the graph, so that what is priced is what it compiles.
#pragma once

#include "ir/graph.h"

namespace lignum::passes {

// LOCAL -> LOCAL with the same params, outputs and bits. Where all that a loop's body reads of a stack (or of
// a value that is the same in each iteration) is a narrower cast of it, the cast moves before the loop, of
// the whole stack, once for all loops that take it. XLA does so (libtpu 0.0.52, whatever
// xla_tpu_licm_size_inflation_ratio says): f32 weights in bf16, model shard x 2 bytes, live through forward
// and backward loops.
ir::Graph hoist_casts(const ir::Graph& from);

}  // namespace lignum::passes
