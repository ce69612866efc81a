// reduce {fn: sum | max, dims}: the dims go away. sum accumulates in f32 and rounds once (i32 wraps); over
// nothing a sum is 0 and a maximum the least value there is.
#include <algorithm>
#include <limits>

#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

struct Reduce {
  static constexpr std::string_view kName = "reduce";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[0], "x", {DType::f32, DType::bf16, DType::i32}));
    LIGNUM_ASSIGN_OR_RETURN(const std::string fn, string_attr(attrs, "fn"));
    if (fn != "sum" && fn != "max") return user_error("attribute fn=\"{}\": sum or max", fn);
    LIGNUM_ASSIGN_OR_RETURN(const Dims reduced, indices_attr(attrs, "dims", in[0].rank()));
    Dims dims;
    std::vector<std::string> names;
    for (const int64_t d : others(in[0].rank(), {reduced})) {
      dims.push_back(in[0].dims[static_cast<size_t>(d)]);
      names.push_back(name_of(in[0], d));
    }
    return one_type(in[0].dtype, std::move(dims), std::move(names));
  }

  // max: elements that tie share the gradient.
  static Gradients grad(const GradCall& c) {
    const Type& x = c.site.in[0];
    if (!dtype_is_float(x.dtype)) return {std::nullopt};
    Builder& b = c.build;
    const Dims kept = others(x.rank(), {c.site.attrs.get<Dims>("dims")});
    const Value dy = c.cotangent(0);
    if (is_sum(c.site)) return {b.broadcast(dy, x.dims, kept)};
    const Value hit = b.elementwise("eq", {c.inputs[0], b.broadcast(c.outputs[0], x.dims, kept)});
    const Value ties = b.reduce("sum", b.convert(hit, x.dtype), c.site.attrs.get<Dims>("dims"));
    const Value share = b.broadcast(b.elementwise("div", {dy, ties}), x.dims, kept);
    return {b.elementwise("select", {hit, share, b.constant(x.dtype, x.dims, 0)})};
  }

  // The dims that stay come first. A sum over a sharded dim leaves a partial result, a maximum would not.
  static ShardRule partition(const Site& s) {
    const auto& reduced = s.attrs.get<Dims>("dims");
    ShardRule rule;
    rule.out = {factors(s.out[0].rank())};
    rule.in = {std::vector<int>(s.in[0].dims.size(), -1)};
    int factor = 0;
    for (const int64_t d : others(s.in[0].rank(), {reduced})) rule.in[0][static_cast<size_t>(d)] = factor++;
    rule.linear = is_sum(s);
    if (!is_sum(s)) return rule;
    for (const int64_t d : reduced) rule.in[0][static_cast<size_t>(d)] = factor++;
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = static_cast<double>(s.in[0].elements());
    return c;
  }

  static constexpr Primitive decompose{"the one op that sums along a dim"};

  static void reference(const RefCall& c) {
    const bool sum = is_sum(c.site);
    const Dims kept = others(c.site.in[0].rank(), {c.site.attrs.get<Dims>("dims")});
    const Dims strides = row_major_strides(c.out[0].dims);
    const bool integer = c.site.in[0].dtype == DType::i32;
    if (!sum)
      std::fill(c.out[0].data.begin(), c.out[0].data.end(),
                integer ? -0x1p31 : -std::numeric_limits<double>::infinity());
    for_each_index(c.in[0]->dims, [&](const Dims& index, int64_t n) {
      int64_t to = 0;
      for (size_t i = 0; i < kept.size(); ++i) to += index[static_cast<size_t>(kept[i])] * strides[i];
      double& y = c.out[0].data[static_cast<size_t>(to)];
      const double x = c.in[0]->data[static_cast<size_t>(n)];
      if (sum) {
        y += x;
      } else if (!(x <= y)) {  // a NaN stays
        y = y != y ? y : x;
      }
    });
    if (!integer || !sum) return;
    for (double& y : c.out[0].data) y = static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(y)));
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    uint32_t mask = 0;
    for (const int64_t d : c.site.attrs.get<Dims>("dims")) mask |= 1u << d;
    kernels::row_kernels(c.choice).reduce(is_sum(c.site) ? kernels::Reduction::sum : kernels::Reduction::max,
                                          c.site.in[0].dtype, c.site.in[0].dims, mask, c.in[0], c.out[0],
                                          c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  // A bf16 sum is widened first: it accumulates in f32 on every device.
  static std::vector<std::string> emit(const EmitCall& c) {
    const bool sum = is_sum(c.site);
    const DType dtype = c.site.in[0].dtype;
    const bool widen = sum && dtype == DType::bf16;
    Type x = c.site.in[0], y = c.site.out[0];
    std::string in = c.in[0];
    if (widen) {
      x.dtype = y.dtype = DType::f32;
      const std::string wide = c.out.fresh();
      c.out.line(
          fmt::format("{} = stablehlo.convert {} : {} -> {}", wide, in, mlir_types(c.site.in), mlir_type(x)));
      in = wide;
    }
    const double least = dtype == DType::i32 ? -0x1p31 : -std::numeric_limits<double>::infinity();
    const Type scalar{x.dtype, {}, {}};
    const std::string zero = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.constant dense<{}> : {}", zero,
                           mlir_number(x.dtype, sum ? 0 : least), mlir_type(scalar)));
    std::string result = c.out.fresh();
    c.out.line(
        fmt::format("{} = stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = {} : "
                    "({}, {}) -> {}",
                    result, in, zero, sum ? "add" : "maximum", mlir_list(c.site.attrs.get<Dims>("dims")),
                    mlir_type(x), mlir_type(scalar), mlir_type(y)));
    if (widen) {
      const std::string narrow = c.out.fresh();
      c.out.line(fmt::format("{} = stablehlo.convert {} : ({}) -> {}", narrow, result, mlir_type(y),
                             mlir_type(c.site.out[0])));
      result = narrow;
    }
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, std::string fn, DType dtype, Dims from, Dims dims) {
      Case c;
      c.name = std::move(name);
      c.in = {{Type{dtype, std::move(from), {}}}};
      if (dtype == DType::i32) c.in[0].fill = Fill::token, c.in[0].bound = 1000;
      c.attrs = {{"fn", std::move(fn)}, {"dims", std::move(dims)}};
      return c;
    };
    std::vector<Case> cases;
    for (const char* fn : {"sum", "max"}) {
      const auto add = [&](const char* name, DType dtype, Dims from, Dims dims) {
        cases.push_back(make(fmt::format("{}_{}", fn, name), fn, dtype, std::move(from), std::move(dims)));
      };
      add("last", DType::f32, {2, 6, 37}, {2});
      add("first", DType::f32, {6, 4, 5}, {0});
      add("middle", DType::f32, {2, 130, 4}, {1});
      add("outer_and_inner", DType::f32, {4, 6, 5}, {0, 2});
      add("unordered", DType::f32, {4, 6, 5}, {2, 0});
      add("all", DType::f32, {6, 33}, {0, 1});
      add("none", DType::f32, {3, 4}, {});
      add("one_row", DType::f32, {1, 64}, {0});
      add("bf16", DType::bf16, {4, 67}, {1});
      add("i32", DType::i32, {4, 9}, {1});
      add("over_nothing", DType::f32, {3, 0}, {1});
      add("empty", DType::f32, {0, 3}, {1});
    }
    cases.push_back(make("bench_rows", "sum", DType::f32, {4096, 1536}, {0}));
    cases.back().bench = true;
    return cases;
  }

 private:
  static bool is_sum(const Site& s) { return s.attrs.get<std::string>("fn") == "sum"; }
};

}  // namespace

LIGNUM_DEFINE_OP(reduce, Reduce)

}  // namespace lignum::ops
