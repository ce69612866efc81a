// The golden reader: runs a graph through the ops' slow references, in double, scans included. What the
// kernels, the decompositions, the gradients and the bounds are checked against.
#pragma once

#include <span>
#include <vector>

#include "ops/op.h"

namespace lignum::ops {

struct InterpretOptions {
  // Rounds every float edge (results of nodes and the inputs) to its dtype: what a run in bf16 would see with
  // perfect arithmetic inside the ops. f64 edges are what they are.
  bool round_edges = false;
  bool round_f32 = true;  // false: f32 edges stay in double even so
};

// The outputs of the graph, in order; inputs: one a param. The graph is verified (ops::verify) and has no
// collective: a graph of one rank, or a GLOBAL one (the first collective aborts, named).
std::vector<RefTensor> interpret(const ir::Graph& graph, std::span<const RefTensor> inputs,
                                 InterpretOptions options = {});

// One op on its own: the results of its reference.
std::vector<RefTensor> evaluate(const Op& op, const Site& site, std::span<const RefTensor* const> in);

// Every element rounded to the dtype (to nearest even) and back.
void round_to(DType dtype, RefTensor& tensor);

}  // namespace lignum::ops
