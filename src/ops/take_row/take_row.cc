// take_row: a row of a stack, by an index that is a value; zeros where there is no such row.
//   stack [n, ...] of any dtype, index i32 scalar -> [...]: stack[index], 0 where not 0 <= index < n
#include <cstring>

#include "ops/take_row/rows.h"

namespace lignum::ops {
namespace {

struct TakeRow {
  static constexpr std::string_view kName = "take_row";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(check_stack(in[0], in[1]));
    return Types{row_of_stack(in[0])};
  }

  static Gradients grad(const GradCall& c) {
    if (!dtype_is_float(c.site.in[0].dtype)) return {std::nullopt, std::nullopt};
    const Value zeros = c.build.constant(c.site.in[0].dtype, c.site.in[0].dims, 0.0);
    return {c.build.add("put_row", {zeros, c.cotangent(0), c.inputs[1]}), std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    const auto row = factors(s.out[0].rank());
    std::vector<int> stack = row;
    stack.insert(stack.begin(), -1);
    return {.in = {std::move(stack), {}}, .out = {row}, .linear = false};
  }

  static Cost cost(const Site& s) {
    Cost c;
    c.work = Work::copy;
    c.read = c.write = static_cast<double>(s.out[0].bytes());
    return c;
  }

  static constexpr Primitive decompose{"an index that is a value"};

  static void reference(const RefCall& c) {
    const auto index = static_cast<int32_t>(c.in[1]->data[0]);
    if (!has_row(c.site.in[0], index)) return;
    const size_t n = c.out[0].data.size();
    for (size_t i = 0; i < n; ++i) c.out[0].data[i] = c.in[0]->data[static_cast<size_t>(index) * n + i];
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const int32_t index = *data_in<int32_t>(c, 1);
    const int64_t bytes = c.site.out[0].bytes();
    if (has_row(c.site.in[0], index)) {
      copy_row(c.out[0], data_in<std::byte>(c, 0) + index * bytes, bytes, c.parallel);
    } else if (bytes > 0) {
      std::memset(c.out[0], 0, static_cast<size_t>(bytes));
    }
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const Type& stack = c.site.in[0];
    const std::string type = mlir_type(c.site.out[0]), zero = c.out.fresh();
    const std::string there = emit_has_row(c.out, stack, c.in[1]);
    const EmittedRow row = emit_row(c.out, stack, c.in[0], c.in[1]);
    const std::string taken = c.out.fresh(), result = c.out.fresh();
    c.out.line(
        fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", taken, row.value, mlir_type(row.type), type));
    c.out.line(
        fmt::format("{} = stablehlo.constant dense<{}> : {}", zero, mlir_number(stack.dtype, 0), type));
    c.out.line(
        fmt::format("{} = stablehlo.select {}, {}, {} : tensor<i1>, {}", result, there, taken, zero, type));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, Fill fill = Fill::position) {
      const double rows = fill == Fill::label ? 0 : static_cast<double>(dims[0]);
      const Fill values = dtype_is_float(dtype) ? Fill::normal : Fill::token;
      return Case{std::move(name),
                  {tensor(dtype, std::move(dims), values, values == Fill::token ? 100 : 1),
                   tensor(DType::i32, {}, fill, rows)},
                  {}};
    };
    return {make("one_row", DType::f32, {1, 8}),       make("scalars", DType::i32, {5}),
            make("odd", DType::f32, {7, 3, 37}),       make("no_such_row", DType::f32, {3, 5}, Fill::label),
            make("misaligned", DType::bf16, {4, 211}), make("empty", DType::f32, {2, 0, 3}),
            make("integers", DType::i32, {6, 9}),      make("long", DType::bf16, {3, 2, 70001})};
  }
};

}  // namespace

LIGNUM_DEFINE_OP(take_row, TakeRow)

}  // namespace lignum::ops
