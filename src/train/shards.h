// A rank's shard of a tensor, as runs of contiguous elements: what loading, initialising and saving walk.
#pragma once

#include "base/parallel.h"
#include "passes/partition.h"

namespace lignum::train {

// Calls fn(local, global, count) for each maximal contiguous run of elements that `rank` holds of a tensor of
// `dims` (local: index into the shard, padding included in its strides; global: index into the whole tensor;
// count >= 1), ascending.
void for_each_run(const std::vector<int64_t>& dims, const passes::Sharding& sharding,
                  const passes::Mesh& mesh, int64_t rank,
                  FunctionRef<void(int64_t local, int64_t global, int64_t count)> fn);

// True when this rank is the one, of those that hold the same shard, that writes it: all unsharded axes at 0.
bool writes_shard(const passes::Sharding& sharding, const passes::Mesh& mesh, int64_t rank);

}  // namespace lignum::train
