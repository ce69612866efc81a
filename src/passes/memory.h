// Where every tensor of a SCHEDULED step lies: one arena a rank, and one of host memory where something is
// offloaded, planned before the first step. exec allocates nothing later.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "passes/schedule.h"

namespace lignum::passes {

// A place in the arena. Inside loops it moves with the iteration: base + sum over terms of stride * index,
// where index is the row that iteration works on (modulus 0) or, for buffers used in turn (prefetch), the
// iteration's number modulo modulus.
struct Term {
  int depth = 0;       // the loop, 0 = outermost
  int64_t stride = 0;  // bytes
  int64_t modulus = 0;
};
struct Place {
  int64_t base = -1;  // bytes from the arena's start
  std::vector<Term> terms;
  bool host = false;  // of the arena in host memory
};
// What is moved to or from host memory at a time begins at a multiple of this, for files are read and written
// in whole blocks: so does every row of a stack there.
inline constexpr int64_t kHostAlign = 4096;
// A param in host memory: how many rows it has there (is_stack in offload.h: its layers, else one), and how
// far they are from each other.
struct HostRows {
  int64_t rows = 1, bytes = 0, stride = 0;
};
HostRows host_rows(const ir::Type& param);

// Bytes to copy because two things cannot share a place (a saved layer input, a loop's carry).
struct Copy {
  Place from, to;
  int64_t bytes = 0;
  std::string what;
};

// Places of one graph's values, and of the bodies inside.
struct Layout {
  std::map<ir::Value, Place> places;            // every value, views included
  std::map<int32_t, Place> workspaces;          // by node
  std::map<int32_t, std::vector<Copy>> before;  // by scan node: before its first iteration (carries)
  std::vector<Copy> at_end;                     // at the end of an iteration, or of the step
  std::map<int32_t, Layout> bodies;             // by scan node
};

// Part: what a person asks for. "weights", "optimizer", "cache" (params "cache:..."), "inputs", "activations"
// (saved for the backward pass), "gradients", "logits", "gathered weights", "cast weights" (to the dtype of
// the step, not gathered), "fetched" (from host memory, in use or ahead of it), "workspace", "temporaries".
struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
};
// A stack that a loop writes, or reads for the last time, a row an iteration: the rows that live change
// during the loop. A stack that is written may take the place of one that is read, row after row.
struct RowLife {
  int32_t loop = -1;  // the scan node, -1: lives as a whole
  int64_t rows = 0, row_bytes = 0;
  bool reversed = false;  // from the last row to the first
};
struct Allocation {
  std::string part, what;  // what: module path and kind of the value
  std::string saved;       // of activations: the remat name, or module path and kind where there is none
  int64_t base = 0, bytes = 0;
  int64_t first = 0, last = 0;  // slots of its graph during which it lives, ends included
  bool host = false;
  int32_t frame =
      0;  // the graph: 0 the outermost, then its loops' bodies; a body's lie inside one of its parent's
  RowLife written, read;
};

struct MemoryPlan {
  Layout layout;
  int64_t state_bytes =
      0;  // params of the step: weights, optimizer, inputs; live all the time, at the arena's start
  int64_t arena_bytes = 0;             // all on the device
  int64_t host_bytes = 0;              // all in host memory
  int64_t host_state_bytes = 0;        // params of the step there, at its start
  std::vector<MemoryPart> host_state;  // of them "weights" and "optimizer"
  std::vector<MemoryPart>
      parts;  // at the fullest moment; together what is then in use (<= arena_bytes: the rest is gaps)
  // What the backward pass finds: the activations by their remat names, all that is held of each at some
  // moment, the largest first; on the device, and in host memory.
  std::vector<MemoryPart> saved, offloaded;
  std::vector<Allocation>
      allocations;  // of every graph; a loop stands in its parent as one, and its body follows
};

struct MemoryOptions {
  int threads = 1;  // of the rank's pool; kernels' workspaces depend on it, no bits do
  // A stack that a loop writes may take the place of one that the loop reads, row after row. XLA's buffers
  // live as a whole.
  bool share_rows = true;
};
MemoryPlan plan_memory(const Scheduled& step, const MemoryOptions& options);

// No two buffers, or rows of stacks, that live at once overlap; views and copies are consistent. For tests
// and after every planning.
Status verify_memory(const Scheduled& step, const MemoryPlan& plan);

}  // namespace lignum::passes
