// offload: starts to copy a tensor to host memory: T -> async host T. The copy engine's own time, under
// compute; the tensor stays untouched until the await.
#include "ops/offload/transfer.h"

namespace lignum::ops {
namespace {

struct Offload : Transfer<true> {
  static constexpr std::string_view kName = "offload";
};

}  // namespace

LIGNUM_DEFINE_OP(offload, Offload)

}  // namespace lignum::ops
