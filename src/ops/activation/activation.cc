// activation: act(x), element by element; "silu" or "gelu_tanh" (glu/activation.h). f32 or bf16. Of MLPs
// without a gate.
#include "ops/glu/activation.h"

namespace lignum::ops {
namespace {

struct ActivationOp {
  static constexpr std::string_view kName = "activation";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(activation_of(attrs).status());
    return Types{in[0]};
  }

  static Gradients grad(const GradCall& c) {
    return {c.build.add("activation_grad", {c.cotangent(0), c.inputs[0]}, c.site.attrs)};
  }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f}, .out = {f}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 3);
    c.transcendentals = static_cast<double>(s.out[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& site, std::span<const Value> in) {
    Arith m(b);
    const Value x = m.f32(in[0]);
    return {b.convert(m.mul(x, activation_nodes(m, *activation_of(site.attrs), x).s), site.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const kernels::Activation activation = *activation_of(c.site.attrs);
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double x = c.in[0]->data[i];
      c.out[0].data[i] = x * activation_at(activation, x).s;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).activation(*activation_of(c.site.attrs), c.site.out[0].elements(),
                                              kernel_in(c, 0), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() { return glu_cases(1, 0); }
};

}  // namespace

LIGNUM_DEFINE_OP(activation, ActivationOp)

}  // namespace lignum::ops
