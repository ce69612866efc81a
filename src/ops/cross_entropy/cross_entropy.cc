// cross_entropy: the summed loss of a batch of tokens, the number of tokens that count, and what the gradient
// needs.
//   logits [..., V] f32 or bf16, labels [...] i32 -> loss_sum f32[], count f32[], lse f32[...]
//   attribute z_loss > 0, if any -> also z_loss_sum f32[], z_loss times the sum of lse^2
// Per row lse = log(sum(exp(logits))), loss = lse - logits[label]; a label of -100 takes no part in either
// sum. Another label outside [0, V) is a user error on a CPU; a PJRT device takes its logit as 0. The
// division by the count is the caller's (once, over all ranks and micro-steps), so that sums of parts are
// exact parts of the sum.
#include <algorithm>
#include <cmath>

#include "ops/cross_entropy/z_loss.h"
#include "ops/facets.h"
#include "ops/gradient.h"

namespace lignum::ops {
namespace {

struct CrossEntropy {
  static constexpr std::string_view kName = "cross_entropy";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "logits"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "logits"));
    if (in[0].dims.back() < 1)
      return user_error("logits are {}; the vocabulary is their last dim, at least 1", ir::to_string(in[0]));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "labels", {DType::i32}));
    LIGNUM_RETURN_IF_ERROR(
        expect_dims(in[1], "labels", without_last(in[0].dims), "one label a row of logits"));
    LIGNUM_ASSIGN_OR_RETURN(const double z_loss, z_loss_in(attrs));
    const Type scalar{DType::f32, {}, {}};
    Types out{scalar, scalar, row_type(in[0], DType::f32)};
    if (z_loss > 0) out.push_back(scalar);
    return out;
  }

  static Gradients grad(const GradCall& c) {
    if (c.cotangents[2]) return gradient_by_decomposition(get_op(kName), c);
    const bool has_z = c.outputs.size() > 3;
    if (!c.cotangents[0] && !(has_z && c.cotangents[3]))
      return {std::nullopt, std::nullopt};  // the count alone
    Values in = {c.inputs[0], c.inputs[1], c.outputs[2], c.cotangent(0)};
    if (has_z) in.push_back(c.cotangent(3));
    return {c.build.add("cross_entropy_grad", std::move(in), c.site.attrs), std::nullopt};
  }

  static ShardRule partition(const Site& s) {
    auto logits = factors(s.in[0].rank());
    logits.back() = -1;
    const auto rows = factors(s.in[1].rank());
    ShardRule rule{.in = {logits, rows}, .out = {{}, {}, rows}};
    if (s.out.size() > 3) rule.out.emplace_back();
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 0);
    c.flops = 3.0 * static_cast<double>(s.in[0].elements());
    c.transcendentals = static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[0].dims;
    Arith m(b);
    const Value logits = m.f32(in[0]);
    const Value largest = m.max_last(logits);
    const Value lse = m.add(m.log(m.sum_last(m.exp(m.sub(logits, m.over_row(largest, dims))))), largest);
    const Value at_label = m.sum_last(m.select(m.one_hot(in[1], dims.back()), logits, m.like(logits, 0)));
    const Value counts = m.compare("ne", in[1], m.like(in[1], kernels::kIgnoredLabel));
    const Value loss = m.select(counts, m.sub(lse, at_label), m.like(lse, 0));
    const auto total = [&](Value v) {
      const int64_t rank = b.type(v).rank();
      return rank == 0 ? v : b.reduce("sum", v, first_dims(rank));
    };
    Values out = {total(loss), total(m.f32(counts)), lse};
    if (s.out.size() > 3)
      out.push_back(m.mul(total(m.select(counts, m.mul(lse, lse), m.like(lse, 0))), z_loss_of(s.attrs)));
    return out;
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    for (int64_t i = 0; i < r.n; ++i) {
      const double* x = c.in[0]->data.data() + i * r.d;
      const double largest = *std::max_element(x, x + r.d);
      double sum = 0;
      for (int64_t j = 0; j < r.d; ++j) sum += std::exp(x[j] - largest);
      const double lse = largest + std::log(sum);
      c.out[2].data[static_cast<size_t>(i)] = lse;
      const auto label = static_cast<int64_t>(c.in[1]->data[static_cast<size_t>(i)]);
      if (label == kernels::kIgnoredLabel) continue;
      c.out[0].data[0] += lse - x[label];
      c.out[1].data[0] += 1;
      if (c.out.size() > 3) c.out[3].data[0] += z_loss_of(c.site.attrs) * lse * lse;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    int32_t count = 0;
    double squares = 0;
    LIGNUM_RETURN_IF_ERROR(kernels::row_kernels(c.choice).cross_entropy(
        r.n, r.d, kernel_in(c, 0), data_in<int32_t>(c, 1), data_out<float>(c, 0), &count,
        data_out<float>(c, 2), c.parallel, &squares));
    *data_out<float>(c, 1) = static_cast<float>(count);
    if (c.out.size() > 3) *data_out<float>(c, 3) = static_cast<float>(z_loss_of(c.site.attrs) * squares);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, const Dims& rows, int64_t vocab, double bound = -1,
                         double deviation = 1, bool bench = false, double z_loss = 0) {
      Dims dims = rows;
      dims.push_back(vocab);
      Attrs attrs;
      if (z_loss > 0) attrs.set("z_loss", z_loss);
      return Case{std::move(name),
                  {tensor(dtype, std::move(dims), Fill::normal, deviation),
                   tensor(DType::i32, rows, Fill::label, bound < 0 ? static_cast<double>(vocab) : bound)},
                  std::move(attrs),
                  1,
                  bench};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, {1}, 8),
        make("one_token", f32, {}, 5),
        make("one_word", f32, {3}, 1),
        make("odd", f32, {3, 7}, 37),
        make("misaligned", f32, {5}, 211),
        make("two_chunks", f32, {2}, 601),
        make("many_rows", f32, {71}, 4),
        make("none_supervised", f32, {2, 3}, 7, 0),
        make("wide", f32, {4}, 17, -1, 30),
        make("bf16", bf16, {2, 5}, 37),
        make("empty", f32, {0}, 5),
        make("z_loss", f32, {3, 5}, 11, -1, 1, false, 0.1),
        make("z_loss_bf16", bf16, {2, 5}, 37, -1, 2, false, 1e-2),
        make("bench", bf16, {1024}, 32000, -1, 1, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(cross_entropy, CrossEntropy)

}  // namespace lignum::ops
