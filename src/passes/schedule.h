// SCHEDULED: the LOCAL graph in the order in which this machine runs it. Order and engines here, buffers in
// memory.h.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace lignum::passes {

// copy: between device and host memory.
enum class Engine : uint8_t { compute, communication, copy };

std::string_view engine_name(Engine);

struct Slot {
  int32_t node = -1;
  // Runs for iteration i + shift while iteration i is at this place of the order; before the first iteration
  // it runs for iterations 0..shift-1. Only in bodies, only for what depends on sliced and invariant inputs:
  // a layer's weights, and what is fetched from host memory. -1: the await of a copy to host memory, or of
  // a layer's gradient that is summed over ranks, which have the whole next iteration to end; after the last
  // one it runs for that.
  int64_t shift = 0;
  Engine engine = Engine::compute;
  int32_t id = -1;  // the SCHEDULED id: unique over all bodies, ascending in the order of the text
};

struct Scheduled {
  std::shared_ptr<const ir::Graph> graph;  // LOCAL
  std::vector<Slot> order;                 // every node but params and views that move no bytes (awaits stay)
  std::map<int32_t, Scheduled> bodies;     // by scan node
};

struct ScheduleOptions {
  // How many layers ahead a layer's weights are gathered, and what lies in host memory is fetched. 0: just
  // before their first use, under nothing; and a layer's gradients are summed before the next layer begins.
  int64_t prefetch_distance = 1;
  // false: every collective and every copy is awaited where it starts. The bits are the same.
  bool overlap = true;
  // Whether a layer's gradients may still be summed under the next layer, for a second copy of them. Not
  // where XLA orders what runs.
  bool late_sums = true;
};

Scheduled schedule(std::shared_ptr<const ir::Graph> local, const ScheduleOptions& options);

// Inputs are made before they are read, by slot and shift; starts come before their awaits.
Status verify_schedule(const Scheduled&);

// The order as text, one slot a line, for people and tests: "12 matmul decoder/layers/mlp/wi_0 forward", "+1"
// for a shift.
std::string print_schedule(const Scheduled&);

// The value whose bytes v is: through views (reshape, barrier, await) to a param or the node that makes them.
ir::Value view_root(const ir::Graph& graph, ir::Value v);

}  // namespace lignum::passes
