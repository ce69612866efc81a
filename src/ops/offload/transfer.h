// What offload and fetch share.
#pragma once

#include <string_view>

#include "ops/facets.h"

namespace lignum::ops {

// The type of x once it has started for the other memory: the result of offload (to_host) or fetch.
Result<Types> infer_transfer(std::span<const Type> in, bool to_host);
// A gradient stays on the device: it passes.
Gradients grad_transfer(const GradCall& c);
ShardRule partition_transfer(const Site& s);
Cost cost_transfer(const Site& s);
// XLA's placement of a value; where the target has no host memory, nothing.
std::vector<std::string> emit_placement(const EmitCall& c, std::string_view memory);
std::vector<Case> cases_transfer(bool to_host);

}  // namespace lignum::ops
