// fetch: starts to copy a tensor back from host memory: host T -> async T.
#include "ops/offload/transfer.h"

namespace lignum::ops {
namespace {

struct Fetch {
  static constexpr std::string_view kName = "fetch";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) { return infer_transfer(in, false); }

  static Gradients grad(const GradCall& c) { return grad_transfer(c); }

  static ShardRule partition(const Site& s) { return partition_transfer(s); }

  static Cost cost(const Site& s) { return cost_transfer(s); }

  static constexpr Primitive decompose{"a copy between memories"};

  static void reference(const RefCall& c) { c.out[0].data = c.in[0]->data; }

  static int64_t workspace(const Site&, int) { return 0; }

  // Of a step, the copy engine runs this.
  static Status cpu(const CpuCall& c) {
    copy_through(c, 0, 0);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) { return emit_placement(c, "device"); }

  static std::vector<Case> cases() { return cases_transfer(false); }
};

}  // namespace

LIGNUM_DEFINE_OP(fetch, Fetch)

}  // namespace lignum::ops
