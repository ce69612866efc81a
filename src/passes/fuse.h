// Makes one node of two, as the ops declare it (ops/fusion.h): for this machine's kernels alone. What is
// printed for a PJRT device is the graph before it, since XLA fuses by itself.
#pragma once

#include "ir/graph.h"

namespace lignum::passes {

// LOCAL -> LOCAL with the same params and outputs, and the same bits. A widening convert at the end of a
// loop's body, whose stacked result is read by nodes that take the narrow form, moves behind the loop first:
// the stack is then narrow. A fused node has the consumer's tag and origin.
ir::Graph fuse(const ir::Graph& local);

}  // namespace lignum::passes
