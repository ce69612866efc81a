// What a rank did when: one event a scheduled node and iteration, written as Chrome's trace format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/engine.h"
#include "passes/schedule.h"

namespace lignum::exec {

struct Event {
  int32_t id = -1;  // SCHEDULED id
  int32_t node = -1;
  const ir::Graph* graph = nullptr;
  int64_t iteration = -1;  // of the innermost loop, in the order of execution; -1 outside loops
  int64_t row = -1;        // the layer that the iteration works on
  int64_t outer = -1;      // iteration of the loop around that one (the micro-step)
  passes::Engine engine = passes::Engine::compute;
  comm::Timing time;  // steady_clock, ns
};

// Room for one step's events, made before it; nothing is allocated while a step runs.
class Trace {
 public:
  Trace(int rank, size_t capacity) : rank_(rank), events_(capacity) {}
  // The next event to fill, or null when there is no room (which dropped() counts).
  Event* next() {
    if (used_ == events_.size()) {
      ++dropped_;
      return nullptr;
    }
    return &events_[used_++];
  }
  void clear() { used_ = dropped_ = 0; }
  int rank() const { return rank_; }
  size_t dropped() const { return dropped_; }
  std::span<const Event> events() const { return {events_.data(), used_}; }  // until the next clear()

 private:
  int rank_;
  std::vector<Event> events_;
  size_t used_ = 0, dropped_ = 0;
};

// How many events one step makes.
size_t event_count(const passes::Scheduled& step);

// {"traceEvents": [...]}: pid = rank, tid = engine (compute 0, communication 1, copy 2), times in
// microseconds from the earliest event; args: id, origin, layer, iteration, role, path.
std::string chrome_json(const std::vector<const Trace*>& ranks);

}  // namespace lignum::exec
