// add_bias: x [..., d] + b [d]. x f32 or bf16, b likewise; the result has x's type.
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct AddBias {
  static constexpr std::string_view kName = "add_bias";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "b"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "b", {in[0].dims.back()}, "the last dim of x"));
    return Types{in[0]};
  }

  static Gradients grad(const GradCall& c) {
    const Value dy = c.cotangent(0);
    Arith m(c.build);
    const Value db = m.sum_rows(m.f32(dy));
    return {dy, c.build.convert(db, c.site.in[1].dtype)};
  }

  static ShardRule partition(const Site& s) {
    const auto x = factors(s.in[0].rank());
    return {.in = {x, {x.back()}}, .out = {x}};
  }

  static Cost cost(const Site& s) { return streaming_cost(s); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value y = m.add(m.f32(in[0]), m.over_rows(m.f32(in[1]), s.in[0].dims));
    return {b.convert(y, s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const size_t d = c.in[1]->data.size();
    for (size_t i = 0; i < c.out[0].data.size(); ++i)
      c.out[0].data[i] = c.in[0]->data[i] + c.in[1]->data[i % d];
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    kernels::row_kernels(c.choice).add_bias(r.n, r.d, kernel_in(c, 0), kernel_in(c, 1), kernel_out(c, 0),
                                            c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        {"one_row", {tensor(f32, {1, 8}), tensor(f32, {8})}},
        {"vector", {tensor(f32, {5}), tensor(f32, {5})}},
        {"odd", {tensor(f32, {2, 3, 37}), tensor(f32, {37})}},
        {"misaligned", {tensor(f32, {5, 211}), tensor(f32, {211})}},
        {"bf16", {tensor(bf16, {4, 37}), tensor(bf16, {37})}},
        {"bf16_with_f32_bias", {tensor(bf16, {3, 16}), tensor(f32, {16})}},
        {"empty", {tensor(f32, {0, 7}), tensor(f32, {7})}},
        {"bench", {tensor(bf16, {2048, 4096}), tensor(bf16, {4096})}, {}, 1, true},
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(add_bias, AddBias)

}  // namespace lignum::ops
