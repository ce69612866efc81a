// From the GLOBAL step to the LOCAL one: one rank's shapes and explicit collectives, one program for all
// ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/op.h"
#include "passes/pipeline.h"

namespace lignum::passes {

// The mesh axis whose ranks have parts of a row's tokens.
inline constexpr std::string_view kContextAxis = "context";

// The ranks of `tensor` that have the same key heads, where these are fewer than the ranks.
inline constexpr std::string_view kCopiesAxis = "kv_copies";

// The axes in order, the last fastest: rank = ((c0 * size1) + c1) * size2 + c2 ... Axes of size 1 may be left
// out.
struct MeshAxis {
  std::string name;
  int64_t size = 1;
  int64_t slices = 1;  // of size: parts that lie in slices of their own, each size / slices devices
};
struct Mesh {
  std::vector<MeshAxis> axes;
  // How the axis `context` cuts the tokens of a row, and how attention gets at others' keys (ops::TokenAxis).
  bool balanced = false, ring = false;
  // ZeRO-1 (MaxText's shard_optimizer_over_data): ranks of `data` store parts of weights and moments, as with
  // fsdp, but a loop's weights are gathered once, before it.
  bool state_over_data = false;
  int64_t ranks() const;
  int64_t size(std::string_view axis) const;  // 1 for an axis that is not there
  // The groups of ranks that differ in `axis` alone, each in ascending order.
  std::vector<std::vector<int64_t>> groups(std::string_view axis) const;
  int64_t coordinate(int64_t rank, std::string_view axis) const;
  int64_t slices() const;
  // Where a rank stands: its device among all, counted slice by slice, and in each by the axes as above. Of
  // an axis' coordinate the part over slices is the slower. With one slice, or where only the first axis has
  // several, it is the rank itself. What a step computes does not depend on it.
  int64_t device(int64_t rank) const;
  // Devices of a slice that lie between two neighbours of `axis`.
  int64_t inside(std::string_view axis) const;
  ops::TokenAxis tokens() const;
  // Ranks that see the same rows: those of context, tensor, kv_copies, which are the last axes.
  int64_t row_sharers() const;
  // Where `tensor` has more ranks than there are key heads, a multiple of them: the axis becomes `tensor`,
  // over which key heads are cut, and `kv_copies` inside it, over which all else that tensor cuts is cut too.
  void share_key_heads(int64_t kv_heads);
};

// MaxText's logical_axis_rules: the mesh axes that shard a logical name, outermost first.
using AxisRules = std::map<std::string, std::vector<std::string>, std::less<>>;
const AxisRules& default_axis_rules();

// How a tensor lies on the mesh: for each dim the mesh axes that shard it, outermost first. A dim is cut into
// equal parts, rounded up: the last ranks may hold padding, which no rank reads.
// rounds > 1 (of a param): dim 0 is dealt in that many rounds. It is then seen as [rounds, size / rounds], of
// which the second is cut.
struct Sharding {
  std::vector<std::vector<std::string>> dims;
  int64_t rounds = 1;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};
std::vector<int64_t> local_dims(const std::vector<int64_t>& dims, const Sharding& sharding, const Mesh& mesh);
// The half-open range of dim d that `rank` holds of a dim of `size`; empty for ranks that hold padding only.
struct Range {
  int64_t begin = 0, end = 0;
};
Range shard_range(int64_t size, const std::vector<std::string>& axes, const Mesh& mesh, int64_t rank);

// The tokens of a row of `size` that `rank` holds where `axes` cut it, in the order in which it holds them.
std::vector<Range> token_ranges(int64_t size, const std::vector<std::string>& axes, const Mesh& mesh,
                                int64_t rank);

struct Partitioned {
  ir::Graph graph;                // LOCAL
  std::vector<Sharding> params;   // one a param
  std::vector<Sharding> outputs;  // one an output
};

// Params are sharded by their logical names; everything else follows by each op's rule. A sum left over ranks
// (a weight's gradient over the batch) is finished where it is first read: reduce-scattered to the sharding
// that its names ask for, all-reduced over what remains. An error names the op when a rule cannot be met (a
// batch that ranks do not divide).
//
// Loops over layers whose stacks the axis "pipeline" cuts become loops over ticks: in a tick each stage runs
// its layers on one microbatch (passes/pipeline.h). What the forward loop keeps for the backward one is kept
// by tick; gradients are summed over microbatches in f32 from zero, ascending, as accumulate does. Outside of
// these loops the stages have rows of their own. A loop that the stages do not divide runs outside.
Result<Partitioned> partition(const ir::Graph& global, const Mesh& mesh, const Pipeline& pipeline = {},
                              const AxisRules& rules = default_axis_rules());

}  // namespace lignum::passes
