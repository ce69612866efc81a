// convert {dtype}: each element to the nearest of another dtype. 8-bit floats saturate and keep NaN; float to
// integer truncates towards zero and saturates; anything to pred is x != 0.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

// The largest finite value of the 8-bit formats, where a conversion saturates.
double saturation(DType d) {
  return is_float8(d) ? float8_largest(d) : std::numeric_limits<double>::infinity();
}

struct Convert {
  static constexpr std::string_view kName = "convert";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
    return one_type(dtype, in[0].dims, in[0].names);
  }

  static Gradients grad(const GradCall& c) {
    if (!dtype_is_float(c.site.in[0].dtype) || !dtype_is_float(c.site.out[0].dtype)) return {std::nullopt};
    // An 8-bit float's gradient is as wide as the result's.
    if (is_float8(c.site.in[0].dtype)) return {c.cotangent(0)};
    return {c.build.convert(c.cotangent(0), c.site.in[0].dtype)};
  }

  // Widening is exact, so it commutes with a sum over ranks (which then adds in the wider dtype); rounding
  // each rank's part is not rounding the sum.
  static ShardRule partition(const Site& s) {
    ShardRule rule;
    rule.in = rule.out = {factors(s.out[0].rank())};
    const DType from = s.in[0].dtype, to = s.out[0].dtype;
    rule.linear =
        dtype_is_float(from) && (to == from || to == DType::f64 || (to == DType::f32 && from != DType::f64) ||
                                 (to == DType::bf16 && (from == DType::f8e4m3fn || from == DType::f8e5m2)));
    rule.widens = rule.linear && from == DType::bf16 && to == DType::f32;
    rule.rounds = !rule.linear && dtype_is_float(from) && dtype_is_float(to);
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.work = Work::copy;
    return c;
  }

  static constexpr Primitive decompose{"the one op that changes a dtype"};

  // In real numbers nothing is rounded: an edge's rounding is the interpreter's choice.
  static void reference(const RefCall& c) {
    const DType to = c.site.out[0].dtype;
    const double limit = saturation(to);
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double x = c.in[0]->data[i];
      double& y = c.out[0].data[i];
      if (to == DType::pred) {
        y = x != 0;
      } else if (dtype_is_float(to)) {
        y = std::isnan(x) ? x : std::clamp(x, -limit, limit);
      } else {
        const auto [least, most] = range(to);
        y = std::isnan(x) ? 0 : std::clamp(std::trunc(x), least, most);
      }
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    kernels::row_kernels(c.choice).convert(c.site.in[0].elements(), {c.site.in[0].dtype, c.in[0]},
                                           {c.site.out[0].dtype, c.out[0]}, c.parallel);
    return {};
  }

  static Buffers buffers(const Site& s) {
    Buffers b;
    if (dtype_size(s.in[0].dtype) == dtype_size(s.out[0].dtype)) b.in_place = {{0, 0}};
    return b;
  }

  // StableHLO's conversion to an 8-bit float overflows (to NaN or infinity): the value is clamped first.
  static std::vector<std::string> emit(const EmitCall& c) {
    std::string in = c.in[0];
    const Type& x = c.site.in[0];
    const double limit = saturation(c.site.out[0].dtype);
    if (std::isfinite(limit) && dtype_is_float(x.dtype) && x.dtype != c.site.out[0].dtype &&
        saturation(x.dtype) > limit) {
      const Type scalar{x.dtype, {}, {}};
      for (const double bound : {-limit, limit}) {
        const std::string number = c.out.fresh(), bounds = c.out.fresh(), clamped = c.out.fresh();
        c.out.line(fmt::format("{} = stablehlo.constant dense<{}> : {}", number, mlir_number(x.dtype, bound),
                               mlir_type(scalar)));
        c.out.line(fmt::format("{} = stablehlo.broadcast_in_dim {}, dims = [] : ({}) -> {}", bounds, number,
                               mlir_type(scalar), mlir_type(x)));
        c.out.line(fmt::format("{} = stablehlo.{} {}, {} : {}", clamped, bound < 0 ? "maximum" : "minimum",
                               in, bounds, mlir_type(x)));
        in = clamped;
      }
    }
    const std::string result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.convert {} : {} -> {}", result, in, mlir_types(c.site.in),
                           mlir_type(c.site.out[0])));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType from, DType to, Dims dims, Fill fill, double bound) {
      Case c;
      c.name = std::move(name);
      c.in = {{Type{from, std::move(dims), {}}, fill, bound}};
      c.attrs = {{"dtype", std::string(dtype_name(to))}};
      return c;
    };
    return {make("f32_bf16", DType::f32, DType::bf16, {4, 37}, Fill::normal, 1),
            make("bf16_f32", DType::bf16, DType::f32, {4, 37}, Fill::normal, 1),
            make("f32_f8e4m3fn", DType::f32, DType::f8e4m3fn, {2, 70}, Fill::normal, 200),
            make("f8e4m3fn_f32", DType::f8e4m3fn, DType::f32, {2, 70}, Fill::normal, 1),
            make("bf16_f8e5m2", DType::bf16, DType::f8e5m2, {2, 70}, Fill::normal, 20000),
            make("f8e5m2_bf16", DType::f8e5m2, DType::bf16, {2, 70}, Fill::normal, 1),
            make("f32_f32", DType::f32, DType::f32, {5}, Fill::normal, 1),
            make("i32_f32", DType::i32, DType::f32, {2, 6}, Fill::token, 1000),
            make("f32_i32", DType::f32, DType::i32, {2, 6}, Fill::normal, 100),
            make("f32_pred", DType::f32, DType::pred, {3, 5}, Fill::normal, 1),
            make("pred_bf16", DType::pred, DType::bf16, {3, 4}, Fill::predicate, 1),
            make("scalar", DType::f32, DType::bf16, {}, Fill::normal, 1),
            make("empty", DType::f32, DType::bf16, {0, 3}, Fill::normal, 1)};
  }

 private:
  static std::pair<double, double> range(DType d) {
    switch (d) {
      case DType::i32:
        return {-0x1p31, 0x1p31 - 1};
      case DType::u32:
        return {0, 0x1p32 - 1};
      case DType::i64:
        return {-0x1p63, std::nextafter(0x1p63, 0)};
      default:
        return {0, 255};
    }
  }
};

}  // namespace

LIGNUM_DEFINE_OP(convert, Convert)

}  // namespace lignum::ops
