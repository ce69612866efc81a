// glu_grad: the gradients of glu's gate and up. dgate = dy * up * act'(gate), dup = dy * act(gate);
// act(g) = g s(z(g)): act'(g) = s (1 + g z'(g) (1 - s)) (glu/activation.h). All of one type, f32 or bf16.
#include "ops/glu/activation.h"

namespace lignum::ops {
namespace {

struct GluGrad {
  static constexpr std::string_view kName = "glu_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "gate"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "dy", in[1], "gate"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[2], "up", in[1], "gate"));
    LIGNUM_RETURN_IF_ERROR(activation_of(attrs).status());
    return Types{in[1], in[2]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f, f, f}, .out = {f, f}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 5);
    c.transcendentals = static_cast<double>(s.out[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value dy = m.f32(in[0]), gate = m.f32(in[1]), up = m.f32(in[2]);
    const auto [sigmoid, inner] = activation_nodes(m, *activation_of(s.attrs), gate);
    const Value scaled = inner ? m.mul(gate, *inner) : gate;
    const Value slope = m.mul(sigmoid, m.add(m.mul(scaled, m.sub(1.0, sigmoid)), 1.0));
    const Value dgate = m.mul(m.mul(dy, up), slope);
    const Value dup = m.mul(dy, m.mul(gate, sigmoid));
    return {b.convert(dgate, s.out[0].dtype), b.convert(dup, s.out[1].dtype)};
  }

  static void reference(const RefCall& c) {
    const kernels::Activation activation = *activation_of(c.site.attrs);
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double dy = c.in[0]->data[i], gate = c.in[1]->data[i], up = c.in[2]->data[i];
      const auto [s, slope] = activation_at(activation, gate);
      c.out[0].data[i] = dy * up * s * (1 + gate * slope * (1 - s));
      c.out[1].data[i] = dy * gate * s;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).glu_grad(*activation_of(c.site.attrs), c.site.out[0].elements(),
                                            kernel_in(c, 0), kernel_in(c, 1), kernel_in(c, 2),
                                            kernel_out(c, 0), kernel_out(c, 1), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) {
    return {.in_place = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}};
  }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() { return glu_cases(3, 1); }
};

}  // namespace

LIGNUM_DEFINE_OP(glu_grad, GluGrad)

}  // namespace lignum::ops
