// activation_grad: dx = dy * act'(x), with act(x) = x s(z(x)): act'(x) = s (1 + x z'(x) (1 - s))
// (glu/activation.h). All of one type, f32 or bf16.
#include "ops/glu/activation.h"

namespace lignum::ops {
namespace {

struct ActivationGrad {
  static constexpr std::string_view kName = "activation_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "dy", in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(activation_of(attrs).status());
    return Types{in[1]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f, f}, .out = {f}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 5);
    c.transcendentals = static_cast<double>(s.out[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& site, std::span<const Value> in) {
    Arith m(b);
    const Value dy = m.f32(in[0]), x = m.f32(in[1]);
    const auto [s, inner] = activation_nodes(m, *activation_of(site.attrs), x);
    const Value scaled = inner ? m.mul(x, *inner) : x;
    const Value slope = m.mul(s, m.add(m.mul(scaled, m.sub(1.0, s)), 1.0));
    return {b.convert(m.mul(dy, slope), site.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const kernels::Activation activation = *activation_of(c.site.attrs);
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double x = c.in[1]->data[i];
      const auto [s, slope] = activation_at(activation, x);
      c.out[0].data[i] = c.in[0]->data[i] * s * (1 + x * slope * (1 - s));
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).activation_grad(*activation_of(c.site.attrs), c.site.out[0].elements(),
                                                   kernel_in(c, 0), kernel_in(c, 1), kernel_out(c, 0),
                                                   c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}, {0, 1}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() { return glu_cases(2, 1); }
};

}  // namespace

LIGNUM_DEFINE_OP(activation_grad, ActivationGrad)

}  // namespace lignum::ops
