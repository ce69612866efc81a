// A memory budget is hard: a step that does not fit is refused before it runs, with what takes the space and
// with the changes of the configuration that make it fit, each planned and priced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hw/spec.h"
#include "hw/topology.h"
#include "plan/program.h"

namespace lignum::plan {

// What a step is planned for. Without a specification nothing is priced: changes are then ordered by the
// FLOPs that they compute.
struct Machine {
  int64_t device_memory = 0;  // bytes a rank may use; 0: no budget
  const hw::Spec* spec = nullptr;
  std::optional<hw::Topology> topology;
};

// Keys that would be set otherwise, and the plan that they lead to.
struct Change {
  std::string keys;  // "remat_policy=minimal", "per_device_batch_size=2 gradient_accumulation_steps=4"
  int64_t arena_bytes = 0, host_bytes = 0;
  std::optional<double> step_seconds;  // predicted
  double computed_flops = 0;           // model FLOPs and recompute of the step, of one rank
};
struct Changes {
  Change now;                   // the step as it is; no keys
  std::vector<Change> fitting;  // those that fit, the fastest first
  std::optional<Change> least;  // where none fits: the one found that needs the least
};

// Plans other values of remat_policy, num_vocab_tiling, prefetch_distance, optimizer_memory_host_offload,
// parameter_memory_host_offload, and of gradient_accumulation_steps with as many tokens a step: one of them
// at a time; if none fits, what saves most of each together; if that fits, two at a time. The bits of a step
// depend on num_vocab_tiling and on the rows of a micro-step, and on none of the others.
Changes find_changes(const ProgramOptions& options, const Program& program, const Machine& machine);

// ok where the step fits; else an error with the memory table and what find_changes gives.
Status check_budget(const ProgramOptions& options, const Program& program, const Machine& machine);

// The table of the changes: keys, memory, predicted step time and how much longer that is.
std::string changes_table(const Changes& changes, const Machine& machine);

}  // namespace lignum::plan
