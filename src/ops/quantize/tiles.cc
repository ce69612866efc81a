#include "ops/quantize/tiles.h"

namespace lignum::ops {

Status expect_scale(const Type& x, const Type& scale, std::string_view input, DType dtype) {
  LIGNUM_RETURN_IF_ERROR(expect_dtype(scale, input, {dtype}));
  LIGNUM_RETURN_IF_ERROR(expect_rank(scale, input, x.rank()));
  for (size_t d = 0; d < x.dims.size(); ++d) {
    const int64_t n = x.dims[d], scales = scale.dims[d];
    if (scales == n || (scales > 0 && n % scales == 0)) continue;
    return user_error("{} is {}: its dim {} must divide {}, the size of what it scales", input,
                      ir::to_string(scale), d, n);
  }
  return {};
}

std::vector<int> scale_factors(const Type& x, const std::vector<int>& of_x, const Type& scale,
                               std::vector<int>& exact) {
  std::vector<int> out;
  for (size_t d = 0; d < of_x.size(); ++d) {
    const bool same = scale.dims[d] == x.dims[d];
    out.push_back(same || scale.dims[d] > 1 ? of_x[d] : -1);
    if (!same && scale.dims[d] > 1) exact.push_back(of_x[d]);
  }
  return out;
}

int64_t tile_of(const Dims& index, const Dims& dims, const Dims& scales) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * scales[d] + index[d] / (dims[d] / scales[d]);
  return at;
}

Value spread(Builder& b, Value scale, const Dims& dims) {
  // A dim of tiles is two: the tile, and the place in it.
  const Dims from = b.type(scale).dims;
  Dims split, where;
  for (size_t d = 0; d < dims.size(); ++d) {
    where.push_back(static_cast<int64_t>(split.size()));
    split.push_back(from[d] == 1 ? dims[d] : from[d]);
    if (from[d] != 1 && from[d] != dims[d]) split.push_back(dims[d] / from[d]);
  }
  return b.reshape(b.broadcast(scale, split, where), dims);
}

}  // namespace lignum::ops
