// constant {dtype, dims, value} has the number `value` in every element; {dtype, dims, values=f[...]} lists
// all elements, row-major. Numbers are rounded to the dtype.
#include <cmath>
#include <limits>

#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {
namespace {

// An integer element takes a whole number that fits.
Status number_fits(DType dtype, double v) {
  const auto within = [&](double least, double beyond) -> Status {
    if (v == std::trunc(v) && v >= least && v < beyond) return {};
    return user_error("{} is no {}: whole numbers from {} to below {}", v, dtype_name(dtype), least, beyond);
  };
  switch (dtype) {
    case DType::i32:
      return within(-0x1p31, 0x1p31);
    case DType::u32:
      return within(0, 0x1p32);
    case DType::i64:
      return within(-0x1p63, 0x1p63);
    case DType::u8:
      return within(0, 256);
    case DType::pred:
      return within(0, 2);
    default:
      return {};
  }
}

struct Constant {
  static constexpr std::string_view kName = "constant";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 0));
    LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
    LIGNUM_ASSIGN_OR_RETURN(Dims dims, dims_attr(attrs, "dims"));
    const bool list = attrs.has<std::vector<double>>("values");
    if (list == attrs.has<double>("value"))
      return user_error("give one of value (a number) and values (a list f[...])");
    if (list) {
      const auto& values = attrs.get<std::vector<double>>("values");
      const int64_t elements = Type{dtype, dims, {}}.elements();
      if (static_cast<int64_t>(values.size()) != elements)
        return user_error("attribute values: {} numbers for {} elements", values.size(), elements);
      for (const double v : values) LIGNUM_RETURN_IF_ERROR(number_fits(dtype, v));
    } else {
      LIGNUM_RETURN_IF_ERROR(number_fits(dtype, attrs.get<double>("value")));
    }
    return one_type(dtype, std::move(dims));
  }

  static Gradients grad(const GradCall&) { return {}; }

  static ShardRule partition(const Site& s) {
    ShardRule rule;
    if (is_list(s)) {  // every rank needs the list as it stands
      rule.out = {std::vector<int>(s.out[0].dims.size(), -1)};
    } else {
      rule.out = {factors(s.out[0].rank())};
      rule.result_dims = "dims";
    }
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.work = Work::copy;
    return c;
  }

  static constexpr Primitive decompose{"a number has no parts"};

  static void reference(const RefCall& c) {
    if (is_list(c.site)) {
      c.out[0].data = c.site.attrs.get<std::vector<double>>("values");
    } else {
      std::fill(c.out[0].data.begin(), c.out[0].data.end(), c.site.attrs.get<double>("value"));
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Type& t = c.site.out[0];
    if (is_list(c.site)) {
      const auto& values = c.site.attrs.get<std::vector<double>>("values");
      for (size_t i = 0; i < values.size(); ++i)
        store_from_double(t.dtype, c.out[0], static_cast<int64_t>(i), values[i]);
    } else {
      kernels::fill(t.dtype, t.elements(), c.site.attrs.get<double>("value"), c.out[0], c.parallel);
    }
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const Type& t = c.site.out[0];
    std::string text;
    if (t.elements() > 0 && is_list(c.site)) {
      text = nested(t, c.site.attrs.get<std::vector<double>>("values"));
    } else if (t.elements() > 0) {
      text = mlir_number(t.dtype, c.site.attrs.get<double>("value"));
    }
    const std::string result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.constant dense<{}> : {}", result, text, mlir_type(t)));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, ir::Attr value) {
      Case c;
      c.name = std::move(name);
      const bool list = std::holds_alternative<std::vector<double>>(value);
      c.attrs = {{"dtype", std::string(dtype_name(dtype))}, {"dims", std::move(dims)}};
      c.attrs.set(list ? "values" : "value", std::move(value));
      return c;
    };
    return {
        make("f32", DType::f32, {3, 4}, 0.1),
        make("bf16", DType::bf16, {2, 6}, -3.3),
        make("infinity", DType::f32, {4}, -std::numeric_limits<double>::infinity()),
        make("scalar", DType::f32, {}, 1e-30),
        make("i32", DType::i32, {7}, -100.0),
        make("pred", DType::pred, {3, 2}, 1.0),
        make("empty", DType::f32, {0, 2}, 1.0),
        make("list", DType::f32, {2, 3}, std::vector<double>{1, -2.5, 1e10, 0.1, 0, -0.0}),
        make("list_bf16", DType::bf16, {3}, std::vector<double>{1.01, 2.02, 3.03}),
        make("list_i32", DType::i32, {2, 2}, std::vector<double>{1, -2, 3, 2147483647}),
        make("list_empty", DType::f32, {0}, std::vector<double>{}),
    };
  }

 private:
  static bool is_list(const Site& s) { return s.attrs.has<std::vector<double>>("values"); }
  static std::string nested(const Type& t, const std::vector<double>& values) {
    std::string text;
    for_each_index(t.dims, [&](const Dims& index, int64_t n) {
      size_t opened = 0;  // lists that begin at this element
      while (opened < index.size() && index[index.size() - 1 - opened] == 0) ++opened;
      size_t closed = 0;
      while (closed < index.size() &&
             index[index.size() - 1 - closed] + 1 == t.dims[index.size() - 1 - closed])
        ++closed;
      if (n > 0) text += ", ";
      text += std::string(opened, '[') + mlir_number(t.dtype, values[static_cast<size_t>(n)]) +
              std::string(closed, ']');
    });
    return text;
  }
};

}  // namespace

LIGNUM_DEFINE_OP(constant, Constant)

}  // namespace lignum::ops
