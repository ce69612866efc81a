// sum_squares: the sum of x's squares, f32[]; x f32 or bf16 of any shape. On a CPU in double over fixed
// blocks, rounded once: the norm of a gradient must not depend on who adds it up.
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct SumSquares {
  static constexpr std::string_view kName = "sum_squares";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 1));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    return one_type(DType::f32, {});
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) { return {.in = {factors(s.in[0].rank())}, .out = {{}}}; }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = 2.0 * static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    Arith m(b);
    const Value x = m.f32(in[0]);
    const Value squares = m.mul(x, x);
    return {s.in[0].rank() == 0 ? squares : b.reduce("sum", squares, first_dims(s.in[0].rank()))};
  }

  static void reference(const RefCall& c) {
    for (const double x : c.in[0]->data) c.out[0].data[0] += x * x;
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    *data_out<float>(c, 0) = static_cast<float>(
        kernels::row_kernels(c.choice).sum_squares(c.site.in[0].elements(), kernel_in(c, 0), c.parallel));
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        {"one_row", {tensor(f32, {1, 8})}},        {"scalar", {tensor(f32, {})}},
        {"odd", {tensor(f32, {3, 5, 37})}},        {"misaligned", {tensor(f32, {211})}},
        {"two_blocks", {tensor(f32, {33, 1001})}}, {"bf16", {tensor(bf16, {7, 37})}},
        {"empty", {tensor(f32, {0, 4})}},          {"bench", {tensor(f32, {4096, 4096})}, {}, 1, true},
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(sum_squares, SumSquares)

}  // namespace lignum::ops
