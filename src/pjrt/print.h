// Prints a LOCAL step as StableHLO text: one program for all replicas, per-device shapes, collectives that
// name replica groups (mhlo.num_replicas; docs/pjrt.md). Params and outputs keep their order; a param that an
// output replaces is donated to it (tf.aliasing_output).
//
// A scan is a stablehlo.while with the plain body: row i of each sliced input, the body's ops, row i of each
// stacked result written into a buffer that starts as zeros. Nothing is rotated or prefetched: the TPU
// compiler overlaps a gather with the matmuls of its own body, and a carry of gathered weights would only be
// copied (measured: docs/pjrt.md). A barrier is an optimization_barrier; a started collective and its await
// are one collective, which XLA splits again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ir/graph.h"

namespace lignum::pjrt {

// A mesh axis: the groups of replicas that differ in it alone, each in the order of the axis. Every group has
// the axis' size, and together they name every replica once.
struct ReplicaAxis {
  std::string name;
  std::vector<std::vector<int64_t>> groups;
  int64_t size() const { return groups.empty() ? 1 : static_cast<int64_t>(groups[0].size()); }
};

struct PrintOptions {
  int64_t replicas = 1;
  std::vector<ReplicaAxis> axes;  // those of size 1 may be left out
  bool donate = true;             // false: no output takes a param's memory
  // The device has host memory behind it (a TPU): offload and fetch are placements, which XLA's own passes
  // follow. false (a CPU plug-in): they are nothing, the values stay where they are.
  bool host_memory = false;
};

// A pure function of its arguments: equal graphs print equal text. Each node's lines follow a comment with
// its id, kind, module path and role. An error names the op (kind and module path) that cannot be printed: a
// collective over an axis that is not there or of another size.
Result<std::string> print_stablehlo(const ir::Graph& local, const PrintOptions& options);

}  // namespace lignum::pjrt
