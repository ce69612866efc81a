// The loop over a pipeline's ticks, in LOCAL: what the partition pass makes of a loop over layers whose
// stacks are cut over the stages.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/op.h"
#include "passes/pipeline.h"

namespace lignum::passes {

// A loop over all layers, whose body has the shapes of one microbatch on one rank. Inputs as ir::Scan has
// them; a carry, and what is `batched`, hold the rows of all microbatches; stacks are this stage's layers.
struct StageLoop {
  ir::Node scan;  // GLOBAL node: attributes, tag, origin
  std::shared_ptr<const ir::Graph> body;
  std::vector<ir::Value> inputs;  // LOCAL values
  std::vector<bool> batched;      // by input: invariants that hold rows
  std::vector<bool> ticked;       // by input: sliced ones that another loop over ticks has stacked
  std::vector<bool> whole;        // by input: sliced ones that hold the layers of all stages
  std::vector<bool> summed;       // by result: stacked ones that are summed over microbatches
};

// Results as the scan's: a carry holds all rows on the stage that ends with them and zeros on the others;
// what is summed is [layers of this stage, ...]; all else that is stacked is [ticks, layers of a tick, ...],
// for `ticked` inputs of another loop. Reversed loops send to the stage before.
std::vector<ir::Value> add_tick_loop(ops::Builder& b, const StageLoop& loop, const Pipeline& pipeline);

}  // namespace lignum::passes
