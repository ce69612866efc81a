// StableHLO of nodes and graphs, whether an op prints itself or is printed through its decomposition.
#pragma once

#include "ops/op.h"

namespace lignum::ops {

// in: the SSA names of the inputs; returns those of the results. An op without a form of its own is printed
// as its decomposition, and so are the ops in that.
std::vector<std::string> emit_node(Emitter& out, const Op& op, const Site& site,
                                   std::span<const std::string> in);

// The nodes of a graph, each under a comment with its id, kind, module path and role; params: the SSA names
// of its params; returns those of its outputs. A scan is a stablehlo.while with the plain body: row i of each
// sliced input, the body's ops, row i of each stacked result written into a buffer that starts as zeros. A
// started collective and its await are one collective.
std::vector<std::string> emit_graph(Emitter& out, const ir::Graph& graph,
                                    std::span<const std::string> params);

// v[..., first:last, ...] along dim of a tensor of type t; v itself where that is all of it.
std::string emit_slice(Emitter& out, const std::string& v, const Type& t, size_t dim, int64_t first,
                       int64_t last);

}  // namespace lignum::ops
