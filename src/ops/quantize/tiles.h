// What the ops with a scale for each tile of a tensor share. A tensor of scales has the tensor's rank; each
// of its dims divides the tensor's: 1 (all share one), the dim itself (each has its own), or the number of
// tiles.
#pragma once

#include "ops/facets.h"

namespace lignum::ops {

// Errors of dims that are not such, or of another dtype than `dtype`.
Status expect_scale(const Type& x, const Type& scale, std::string_view input, DType dtype);

inline kernels::Tiles tiles_of(const Type& x, const Type& scale) { return {x.dims, scale.dims}; }

// The factors of the scale's dims, where the tensor's are `of_x`: none where all share one scale. Dims of
// tiles are added to `exact`: a mesh axis must divide both.
std::vector<int> scale_factors(const Type& x, const std::vector<int>& of_x, const Type& scale,
                               std::vector<int>& exact);

// The scale of each element: the index of its tile, for references.
int64_t tile_of(const Dims& index, const Dims& dims, const Dims& scales);

// For decompositions: the scale as every element of a tensor of those dims.
Value spread(Builder&, Value scale, const Dims& dims);

}  // namespace lignum::ops
