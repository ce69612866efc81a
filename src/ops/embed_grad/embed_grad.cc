// embed_grad: the gradient of embed's table. dtable[v, :] = sum of dy[i, :] over the i with ids[i] = v, in
// f32, rounded once.
//   dy [..., E] f32 or bf16, ids [...] i32; attribute vocab -> [vocab, E] of dy's dtype
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct EmbedGrad {
  static constexpr std::string_view kName = "embed_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "dy"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "dy"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "ids", {DType::i32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "ids", without_last(in[0].dims), "one id a row of dy"));
    LIGNUM_ASSIGN_OR_RETURN(const int64_t vocab, int_in(attrs, "vocab", 1, int64_t{1} << 31));
    return one_type(in[0].dtype, {vocab, in[0].dims.back()}, {"", name_of(in[0], in[0].rank() - 1)});
  }

  // Linear in dy: each row of dy was added to the row of its id.
  static Gradients grad(const GradCall& c) {
    return {c.build.add("embed", {c.cotangent(0), c.inputs[1]}), std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    const auto dy = factors(s.in[0].rank());
    return {.in = {dy, factors(s.in[1].rank())}, .out = {{-1, dy.back()}}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Dims rows = first_dims(s.in[1].rank());
    const Value hot = m.f32(m.one_hot(in[1], s.out[0].dims[0]));
    return {b.convert(m.matmul(hot, m.f32(in[0]), rows, rows), s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const auto width = static_cast<size_t>(c.site.out[0].dims[1]);
    for (size_t i = 0; i < c.in[0]->data.size(); ++i) {
      const auto id = static_cast<size_t>(c.in[1]->data[i / width]);
      c.out[0].data[id * width + i % width] += c.in[0]->data[i];
    }
  }

  static int64_t workspace(const Site& s, int) {
    return kernels::RowKernels::embed_grad_workspace(s.out[0].dims[0], s.in[1].elements());
  }

  static Status cpu(const CpuCall& c) {
    const Type& table = c.site.out[0];
    return kernels::row_kernels(c.choice).embed_grad(table.dims[0], table.dims[1], c.site.in[1].elements(),
                                                     kernel_in(c, 0), data_in<int32_t>(c, 1),
                                                     kernel_out(c, 0), c.workspace, c.parallel);
  }

  static Buffers buffers(const Site&) { return {}; }

  // A scatter that adds, in f32 (embed says why there is no one-hot).
  static std::vector<std::string> emit(const EmitCall& c) {
    const int64_t rank = c.site.in[1].rank();
    const auto as_f32 = [](Type t) {
      t.dtype = DType::f32;
      return mlir_type(t);
    };
    const std::string dy_type = mlir_type(c.site.in[0]), out_type = mlir_type(c.site.out[0]);
    const std::string wide_dy = as_f32(c.site.in[0]), wide_out = as_f32(c.site.out[0]);
    std::string dy = c.in[0];
    if (dy_type != wide_dy) {
      dy = c.out.fresh();
      c.out.line(fmt::format("{} = stablehlo.convert {} : ({}) -> {}", dy, c.in[0], dy_type, wide_dy));
    }
    const std::string zeros = c.out.fresh();
    c.out.line(fmt::format("{} = stablehlo.constant dense<0.0> : {}", zeros, wide_out));
    std::string sums = c.out.fresh();
    c.out.line(fmt::format(
        "{} = \"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, scatter_dimension_numbers = "
        "#stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [0], "
        "scatter_dims_to_operand_dims = [0], index_vector_dim = {}>, unique_indices = false}}> ({{",
        sums, zeros, c.in[1], dy, rank, rank));
    emit_region(c.out, DType::f32, "add");
    c.out.line(fmt::format("}}) : ({}, {}, {}) -> {}", wide_out, mlir_type(c.site.in[1]), wide_dy, wide_out));
    if (out_type != wide_out) {
      const std::string rounded = c.out.fresh();
      c.out.line(fmt::format("{} = stablehlo.convert {} : ({}) -> {}", rounded, sums, wide_out, out_type));
      sums = rounded;
    }
    return {sums};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, int64_t vocab, int64_t width, const Dims& ids,
                         bool bench = false) {
      Dims dy = ids;
      dy.push_back(width);
      return Case{
          std::move(name),
          {tensor(dtype, std::move(dy)), tensor(DType::i32, ids, Fill::token, static_cast<double>(vocab))},
          {{"vocab", vocab}},
          1,
          bench};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, 5, 8, {1}),   make("one_id", f32, 7, 3, {}),
        make("odd", f32, 37, 5, {2, 7}),   make("misaligned", f32, 11, 211, {3}),
        make("repeated", f32, 3, 4, {29}), make("bf16", bf16, 13, 37, {2, 3}),
        make("empty", f32, 5, 4, {0}),     make("bench", bf16, 32000, 4096, {2048}, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(embed_grad, EmbedGrad)

}  // namespace lignum::ops
