// One rank's view of the ranks it works with.
#pragma once

#include <span>

#include "base/status.h"
#include "comm/collective.h"

namespace lignum::comm {

// One object a rank. The calls of one object come from one thread at a time (a CommEngine's, say), except
// abort().
//
// All ranks of a group issue the same collectives on it in the same order. What differs (kind, dtype, sizes,
// root, id) is found when the ranks meet, and every call on every rank then ends with a Status that names the
// ranks and both collectives. Ranks that wait for each other in different groups, or for a rank that has
// left, are found as well and end the same way: nothing hangs.
//
// The first failure is the world's: every waiter wakes with it and every later call returns it.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Gives the next index (0, 1, ...) to a group of world ranks, strictly ascending, this rank among them.
  // Local: it waits for nobody. On a mesh every rank adds the groups of the same axes in the same order
  // (axis_group), so that an index means an axis and one program serves all ranks.
  virtual Result<int> add_group(std::span<const int> ranks) = 0;
  virtual int group_size(int group) const = 0;
  // This rank's position in the group.
  virtual int group_rank(int group) const = 0;

  // Runs the collective and returns when it is done: `out` is complete, and no other rank touches this rank's
  // buffers any more, whatever the Status. Allocates nothing unless it fails.
  virtual Status run(const Collective&) = 0;

  // Ends the world with this error; from any thread. Only the first error of a world counts.
  virtual void abort(const Status& error) = 0;
  // Ok, or the error that ended the world.
  virtual Status status() const = 0;
  // This rank makes no further call. A rank that waits for it, now or later, gets an error.
  virtual void leave() = 0;

  Status barrier(int group, int64_t id = 0) { return run({.kind = Kind::barrier, .group = group, .id = id}); }
  // Copies the root's bytes to every rank of the group: a decision that all must share.
  Status broadcast_bytes(int group, void* data, int64_t bytes, int root = 0) {
    return run({.kind = Kind::broadcast,
                .dtype = DType::u8,
                .in = data,
                .out = data,
                .row_elems = bytes,
                .group = group,
                .root = root});
  }

 protected:
  Transport() = default;
};

}  // namespace lignum::comm
