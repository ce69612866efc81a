// glu_grad: the gradients of glu's gate and up. dgate = dy * up * act'(gate), dup = dy * act(gate); for silu
// act'(g) = s (1 + g (1 - s)), s = 1 / (1 + exp(-g)). All of one type, f32 or bf16.
#include <cmath>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct GluGrad {
  static constexpr std::string_view kName = "glu_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "gate"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "dy", in[1], "gate"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[2], "up", in[1], "gate"));
    LIGNUM_ASSIGN_OR_RETURN(const std::string activation, string_attr(attrs, "activation"));
    if (activation != "silu") return user_error("attribute activation = \"{}\"; allowed: silu", activation);
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
    const Value sigmoid = m.logistic(gate);
    const Value slope = m.mul(sigmoid, m.add(m.mul(gate, m.sub(1.0, sigmoid)), 1.0));
    const Value dgate = m.mul(m.mul(dy, up), slope);
    const Value dup = m.mul(dy, m.mul(gate, sigmoid));
    return {b.convert(dgate, s.out[0].dtype), b.convert(dup, s.out[1].dtype)};
  }

  static void reference(const RefCall& c) {
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double dy = c.in[0]->data[i], gate = c.in[1]->data[i], up = c.in[2]->data[i];
      const double s = 1 / (1 + std::exp(-gate));
      c.out[0].data[i] = dy * up * s * (1 + gate * (1 - s));
      c.out[1].data[i] = dy * gate * s;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).glu_grad(kernels::Activation::silu, c.site.out[0].elements(),
                                            kernel_in(c, 0), kernel_in(c, 1), kernel_in(c, 2),
                                            kernel_out(c, 0), kernel_out(c, 1), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) {
    return {.in_place = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}};
  }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    const auto make = [](std::string name, DType dtype, Dims dims, double deviation = 1, bool bench = false) {
      return Case{std::move(name),
                  {tensor(dtype, dims), tensor(dtype, dims, Fill::normal, deviation), tensor(dtype, dims)},
                  {{"activation", std::string("silu")}},
                  1,
                  bench};
    };
    return {
        make("one_row", f32, {1, 16}),      make("scalar", f32, {}),
        make("odd", f32, {3, 37}),          make("misaligned", f32, {211}),
        make("saturated", f32, {5, 7}, 30), make("bf16", bf16, {3, 37}),
        make("empty", f32, {0, 3}),         make("bench", bf16, {2048, 8192}, 1, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(glu_grad, GluGrad)

}  // namespace lignum::ops
