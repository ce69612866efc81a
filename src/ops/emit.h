// StableHLO of one node, whether the op prints itself or is printed through its decomposition.
#pragma once

#include "ops/op.h"

namespace lignum::ops {

// in: the SSA names of the inputs; returns those of the results. An op without a form of its own is printed
// as its decomposition, and so are the ops in that.
std::vector<std::string> emit_node(Emitter& out, const Op& op, const Site& site,
                                   std::span<const std::string> in);

}  // namespace lignum::ops
