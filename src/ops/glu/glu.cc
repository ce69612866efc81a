// glu: act(gate) * up, element by element; activation "silu": act(g) = g / (1 + exp(-g)). gate and up one
// type, f32 or bf16. Shazeer, "GLU Variants Improve Transformer", 2020.
#include <cmath>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct Glu {
  static constexpr std::string_view kName = "glu";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "gate"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[1], "up", in[0], "gate"));
    LIGNUM_ASSIGN_OR_RETURN(const std::string activation, string_attr(attrs, "activation"));
    if (activation != "silu") return user_error("attribute activation = \"{}\"; allowed: silu", activation);
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

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value gate = m.f32(in[0]);
    const Value y = m.mul(m.mul(gate, m.logistic(gate)), m.f32(in[1]));
    return {b.convert(y, s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double gate = c.in[0]->data[i];
      c.out[0].data[i] = gate / (1 + std::exp(-gate)) * c.in[1]->data[i];
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).glu(kernels::Activation::silu, c.site.out[0].elements(), kernel_in(c, 0),
                                       kernel_in(c, 1), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}, {0, 1}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    const auto make = [](std::string name, DType dtype, Dims dims, double deviation = 1, bool bench = false) {
      return Case{std::move(name),
                  {tensor(dtype, dims, Fill::normal, deviation), tensor(dtype, dims)},
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

LIGNUM_DEFINE_OP(glu, Glu)

}  // namespace lignum::ops
