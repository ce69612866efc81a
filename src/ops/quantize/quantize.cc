// quantize {dtype, clips}: x / scale, each tile by its own (tiles.h), x and the quotient rounded to scale's
// dtype (x's, or bf16 where x is f32), then clipped to the finite range of the 8-bit format dtype and rounded
// to nearest even; NaN is kept. With clips=true a third input is the bound of |x| that the scale was made of:
// what lies outside has no gradient. The gradient of the result is that of what it stands for, result *
// scale, in scale's dtype, and passes straight through.
#include "ops/quantize/tiles.h"

namespace lignum::ops {
namespace {

struct Quantize {
  static constexpr std::string_view kName = "quantize";
  static constexpr bool kStraightThrough = true;

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    bool clips = false;
    if (attrs.all().contains("clips")) {
      LIGNUM_ASSIGN_OR_RETURN(clips, bool_attr(attrs, "clips"));
    }
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, clips ? 3 : 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    const bool narrows = in[0].dtype == DType::f32 && in[1].dtype == DType::bf16;
    LIGNUM_RETURN_IF_ERROR(expect_scale(in[0], in[1], "scale", narrows ? DType::bf16 : in[0].dtype));
    if (clips) LIGNUM_RETURN_IF_ERROR(expect_like(in[2], "bound", in[1], "scale"));
    LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
    LIGNUM_RETURN_IF_ERROR(
        expect_dtype({dtype, {}, {}}, "attribute dtype", {DType::f8e4m3fn, DType::f8e5m2}));
    return one_type(dtype, in[0].dims, in[0].names);
  }

  static Gradients grad(const GradCall& c) {
    Gradients none(c.inputs.size());
    const Value dx = c.build.convert(c.cotangent(0), c.site.in[0].dtype);
    none[0] = dx;
    if (c.inputs.size() == 3) {
      const Value x = c.build.convert(c.inputs[0], c.site.in[1].dtype);
      none[0] = c.build.add("clip_gradient", {dx, x, c.inputs[2]});
    }
    return none;
  }

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    const auto f = factors(s.in[0].rank());
    rule.in.assign(s.in.size(), f);
    for (size_t i = 1; i < s.in.size(); ++i) rule.in[i] = scale_factors(s.in[0], f, s.in[i], rule.exact);
    rule.out = {f};
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s);
    c.inner = s.in[1].dtype;
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Value x = b.convert(in[0], s.in[1].dtype);
    const Value quotient = Arith(b).div(x, spread(b, in[1], s.in[0].dims));
    return {b.convert(quotient, s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const Dims& dims = c.site.in[0].dims;
    const double limit = float8_largest(c.site.out[0].dtype);
    for_each_index(dims, [&](const Dims& index, int64_t n) {
      const double scale = c.in[1]->data[static_cast<size_t>(tile_of(index, dims, c.in[1]->dims))];
      const double q = c.in[0]->data[static_cast<size_t>(n)] / scale;
      c.out[0].data[static_cast<size_t>(n)] = q < -limit ? -limit : q > limit ? limit : q;
    });
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).quantize(tiles_of(c.site.in[0], c.site.in[1]), kernel_in(c, 0),
                                            kernel_in(c, 1), kernel_out(c, 0), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims x, Dims scale, DType format, double size,
                         bool clips = false, bool narrows = false) {
      Case c{std::move(name), {tensor(dtype, std::move(x), Fill::normal, size)}, {}};
      for (int i = 0; i < (clips ? 2 : 1); ++i)
        c.in.push_back(tensor(narrows ? DType::bf16 : dtype, scale, Fill::positive));
      c.attrs.set("dtype", std::string(dtype_name(format)));
      if (clips) c.attrs.set("clips", true);
      return c;
    };
    constexpr DType e4m3 = DType::f8e4m3fn, e5m2 = DType::f8e5m2;
    std::vector<Case> cases = {
        make("tensor", DType::bf16, {4, 6, 37}, {1, 1, 1}, e4m3, 100),
        make("rows", DType::f32, {4, 6, 37}, {4, 6, 1}, e4m3, 300),
        make("columns", DType::bf16, {6, 38}, {1, 38}, e5m2, 20000),
        make("tiles", DType::f32, {4, 256}, {4, 2}, e5m2, 1),
        make("blocks", DType::bf16, {256, 384}, {2, 3}, e4m3, 10),
        make("clips", DType::bf16, {5, 18}, {1, 1}, e4m3, 1, true),
        make("master", DType::f32, {6, 38}, {6, 1}, e4m3, 1, true, true),
        make("master_columns", DType::f32, {6, 38}, {1, 38}, e5m2, 1, false, true),
        make("one_row", DType::f32, {1, 64}, {1, 1}, e4m3, 0.01),
        make("empty", DType::f32, {0, 5}, {1, 5}, e4m3, 1),
        make("bench", DType::bf16, {2048, 4096}, {1, 1}, e4m3, 100),
    };
    cases.back().bench = true;
    return cases;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(quantize, Quantize)

}  // namespace lignum::ops
