// Differentiates a GLOBAL forward graph before anything is sharded.
#pragma once

#include <string>

#include "ir/graph.h"

namespace lignum::passes {

struct AutodiffOptions {
  // The scalar outputs whose sum is differentiated, of those that there are; their seeds are 1, so that a
  // gradient is per supervised token and the division by the global token count happens once, in the update.
  // The first must be there.
  std::vector<std::string> losses = {"loss_sum", "z_loss_sum"};
  // Gradients of every f32 param that the loss depends on.
};

// The forward graph and its gradient: the outputs of `forward`, then "grad:NAME" of each float param (f32,
// the param's dims and names). A param that is converted to bf16 before its use has its gradient made in
// bf16, reduced between ranks in bf16 (partition) and widened after that. Each scan gets a second, reversed
// scan. Here every forward value of a body that may be needed is stacked; remat decides which stay (it must
// run next), prune drops the rest.
ir::Graph autodiff(const ir::Graph& forward, const AutodiffOptions& options = {});

}  // namespace lignum::passes
