// Nodes from one graph into another.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "ir/graph.h"

namespace lignum::ir {

// Adds node `id` of another graph to `to`, with the inputs that `map` gives for its own, and enters its
// results there. `node`: a copy of it, which may have another tag. The new node's number.
int32_t copy_node(Node node, int32_t id, Graph& to, std::map<Value, Value>& map);

// `from` with the params at `which` of the types that `type` gives: what nodes read instead of them is what
// `derive` makes from them, before all else.
Graph replace_params(const Graph& from, std::span<const int64_t> which,
                     const std::function<Type(const Type&)>& type,
                     const std::function<Value(Graph& to, Value param)>& derive);

}  // namespace lignum::ir
