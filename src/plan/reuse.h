// How far back a node's operands were last touched, in bytes of traffic: what decides which cache they come
// from. A loop over buffers of F bytes, which is what calibrate measures, touches each byte again after F
// bytes of traffic; in a step the buffers of a small op are as cold as what ran in between.
#pragma once

#include <vector>

#include "passes/memory.h"
#include "passes/schedule.h"

namespace lignum::plan {

struct Traffic {
  double share = 0;     // of the node's bytes, 0..1
  double distance = 0;  // bytes moved since these were last touched, the node's own included
};

// One list a slot of `step` (empty: scans, awaits, collectives, and nodes that move nothing), its bodies not
// included. `trip`: how often the block runs, 1 for the step itself; what an iteration has not touched was
// last touched in the one before it, and rows of stacked tensors a whole loop ago.
std::vector<std::vector<Traffic>> reuse(const passes::Scheduled& step, const passes::Layout& layout,
                                        int64_t trip);

}  // namespace lignum::plan
