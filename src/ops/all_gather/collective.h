// What the collectives share. Each starts a transfer: its result is async, and await gives the tensor.
// attributes: axis, the mesh axis of the group of ranks; group, how many ranks that is; dim, the one that is
// gathered or scattered. An uneven dim is padded: a rank's shard has ceil(size / group) rows, the last ranks
// hold fewer real ones.
#pragma once

#include "ops/facets.h"

namespace lignum::ops {

int64_t shard_size(int64_t size, int64_t group);  // ceil(size / group)

// Errors in axis and group; in dim (of a tensor of that rank) as well where the op has one.
Status check_group(const Attrs&);
Result<int64_t> check_dim(const Attrs&, int64_t rank);
// Errors for a dtype that is not summed across ranks: f32, bf16 and i32 are.
Status check_summed(const Type&);
// The dtype of a sum of x: attribute dtype, which may be f32 where x is bf16; x's without it.
Result<DType> sum_dtype(const Type& x, const Attrs&);

// A tensor that starts its way: x with another size of dim.
Type started(Type x, int64_t dim, int64_t size);

// The call that cpu makes; `whole` is the type that holds all rows, out's for all_gather, in's otherwise.
struct StartOptions {
  bool maximum = false;
  int64_t shift = 0;
};
Status start_collective(const CpuCall&, CollectiveCall::Kind, const Type& whole, StartOptions options = {});

// The gradient's transfer, started and awaited at once.
Value run_collective(Builder&, std::string_view kind, Value x, Attrs attrs);

// streaming_cost of a collective that receives so many bytes.
Cost collective_cost(const Site&, double wire);

// For the printed form: x cut to `to` (a gather's padding), or filled up with zeros to `to`.
std::string emit_cut(Emitter&, const std::string& x, const Type& from, const Type& to);
std::string emit_padded(Emitter&, const std::string& x, const Type& from, const Type& to);

// For the printed form: v, of dims and dtype as in `from`, in the dtype of `to`.
std::string emit_converted(Emitter&, const std::string& v, const Type& from, const Type& to);

Case collective_case(std::string name, DType, Dims dims, int64_t group, Attrs attrs, bool bench = false);

}  // namespace lignum::ops
