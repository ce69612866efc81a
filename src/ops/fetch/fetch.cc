// fetch: starts to copy a tensor back from host memory: host T -> async T.
#include "ops/offload/transfer.h"

namespace lignum::ops {
namespace {

struct Fetch : Transfer<false> {
  static constexpr std::string_view kName = "fetch";
};

}  // namespace

LIGNUM_DEFINE_OP(fetch, Fetch)

}  // namespace lignum::ops
