// offload: starts to copy a tensor to host memory: T -> async host T. The copy engine's own time, under
// compute; the tensor stays untouched until the await.
#include "ops/offload/transfer.h"

namespace lignum::ops {
namespace {

struct Offload {
  static constexpr std::string_view kName = "offload";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) { return infer_transfer(in, true); }

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

  static std::vector<std::string> emit(const EmitCall& c) { return emit_placement(c, "pinned_host"); }

  static std::vector<Case> cases() { return cases_transfer(true); }
};

}  // namespace

LIGNUM_DEFINE_OP(offload, Offload)

}  // namespace lignum::ops
