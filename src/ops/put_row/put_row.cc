// put_row: a stack with another row, by an index that is a value; the stack as it is where it has no such
// row.
//   stack [n, ...] of any dtype, row [...] of the same, index i32 scalar -> like stack, whose buffer it takes
// attributes: add (bool, false): the row is added to the one that is there (f32, bf16: in f32, rounded once);
// a
//   row of bf16 may be added to a stack of f32
#include <algorithm>

#include "ops/take_row/rows.h"

namespace lignum::ops {
namespace {

struct PutRow {
  static constexpr std::string_view kName = "put_row";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(check_stack(in[0], in[2]));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "row", row_of_stack(in[0]).dims, "those of a row of stack"));
    bool add = false;
    if (attrs.all().contains("add")) {
      LIGNUM_ASSIGN_OR_RETURN(add, bool_attr(attrs, "add"));
      if (add) LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "stack"));
    }
    if (!(add && in[0].dtype == DType::f32 && in[1].dtype == DType::bf16))
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "row", {in[0].dtype}));
    return Types{in[0]};
  }

  static Gradients grad(const GradCall& c) {
    if (!dtype_is_float(c.site.in[0].dtype)) return {std::nullopt, std::nullopt, std::nullopt};
    const Value dy = c.cotangent(0), index = c.inputs[2];
    const Value row = c.build.convert(c.build.add("take_row", {dy, index}), c.site.in[1].dtype);
    if (adds(c.site)) return {dy, row, std::nullopt};
    const Value zero = c.build.constant(c.site.in[1].dtype, c.site.in[1].dims, 0.0);
    return {c.build.add("put_row", {dy, zero, index}), row, std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    const auto row = factors(s.in[1].rank());
    std::vector<int> stack = row;
    stack.insert(stack.begin(), -1);
    return {.in = {stack, row, {}}, .out = {stack}};
  }

  // The stack stays where it is: what moves is the row.
  static Cost cost(const Site& s) {
    Cost c;
    c.work = adds(s) ? Work::rows : Work::copy;
    c.write = static_cast<double>(s.in[1].elements() * dtype_size(s.in[0].dtype));
    c.read = static_cast<double>(s.in[1].bytes()) + (adds(s) ? c.write : 0);
    c.flops = adds(s) ? static_cast<double>(s.in[1].elements()) : 0;
    return c;
  }

  static constexpr Primitive decompose{"an index that is a value"};

  static void reference(const RefCall& c) {
    c.out[0].data = c.in[0]->data;
    const auto index = static_cast<int32_t>(c.in[2]->data[0]);
    if (!has_row(c.site.in[0], index)) return;
    const size_t n = c.in[1]->data.size();
    for (size_t i = 0; i < n; ++i) {
      double& to = c.out[0].data[static_cast<size_t>(index) * n + i];
      to = adds(c.site) ? to + c.in[1]->data[i] : c.in[1]->data[i];
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    copy_through(c, 0, 0);
    const int32_t index = *data_in<int32_t>(c, 2);
    if (!has_row(c.site.in[0], index)) return {};
    const int64_t elements = c.site.in[1].elements(), bytes = elements * dtype_size(c.site.in[0].dtype);
    std::byte* to = data_out<std::byte>(c, 0) + index * bytes;
    if (c.site.in[1].dtype != c.site.in[0].dtype) {
      add_narrow(reinterpret_cast<float*>(to), data_in<bf16>(c, 1), elements, c.parallel);
    } else if (adds(c.site)) {
      kernels::row_kernels(c.choice).elementwise(kernels::Elementwise::add, c.site.in[0].dtype, elements, to,
                                                 c.in[1], nullptr, to, c.parallel);
    } else {
      copy_row(to, c.in[1], bytes, c.parallel);
    }
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static std::vector<std::string> emit(const EmitCall& c) {
    const Type& stack = c.site.in[0];
    const std::string there = emit_has_row(c.out, stack, c.in[2]);
    const EmittedRow old = emit_row(c.out, stack, c.in[0], c.in[2]);
    const std::string type = mlir_type(old.type);
    std::string fresh = c.out.fresh();
    Type row_type = old.type;
    row_type.dtype = c.site.in[1].dtype;
    c.out.line(fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", fresh, c.in[1], mlir_type(c.site.in[1]),
                           mlir_type(row_type)));
    if (row_type.dtype != old.type.dtype) {
      const std::string wide = c.out.fresh();
      c.out.line(
          fmt::format("{} = stablehlo.convert {} : ({}) -> {}", wide, fresh, mlir_type(row_type), type));
      fresh = wide;
    }
    if (adds(c.site)) {
      const std::string sum = c.out.fresh();
      c.out.line(fmt::format("{} = stablehlo.add {}, {} : {}", sum, old.value, fresh, type));
      fresh = sum;
    }
    const std::string kept = c.out.fresh(), result = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.select {}, {}, {} : tensor<i1>, {}", kept, there, fresh, old.value,
                           type));
    c.out.line(fmt::format("{} = stablehlo.dynamic_update_slice {}, {}, {}{} : ({}, {}, tensor<i32>{}) -> {}",
                           result, c.in[0], kept, c.in[2], old.starts, mlir_type(stack), type,
                           old.starts_types, mlir_type(stack)));
    return {result};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, Dims dims, bool add, Fill fill = Fill::position) {
      const double rows = fill == Fill::label ? 0 : static_cast<double>(dims[0]);
      const Fill values = dtype_is_float(dtype) ? Fill::normal : Fill::token;
      const double bound = values == Fill::token ? 100 : 1;
      const Dims row(dims.begin() + 1, dims.end());
      Case c{std::move(name),
             {tensor(dtype, std::move(dims), values, bound), tensor(dtype, row, values, bound),
              tensor(DType::i32, {}, fill, rows)},
             {}};
      if (add) c.attrs.set("add", true);
      return c;
    };
    Case narrow = make("add_narrow", DType::f32, {3, 5, 37}, true);
    narrow.in[1].type.dtype = DType::bf16;
    return {make("one_row", DType::f32, {1, 8}, false),
            make("odd", DType::f32, {7, 3, 37}, false),
            make("no_such_row", DType::f32, {3, 5}, false, Fill::label),
            make("misaligned", DType::bf16, {4, 211}, false),
            make("empty", DType::f32, {2, 0, 3}, false),
            make("add_odd", DType::f32, {7, 3, 37}, true),
            make("add_bf16", DType::bf16, {2, 211}, true),
            narrow,
            make("add_no_such_row", DType::f32, {3, 5}, true, Fill::label)};
  }

 private:
  static void add_narrow(float* to, const bf16* row, int64_t n, Parallel& parallel) {
    constexpr int64_t kBlock = 16384;  // elements a task
    parallel.run((n + kBlock - 1) / kBlock, [&](int64_t task, int) {
      for (int64_t i = task * kBlock; i < std::min(n, (task + 1) * kBlock); ++i) to[i] += to_float(row[i]);
    });
  }
  static bool adds(const Site& s) { return s.attrs.get_or<bool>("add", false); }
};

}  // namespace

LIGNUM_DEFINE_OP(put_row, PutRow)

}  // namespace lignum::ops
