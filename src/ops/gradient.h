// Reverse-mode differentiation of one op, and of a flat piece of a graph. Scans are passes/autodiff's.
#pragma once

#include "ops/op.h"

namespace lignum::ops {

// The gradients of an op's inputs: by its own rule, or through its decomposition (whose forward values are
// added to the graph again: remat and pruning decide what of it stays).
Gradients gradient(const Op& op, const GradCall& call);

// Through the decomposition even where the op has a rule: for a rule that leaves a rare cotangent to it, say
// that of a saved row statistic, which only second-order gradients bring.
Gradients gradient_by_decomposition(const Op& op, const GradCall& call);

// Walks nodes [begin, end) of build's graph backwards from seeds (value -> its gradient) and adds to `seeds`
// the gradient of every value that those nodes read. Contributions are summed in the order of the walk.
// `custom` may take a node over (scans); it returns false to leave the node to the op's rule.
struct Walk {
  Builder& build;
  std::map<Value, Value>& seeds;
  // Gradients of the node's inputs from those of its results; called with tag and origin set.
  std::function<bool(int32_t node, std::span<const std::optional<Value>> cotangents, Gradients& out)> custom;
  // Called before a node's gradient is built: sets the tag (role, path) of what is added.
  std::function<void(const ir::Node& node)> on_node;
  // Only values that depend on these need a gradient; empty: all of floating type do.
  std::function<bool(Value)> wanted;
};
void walk_back(const Walk& walk, int32_t begin, int32_t end);

}  // namespace lignum::ops
