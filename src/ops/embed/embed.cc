// embed: out[..., :] = table[ids[...], :].
//   table [V, E] f32 or bf16, ids [...] i32 -> [..., E] of table's dtype
// An id outside [0, V) is a user error on a CPU. On a PJRT device it is clamped (stablehlo.gather), and the
// decomposition gives zeros: ids are checked where tokens are read.
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct Embed {
  static constexpr std::string_view kName = "embed";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "table"));
    LIGNUM_RETURN_IF_ERROR(expect_rank(in[0], "table", 2));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "ids", {DType::i32}));
    Dims dims = in[1].dims;
    std::vector<std::string> names;
    for (int64_t i = 0; i < in[1].rank(); ++i) names.push_back(name_of(in[1], i));
    dims.push_back(in[0].dims[1]);
    names.push_back(name_of(in[0], 1));
    return one_type(in[0].dtype, std::move(dims), std::move(names));
  }

  static Gradients grad(const GradCall& c) {
    return {c.build.add("embed_grad", {c.cotangent(0), c.inputs[1]}, {{"vocab", c.site.in[0].dims[0]}}),
            std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    const auto out = factors(s.out[0].rank());
    return {.in = {{-1, out.back()}, factors(s.in[1].rank())}, .out = {out}};
  }

  static Cost cost(const Site& s) {
    Cost c;
    c.work = Work::copy;
    c.write = static_cast<double>(s.out[0].bytes());
    c.read = c.write + static_cast<double>(s.in[1].bytes());  // the rows taken, not the table
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value hot = m.f32(m.one_hot(in[1], s.in[0].dims[0]));
    const Value rows = m.matmul(hot, m.f32(in[0]), {s.in[1].rank()}, {0});
    return {b.convert(rows, s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const auto width = static_cast<size_t>(c.site.in[0].dims[1]);
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const auto id = static_cast<size_t>(c.in[1]->data[i / width]);
      c.out[0].data[i] = c.in[0]->data[id * width + i % width];
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Type& table = c.site.in[0];
    return kernels::row_kernels(c.choice).embed(table.dims[0], table.dims[1], c.site.in[1].elements(),
                                                kernel_in(c, 0), data_in<int32_t>(c, 1), kernel_out(c, 0),
                                                c.parallel);
  }

  static Buffers buffers(const Site&) { return {}; }

  // A one-hot of a real vocabulary would cost more than the model: a gather of rows.
  static std::vector<std::string> emit(const EmitCall& c) {
    const int64_t rank = c.site.in[1].rank();
    const std::string rows = c.out.fresh();
    c.out.line(fmt::format(
        "{} = \"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = [{}], "
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {}>, indices_are_sorted = "
        "false, slice_sizes = array<i64: 1, {}>}}> : {} -> {}",
        rows, c.in[0], c.in[1], rank, rank, c.site.in[0].dims[1], mlir_types(c.site.in),
        mlir_type(c.site.out[0])));
    return {rows};
  }

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, int64_t vocab, int64_t width, Dims ids,
                         bool bench = false) {
      return Case{std::move(name),
                  {tensor(dtype, {vocab, width}),
                   tensor(DType::i32, std::move(ids), Fill::token, static_cast<double>(vocab))},
                  {},
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

LIGNUM_DEFINE_OP(embed, Embed)

}  // namespace lignum::ops
