// A collective as data: what the graph's collective nodes become, what an engine queues and a transport runs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace lignum::comm {

enum class Kind : uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, permute, barrier };

const char* kind_name(Kind);

// The tensor is seen as three dims: outer, the dim that is gathered or scattered ("rows"), and the elements
// of a row (all dims after it). With G the number of ranks of the group:
//
//   all_gather      in [outer, local_rows, row_elems]    out [outer, logical_rows, row_elems]
//   reduce_scatter  in [outer, logical_rows, row_elems]  out [outer, local_rows, row_elems]
//   all_reduce      in, out [outer, local_rows, row_elems]
//   broadcast       in (read on the root only), out [outer, local_rows, row_elems]
//   permute         in, out [outer, local_rows, row_elems]: out is the `in` of the rank `shift` places before
//                   this one, round the group
//   barrier         nothing but group and id is read
//
// Rank i of the group holds rows i*local_rows and on. An uneven dim is padded in the local shape and nowhere
// else: logical_rows may be anything in 1..G*local_rows; all_gather drops the rows past it, reduce_scatter
// gives zeros there. (The other kinds do not read logical_rows.)
//
// Sums are this project's own, and their bits are a function of the values alone: whoever owns an element
// adds the ranks' values in ascending rank order, starting from the first rank's value (so -0 stays -0): bf16
// and f32 in fp32, f64 in double, i32 modulo 2^32; then rounds once to out_dtype. Every rank gets the same
// bits.
//
// Sums take f32, bf16, f64, i32; out_dtype may differ from dtype for bf16 -> f32 only (a bf16 wire under an
// fp32 accumulator). The other kinds take every dtype and move bytes.
//
// An all_reduce may take the largest of each element instead (maximum): f32 or bf16, exactly, NaN above all.
//
// In place: all_reduce and broadcast with out == in (same dtype); all_gather with `in` and reduce_scatter
// with `out` at this rank's own place in the whole, if outer == 1 and the rows are even. Otherwise buffers do
// not overlap.
struct Collective {
  Kind kind = Kind::barrier;
  DType dtype = DType::f32;
  std::optional<DType> out_dtype{};  // sums only; absent: dtype
  bool maximum = false;              // all_reduce only
  const void* in = nullptr;
  void* out = nullptr;
  int64_t outer = 1;
  int64_t local_rows = 1;
  int64_t row_elems = 1;
  int64_t logical_rows = 1;
  int group = 0;             // as given by Transport::add_group
  int root = 0;              // broadcast: position in the group
  int shift = 0;             // permute: 0..G-1
  int64_t id = 0;            // the graph's node, say: compared between ranks, and named in errors
  int64_t submitted_ns = 0;  // steady_ns() when an engine took it; 0: it is run at once
};

// Ok, or what in the collective is wrong for a group of that many ranks.
Status check(const Collective&, int group_size);

// check(), and what only the rank at that position of the group can see: the root's buffer of a broadcast.
Status check_on_rank(const Collective&, int group_size, int position);

// True when two ranks of a group mean the same call: kind, id, dtypes, root and sizes (what their kind
// reads).
bool same_call(const Collective&, const Collective&);

// "reduce_scatter id 12, bf16 -> f32, outer 1, local_rows 4, row_elems 8, logical_rows 7": for errors.
std::string describe(const Collective&);

// The error of collective `number` of a group: its members a and b run different ones.
Status ranks_differ(uint64_t number, std::span<const int> group, int a, const Collective& of_a, int b,
                    const Collective& of_b);

// Where `rank` stands in a group of world ranks, which must be ascending and within 0..size-1.
Result<int> position_in_group(std::span<const int> ranks, int rank, int size);

// The rows that rank i of the group holds and that exist: [begin, end) within 0..logical_rows; empty where
// all is pad.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
};
Rows rows_of(const Collective&, int i);

// out[e] = the sum over parts, in order, of parts[p][e] for e in [0, n), as Collective says; out may be one
// of parts (exactly), if dtypes are equal. parts is not empty. What every transport uses.
void sum_in_order(DType in, DType out_dtype, std::span<const void* const> parts, void* out, int64_t n);

// sum_in_order with the dtypes of the collective, or the maximum of the parts that it asks for.
void combine(const Collective&, std::span<const void* const> parts, void* out, int64_t n);

// The world ranks, ascending, that share `rank`'s coordinates on every mesh axis but those given (rank
// numbers are row-major: the last axis varies fastest): the group of one mesh axis, or of several taken
// together.
std::vector<int> axis_group(std::span<const int> mesh, std::span<const int> axes, int rank);

}  // namespace lignum::comm
