// glu: act(gate) * up, element by element; activation "silu" or "gelu_tanh" (activation.h). gate and up one
// type, f32 or bf16. Shazeer, "GLU Variants Improve Transformer", 2020.
#include "ops/glu/activation.h"

namespace lignum::ops {
namespace {

struct Glu {
  static constexpr std::string_view kName = "glu";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "gate"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[1], "up", in[0], "gate"));
    LIGNUM_RETURN_IF_ERROR(activation_of(attrs).status());
    return Types{in[0]};
  }

  static Gradients grad(const GradCall& c) {
    const Values g = c.build.add_all("glu_grad", {c.cotangent(0), c.inputs[0], c.inputs[1]}, c.site.attrs);
    return {g[0], g[1]};
  }

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f, f}, .out = {f}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 4);
    c.transcendentals = static_cast<double>(s.out[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& site, std::span<const Value> in) {
    Arith m(b);
    const Value gate = m.f32(in[0]);
    const Value s = activation_nodes(m, *activation_of(site.attrs), gate).s;
    const Value y = m.mul(m.mul(gate, s), m.f32(in[1]));
    return {b.convert(y, site.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const kernels::Activation activation = *activation_of(c.site.attrs);
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double gate = c.in[0]->data[i];
      c.out[0].data[i] = gate * activation_at(activation, gate).s * c.in[1]->data[i];
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).glu(*activation_of(c.site.attrs), c.site.out[0].elements(),
                                       kernel_in(c, 0), kernel_in(c, 1), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}, {0, 1}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() { return glu_cases(2, 0); }
};

}  // namespace

LIGNUM_DEFINE_OP(glu, Glu)

}  // namespace lignum::ops
