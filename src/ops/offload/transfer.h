// What offload and fetch share.
#pragma once

#include <string_view>

#include "ops/facets.h"

namespace lignum::ops {

// The type of x once it has started for the other memory: the result of offload (to_host) or fetch.
Result<Types> infer_transfer(std::span<const Type> in, bool to_host);
// A gradient stays on the device: it passes.
Gradients grad_transfer(const GradCall& c);
ShardRule partition_transfer(const Site& s);
Cost cost_transfer(const Site& s);
// XLA's placement of a value; where the target has no host memory, nothing.
std::vector<std::string> emit_placement(const EmitCall& c, std::string_view memory);
std::vector<Case> cases_transfer(bool to_host);

// All facets but the name.
template <bool kToHost>
struct Transfer {
  static Result<Types> infer(std::span<const Type> in, const Attrs&) { return infer_transfer(in, kToHost); }
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
  static std::vector<std::string> emit(const EmitCall& c) {
    return emit_placement(c, kToHost ? "pinned_host" : "device");
  }
  static std::vector<Case> cases() { return cases_transfer(kToHost); }
};

}  // namespace lignum::ops
