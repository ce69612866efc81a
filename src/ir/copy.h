// Nodes from one graph into another.
#pragma once

#include <map>

#include "ir/graph.h"

namespace lignum::ir {

// Adds node `id` of another graph to `to`, with the inputs that `map` gives for its own, and enters its
// results there. `node`: a copy of it, which may have another tag. The new node's number.
int32_t copy_node(Node node, int32_t id, Graph& to, std::map<Value, Value>& map);

}  // namespace lignum::ir
