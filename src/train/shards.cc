#include "train/shards.h"

#include <algorithm>

namespace lignum::train {

void for_each_run(const std::vector<int64_t>& dims, const passes::Sharding& sharding,
                  const passes::Mesh& mesh, int64_t rank, FunctionRef<void(int64_t, int64_t, int64_t)> fn) {
  if (sharding.rounds > 1) {
    std::vector<int64_t> dealt = dims;
    dealt[0] /= sharding.rounds;
    dealt.insert(dealt.begin(), sharding.rounds);
    passes::Sharding of_rounds{sharding.dims};
    of_rounds.dims.emplace(of_rounds.dims.begin());
    return for_each_run(dealt, of_rounds, mesh, rank, fn);
  }
  const std::vector<int64_t> local = passes::local_dims(dims, sharding, mesh);
  std::vector<passes::Range> range(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    range[d] = passes::shard_range(
        dims[d], sharding.dims.empty() ? std::vector<std::string>{} : sharding.dims[d], mesh, rank);
    if (range[d].begin >= range[d].end) return;
  }
  // The innermost dim that is cut starts the run; all after it are whole.
  size_t inner = dims.size();
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= range[inner].end - range[inner].begin;
    if (local[inner] != dims[inner]) break;
  }
  std::vector<int64_t> at(inner, 0);  // index within the shard of the outer dims
  while (true) {
    int64_t l = 0, g = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t i = d < inner ? at[d] : 0;
      l = l * local[d] + i;
      g = g * dims[d] + range[d].begin + i;
    }
    fn(l, g, run);
    size_t d = inner;
    while (d > 0 && ++at[d - 1] == range[d - 1].end - range[d - 1].begin) at[--d] = 0;
    if (d == 0) return;
  }
}

bool writes_shard(const passes::Sharding& sharding, const passes::Mesh& mesh, int64_t rank) {
  for (const passes::MeshAxis& axis : mesh.axes) {
    const bool shards = std::any_of(sharding.dims.begin(), sharding.dims.end(), [&](const auto& axes) {
      return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
    });
    if (!shards && mesh.coordinate(rank, axis.name) != 0) return false;
  }
  return true;
}

}  // namespace lignum::train
