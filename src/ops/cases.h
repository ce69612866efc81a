// What tests, gradient checks and micro-benchmarks make of an op's cases: inputs, buffers, bounds.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/op.h"

namespace lignum::ops {

// An input of a case: the bytes in its dtype, and the same (rounded) values in double. Deterministic in the
// op's and the case's name, the input's place and the rank.
//   normal      mean 0, standard deviation `bound`
//   positive    [0.25, 2.25)
//   uniform01   [0, 1)
//   token       0 .. bound - 1
//   label       as token, but about every fifth is the ignored label (kernels::kIgnoredLabel); bound 0: all
//   are position    0 .. bound - 1 predicate   0 or 1
struct CaseTensor {
  Type type;
  std::vector<std::byte> bytes;
  RefTensor values;
};
std::vector<CaseTensor> case_inputs(const Op& op, const Case& c, int64_t rank = 0);

// A case with its types inferred.
struct CaseSite {
  Types in, out;
  Attrs attrs;
  Site site;
  CaseSite(const Op& op, const Case& c);  // aborts with the rule's words when the case is not well typed
  CaseSite(Types in, Types out, Attrs attrs);
  CaseSite(const CaseSite&) = delete;
};

// A buffer of `bytes` at `offset` bytes past a 64-byte boundary (aligned: 0; misaligned: the element's size
// and no more), fenced on both sides: intact() tells whether anything wrote beside it.
class Buffer {
 public:
  Buffer(int64_t bytes, int64_t offset);
  void* data() { return data_; }
  const void* data() const { return data_; }
  bool intact() const;

 private:
  int64_t bytes_, before_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* begin_;
  std::byte* data_;
};

// How far a result of a kernel may be from the reference, computed from shapes and dtypes:
//   |error| <= relative * |reference| + absolute
// relative: half a unit in the last place of the dtype; absolute: the f32 round-off of the op's arithmetic
// per element (its cost's FLOPs over its elements, L), which grows with sqrt(L) as errors of independent
// sign do, at the scale of the largest input or result; likewise half a unit of what the parts of a compound
// op round to on the way (Cost::inner). Integers and predicates are exact.
struct Bound {
  double relative = 0, absolute = 0;
};
Bound result_bound(const Op& op, const Site& site, std::span<const RefTensor* const> in,
                   const RefTensor& reference, DType dtype);

// "" when all is within the bound, else the worst element: its index, both values, the error and the bound.
// NaN agrees with NaN, an infinity with itself.
std::string compare(const RefTensor& reference, std::span<const double> got, Bound bound);
RefTensor load(const Type& type, const void* data);

// The largest magnitude of the finite elements.
double scale_of(const RefTensor& t);

}  // namespace lignum::ops
