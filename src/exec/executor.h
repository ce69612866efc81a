// Runs a SCHEDULED step on one rank. Knows no model: it walks slots, calls each op's CPU facet on places in
// the arena, gives collectives to the communication engine and transfers to the copy engine. Between create()
// and the end it allocates nothing in step().
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "comm/engine.h"
#include "comm/transport.h"
#include "exec/arena.h"
#include "exec/trace.h"
#include "kernels/isa.h"
#include "passes/memory.h"
#include "passes/partition.h"
#include "passes/schedule.h"

namespace lignum::exec {

struct ExecutorOptions {
  const passes::Scheduled* step = nullptr;  // outlives the executor, as do all that follow
  const passes::MemoryPlan* plan = nullptr;
  const passes::Mesh* mesh = nullptr;
  comm::Transport* transport = nullptr;  // null: one rank, no collectives
  Parallel* parallel = nullptr;          // the rank's pool
  kernels::Choice choice;
  bool overlap = true;              // false: communication and copies have no threads of their own
  int64_t device_memory = 0;        // budget in bytes, 0: none
  std::string host_memory = "ram";  // what is offloaded lies there: HostMemory::create
  // Memory of at least plan->arena_bytes that steps take in turns; null: one of its own, within
  // device_memory. The params that come first in both plans, alike in name and type, are then the same
  // tensors; all else is overwritten by the other's steps, so every other param is written before each step.
  Arena* arena = nullptr;
};

// The first value that is not finite, in the order of execution.
struct NonFinite {
  int32_t id = -1;  // SCHEDULED id
  std::string kind, path;
  ir::Role role = ir::Role::forward;
  int64_t layer = -1;  // -1 outside the layers
  double value = 0;
  // Where in the step: the loops' slots and iterations, outermost first, then the slot, then -1. Of two ranks
  // that found one, the smaller was first in the program's order.
  std::array<int64_t, 17> when{};
};

class Executor {
 public:
  static Result<std::unique_ptr<Executor>> create(const ExecutorOptions& options);
  ~Executor();

  // The bytes of a param or output of the step: this rank's shard. Params are zero until written (padding
  // must stay zero). Aborts for one in host memory, which has no address: see param_view.h.
  std::byte* param(int64_t i);
  const std::byte* output(int64_t i) const;
  // By name; aborts when the step has none.
  std::byte* param(std::string_view name);
  bool has_param(std::string_view name) const;
  const std::byte* output(std::string_view name) const;
  int64_t param_index(std::string_view name) const;  // likewise
  const ir::Type& param_type(int64_t i) const;
  // A row (passes::HostRows) of a param in host memory. Not inside a step.
  Status read_row(int64_t param, int64_t row, std::byte* to);
  Status write_row(int64_t param, int64_t row, const std::byte* from);

  // Runs the step once. An op's error (a token outside the vocabulary) or a failed collective ends it; the
  // arena's content is then undefined, the error names the node.
  Status step();
  // Events of the following steps go here; null: none.
  void set_trace(Trace* trace);
  // The step with every floating result checked: nothing when all are finite. For finding where a NaN comes
  // from, with the state that made it (see adamw_update: a step that is not finite leaves the state alone).
  Result<std::optional<NonFinite>> find_non_finite();

  const Arena& arena() const;

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lignum::exec
