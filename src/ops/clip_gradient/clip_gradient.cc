// clip_gradient: g where |x| <= bound, each tile by its own (quantize/tiles.h), else 0: what passes back
// through a quantisation that clips x. x and bound of one dtype, f32 or bf16; g too, or of the other one.
#include <cmath>

#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

struct ClipGradient {
  static constexpr std::string_view kName = "clip_gradient";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "g"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "x", in[0].dims, "those of g"));
    LIGNUM_RETURN_IF_ERROR(expect_scale(in[1], in[2], "bound", in[1].dtype));
    Type out = in[0];
    if (out.names.empty()) out.names = in[1].names;
    return Types{std::move(out)};
  }

  static Gradients grad(const GradCall& c) {
    return {c.build.add(kName, {c.cotangent(0), c.inputs[1], c.inputs[2]}), std::nullopt, std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    const auto f = factors(s.in[0].rank());
    rule.in = {f, f, {}};
    rule.in[2] = scale_factors(s.in[1], f, s.in[2], rule.exact);
    rule.out = {f};
    rule.linear_in = 0;
    return rule;
  }

  static Cost cost(const Site& s) { return streaming_cost(s); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value inside = m.compare("le", b.elementwise("abs", {in[1]}), spread(b, in[2], s.in[1].dims));
    return {m.select(inside, in[0], m.like(in[0], 0))};
  }

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.in[1].dims;
    for_each_index(dims, [&](const Dims& index, int64_t n) {
      const auto i = static_cast<size_t>(n);
      const double bound = c.in[2]->data[static_cast<size_t>(tile_of(index, dims, c.in[2]->dims))];
      c.out[0].data[i] = std::fabs(c.in[1]->data[i]) <= bound ? c.in[0]->data[i] : 0;
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).clip_gradient(tiles_of(c.site.in[1], c.site.in[2]), kernel_in(c, 0),
                                                 kernel_in(c, 1), kernel_in(c, 2), kernel_out(c, 0),
                                                 c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims x, Dims bound, DType of_x) {
      return Case{
          std::move(name), {tensor(dtype, x), tensor(of_x, x), tensor(of_x, bound, Fill::positive)}, {}};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    std::vector<Case> cases = {
        make("tensor", bf16, {4, 6, 37}, {1, 1, 1}, bf16), make("rows", f32, {4, 6, 37}, {4, 6, 1}, f32),
        make("columns", f32, {6, 38}, {1, 38}, bf16),      make("tiles", bf16, {4, 256}, {4, 2}, f32),
        make("one_row", f32, {1, 64}, {1, 1}, bf16),       make("empty", f32, {0, 5}, {1, 5}, f32),
        make("bench", bf16, {2048, 4096}, {1, 1}, bf16)};
    cases.back().bench = true;
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(clip_gradient, ClipGradient)

}  // namespace lignum::ops
