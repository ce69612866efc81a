// What a SCHEDULED step costs on a hardware specification, before it runs.
//
// A CPU rank: the step is played through exactly as exec runs it (order, prefetch shifts, awaits, copies at
// loop ends) on two engines. Each slot's duration is its op's Cost facet through hw/roofline.h, plus one
// dispatch. A collective enters the communication engine's queue when its slot is reached; an await blocks
// compute until it is done; likewise a transfer that of the copy engine. Where the ranks' threads and those
// of their busy queues together are more than the cores, all slow down: cores / (ranks * (threads + 1)), say.
//
// A TPU device: XLA orders the printed graph by itself, so the order is not played through. In every loop
// body a share `collective.overlap` of the collectives' time hides under compute:
//   body = max(compute, overlap * collectives, transfers to and from the host) + (1 - overlap) * collectives,
// and only the gathers of the first iteration of the first loop are under nothing. Element-wise traffic
// carries the specification's multiplier (fitted or not: Spec::load).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hw/roofline.h"
#include "hw/spec.h"
#include "hw/topology.h"
#include "passes/memory.h"
#include "passes/partition.h"
#include "passes/schedule.h"
#include "plan/program.h"

namespace lignum::plan {

struct PriceOptions {
  int threads = 1;       // of a rank's pool (CPU)
  std::string bf16_dot;  // CPU: ProgramOptions::bf16_dot, fp16_sums
  bool fp16_sums = false;
  bool overlap = true;  // CPU: the communication engine has a thread of its own, as ExecutorOptions::overlap
  bool host_file = false;  // CPU: host memory is a file, not RAM
  hw::Link link;           // CPU: what collectives are slowed down to
  const passes::MemoryPlan* memory =
      nullptr;                           // how cold operands are (reuse.h), and the copies that loops make
  std::optional<hw::Topology> topology;  // TPU with collectives: needed, its devices are the ranks
  // Of the whole step, over all ranks; 0: unknown, and what follows from them is absent.
  double model_flops = 0;  // models::training_flops
  double tokens = 0;
  DType operands = DType::f32;  // of the matmuls: whose peak MFU is measured by
  passes::Pipeline pipeline;    // goes into the price as it is
};

// One slot of the schedule, by its SCHEDULED id (joins with the trace). Copies that a loop makes for itself
// have id -1 and kind "copy".
struct NodePrice {
  int32_t id = -1;
  std::string kind, path;
  ir::Role role = ir::Role::forward;
  passes::Engine engine = passes::Engine::compute;
  int64_t count = 0;           // runs in one step
  double seconds = 0;          // of one run, dispatch included
  double total_seconds = 0;    // count * seconds; engines overlap, so these do not add up to the step
  double exposed_seconds = 0;  // CPU, of all: how long compute waits for it
  double flops = 0;            // of one run
  double bytes = 0;            // of one run: over memory, or on the wire (communication)
  hw::Bound bound = hw::Bound::none;
};

struct Price {
  double step_seconds = 0;           // = compute + contention + exposed
  double compute_seconds = 0;        // the compute engine at work, were it alone
  double communication_seconds = 0;  // the communication engine at work, were it alone
  double copy_seconds = 0;           // the copy engine at work, were it alone
  double exposed_seconds = 0;        // compute waits for communication or a copy
  double contention_seconds = 0;     // CPU: compute slowed down by communication on its cores
  double dispatch_seconds = 0;       // part of compute
  bool host_file = false;            // the copies are to and from a file

  std::vector<NodePrice> nodes;  // in the order of ids, copies last

  double executed_flops = 0;        // of one rank: matmuls and attention, recompute included
  double bytes = 0;                 // of one rank: over memory if nothing stays in a cache
  double arithmetic_intensity = 0;  // executed_flops / bytes
  double model_flops = 0;           // as given
  int64_t ranks = 1;
  std::optional<double> tokens_per_second;  // all ranks
  std::optional<double> model_flop_rate;    // all ranks, FLOP/s
  // Model FLOPs over the peak of all devices. Absent without model_flops or without a peak for the operands.
  std::optional<double> mfu;
  passes::Pipeline pipeline;  // an idle tick lasts as long as another: the step's time has the bubble in it
};

// The devices that a mesh axis spans: which dims of the torus, how many slices. An error where it cuts across
// the torus.
Result<hw::Group> place_axis(const passes::Mesh& mesh, std::string_view axis, const hw::Topology& topology);

// Errors: a CPU specification that was not measured with that many threads or ranks, or that has measured no
// file where one is host memory; a TPU one without a topology or a mesh that does not lie on it.
Result<Price> price(const passes::Scheduled& step, const passes::Mesh& mesh, const hw::Spec& spec,
                    const PriceOptions& options);

// A whole program: the options it was made with give threads, overlap, model FLOPs, tokens and operands.
// topology: TPU only.
Result<Price> price(const Program& program, const ProgramOptions& made_with, const hw::Spec& spec,
                    const std::optional<hw::Topology>& topology = std::nullopt);

}  // namespace lignum::plan
