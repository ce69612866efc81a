// Pipelines as tables: which stage works on which microbatch at which tick. Pure data, which the planner
// prints and of which the partition pass makes loops.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lignum::passes {

// The mesh axis whose ranks are the stages.
inline constexpr std::string_view kStageAxis = "pipeline";

// Layers are dealt to the stages in turn, `repeats` times (MaxText's circular pipeline; gpipe: once): stage p
// of s holds the parts p, p + s, p + 2s ... of r s equal parts. Microbatches are equal parts of the rows that
// the stages share.
struct Pipeline {
  int64_t stages = 1, microbatches = 1, repeats = 1;

  // Whether a loop of so many bodies is cut into stages; one that does not divide runs on every stage.
  bool cuts(int64_t trip) const { return stages > 1 && trip % (stages * repeats) == 0; }
  // The part of the ticks in which a stage has nothing to do: (s - 1) / (r m + s - 1).
  double bubble() const;
};

// What a stage does in a tick.
struct TickWork {
  enum class Kind : uint8_t { idle, forward, backward } kind = Kind::idle;
  int64_t microbatch = -1, repeat = -1;
  friend bool operator==(const TickWork&, const TickWork&) = default;
};
using TickTable = std::vector<std::vector<TickWork>>;  // [tick][stage]

// All forward ticks, then all backward ones, which are the forward ticks' work from the last to the first.
// Forward the microbatches go from the last to the first, so that backward they come from the first to the
// last: a stage adds up gradients in the order of accumulation. repeats > 1 needs microbatches >= stages.
TickTable fill_and_drain(const Pipeline& pipeline);
// 1F1B (PipeDream-flush) of one repeat: after stages - 1 - p forward microbatches stage p alternates.
TickTable one_forward_one_backward(const Pipeline& pipeline);

// Idle cells among all.
double idle_share(const TickTable& table);
// The most microbatches of a stage that are forward and not yet backward: whose activations it holds.
int64_t most_held(const TickTable& table, size_t stage);
// A line a stage: "0 F3 F2 . B2", repeats as "F3'1". For people.
std::string print_table(const TickTable& table);

// One direction of fill_and_drain as a loop over its ticks runs it, [row][stage]. Row i is the forward tick
// i; the backward loop runs from the last row to the first. Each stage has a feed of `microbatches` slots:
// the first stage of the direction (the last one backward) has its microbatches there, comes by their results
// when they have gone round, and so ends with the outputs; the others keep in slot 0 what has just arrived.
struct TickLoop {
  using Rows = std::vector<std::vector<int64_t>>;
  Rows arrives;                    // the slot that what arrives goes to; -1: nothing has
  Rows reads;                      // the slot that is worked on; -1: idle
  Rows microbatches;               // -1: idle
  Rows repeats;                    // -1: idle
  std::vector<int64_t> last;       // the slot for what arrives after all ticks
  std::vector<int64_t> holds_all;  // 0 for the stage that ends with the outputs, else -1
};
TickLoop tick_loop(const Pipeline& pipeline, TickWork::Kind direction);

}  // namespace lignum::passes
