// embed_grad_add: base + embed_grad(dy, ids), a fusion: where embedding and head share their weight, the
// embedding's gradient is added to the head's without a table of zeros between them.
//   base [V, E] f32 or bf16, dy [..., E] as base, ids [...] i32; attribute vocab = V -> like base
// The sum of the rows of an id is rounded to dy's dtype, as the edge between the parts is, then added.
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct EmbedGradAdd {
  static constexpr std::string_view kName = "embed_grad_add";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "base"));
    LIGNUM_ASSIGN_OR_RETURN(const Types table, get_op("embed_grad").infer(in.subspan(1), attrs));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "base", table[0], "the embedding's gradient"));
    return Types{in[0]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    // The whole base belongs to one of the ranks that the rows are cut over: only the width may be cut.
    std::vector<int> dy(s.in[1].dims.size(), -1), ids(s.in[2].dims.size(), -1);
    dy.back() = 0;
    return {.in = {{-1, 0}, dy, ids}, .out = {{-1, 0}}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = static_cast<double>(s.in[0].elements() + s.in[1].elements());
    c.inner = s.in[1].dtype;
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    return {b.elementwise("add", {in[0], b.add("embed_grad", {in[1], in[2]}, s.attrs)})};
  }

  static void reference(const RefCall& c) {
    const auto width = static_cast<size_t>(c.site.out[0].dims[1]);
    c.out[0].data = c.in[0]->data;
    for (size_t i = 0; i < c.in[1]->data.size(); ++i) {
      const auto id = static_cast<size_t>(c.in[2]->data[i / width]);
      c.out[0].data[id * width + i % width] += c.in[1]->data[i];
    }
  }

  static int64_t workspace(const Site& s, int) {
    return kernels::RowKernels::embed_grad_workspace(s.out[0].dims[0], s.in[2].elements());
  }

  static Status cpu(const CpuCall& c) {
    const Type& table = c.site.out[0];
    copy_through(c, 0, 0);
    return kernels::row_kernels(c.choice).embed_grad_add(
        table.dims[0], table.dims[1], c.site.in[2].elements(), kernel_in(c, 1), data_in<int32_t>(c, 2),
        kernel_out(c, 0), c.workspace, c.parallel);
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, int64_t vocab, int64_t width, const Dims& ids,
                         bool bench = false) {
      Dims dy = ids;
      dy.push_back(width);
      return Case{std::move(name),
                  {tensor(dtype, {vocab, width}), tensor(dtype, std::move(dy)),
                   tensor(DType::i32, ids, Fill::token, static_cast<double>(vocab))},
                  {{"vocab", vocab}},
                  1,
                  bench};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, 5, 8, {1}),
        make("one_id", f32, 7, 3, {}),
        make("odd", f32, 37, 5, {2, 7}),
        make("misaligned", f32, 11, 211, {3}),
        make("repeated", f32, 3, 4, {29}),
        make("bf16", bf16, 13, 37, {2, 3}),
        make("bf16_repeated", bf16, 2, 6, {9}),
        make("empty", f32, 5, 4, {0}),
        make("bench", bf16, 32000, 4096, {2048}, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(embed_grad_add, EmbedGradAdd)

}  // namespace lignum::ops
