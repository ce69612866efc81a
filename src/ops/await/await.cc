// await: the result of what was started, complete: async T -> T, the same bytes. Waiting itself is the
// engine's: this op's place in the schedule says until when the transfer may run.
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct Await {
  static constexpr std::string_view kName = "await";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    if (in.size() != 1) return user_error("takes 1 input, not {}", in.size());
    if (!in[0].async) return user_error("takes what was started, not {}", ir::to_string(in[0]));
    Type out = in[0];
    out.async = false;
    return Types{std::move(out)};
  }

  // A gradient is never on its way: it passes, and the collective's own rule sends it back.
  static Gradients grad(const GradCall& c) {
    if (!dtype_is_float(c.site.in[0].dtype)) return {std::nullopt};
    return {c.cotangents[0]};
  }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f}, .out = {f}, .linear = true};
  }

  static Cost cost(const Site&) { return {.work = Work::none}; }

  static constexpr Primitive decompose{"communication"};

  static void reference(const RefCall& c) { c.out[0].data = c.in[0]->data; }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    copy_through(c, 0, 0);
    return {};
  }

  static Buffers buffers(const Site&) { return {.view = {{0, 0}}}; }

  // The printed collective gives its result at once; what runs beside it is the compiler's choice.
  static std::vector<std::string> emit(const EmitCall& c) { return {c.in[0]}; }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, bool bench = false) {
      CaseInput x = tensor(dtype, std::move(dims));
      x.type.async = true;
      return Case{std::move(name), {std::move(x)}, {}, 1, bench};
    };
    return {
        make("one_row", DType::f32, {1, 8}),
        make("odd", DType::f32, {3, 37}),
        make("misaligned", DType::bf16, {211}),
        make("bench", DType::bf16, {4096, 1024}, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(await, Await)

}  // namespace lignum::ops
