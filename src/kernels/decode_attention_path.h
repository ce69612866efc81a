// Between cached_attention.cc and the ISA files. Internal.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/isa.h"

namespace lignum::kernels {

// One token and key/value head: q and out [group, dim]; the cache's rows of dim elements, ld apart, at k and
// at v, of which it sees [first_key, keys).
struct DecodeCall {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  int64_t first_key, keys, group, dim, ld;
  int64_t padded_dim;  // a multiple of 64: the widest step over the head dim of any ISA
  DType dtype;
  float scale;
  float softcap;  // 0: none
};

struct DecodePath {
  Isa isa;
  void (*token)(const DecodeCall&, float* workspace);
};

extern const DecodePath kDecodeScalar, kDecodeAvx2, kDecodeAvx512;

}  // namespace lignum::kernels
