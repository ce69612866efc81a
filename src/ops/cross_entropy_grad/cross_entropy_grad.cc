// cross_entropy_grad: the gradient of cross_entropy's logits, from its saved lse.
//   logits [..., V] f32 or bf16, labels [...] i32, lse f32[...], dloss f32[]; with the attribute z_loss > 0
//   also dz_loss f32[] -> dlogits like logits
// dlogits = (exp(logits - lse) - [column = label]) * dloss + exp(logits - lse) * 2 z_loss lse dz_loss; zeros
// in rows labelled -100.
#include <cmath>

#include "ops/cross_entropy/z_loss.h"
#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct CrossEntropyGrad {
  static constexpr std::string_view kName = "cross_entropy_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_ASSIGN_OR_RETURN(const double z_loss, z_loss_in(attrs));
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, z_loss > 0 ? 5 : 4));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "logits"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "logits"));
    const Dims rows = without_last(in[0].dims);
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[1], "labels", {DType::i32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "labels", rows, "one label a row of logits"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[2], "lse", {DType::f32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[2], "lse", rows, "one value a row of logits"));
    for (size_t i = 3; i < in.size(); ++i) {
      const std::string_view cotangent = i == 3 ? "dloss" : "dz_loss";
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[i], cotangent, {DType::f32}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[i], cotangent, {}, "a scalar"));
    }
    return Types{in[0]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    auto logits = factors(s.in[0].rank());
    logits.back() = -1;
    const auto rows = factors(s.in[1].rank());
    ShardRule rule{.in = {logits, rows, rows, {}}, .out = {logits}};
    if (s.in.size() > 4) rule.in.emplace_back();
    return rule;
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s, 3);
    c.transcendentals = static_cast<double>(s.out[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[0].dims;
    Arith m(b);
    const Value p = m.exp(m.sub(m.f32(in[0]), m.over_row(in[2], dims)));
    const Value difference = m.sub(p, m.f32(m.one_hot(in[1], dims.back())));
    const Value counts = m.compare("ne", in[1], m.like(in[1], kernels::kIgnoredLabel));
    Value dlogits = m.mul(difference, b.splat(in[3], b.type(p)));
    if (in.size() > 4) {
      const Value slope = m.mul(m.mul(in[2], b.splat(in[4], b.type(in[2]))), 2 * z_loss_of(s.attrs));
      dlogits = m.add(dlogits, m.mul(p, m.over_row(slope, dims)));
    }
    return {b.convert(m.select(m.over_row(counts, dims), dlogits, m.like(p, 0)), s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    for (int64_t i = 0; i < r.n; ++i) {
      const auto row = static_cast<size_t>(i);
      const auto label = static_cast<int64_t>(c.in[1]->data[row]);
      if (label == kernels::kIgnoredLabel) continue;
      for (int64_t j = 0; j < r.d; ++j) {
        const auto at = static_cast<size_t>(i * r.d + j);
        const double p = std::exp(c.in[0]->data[at] - c.in[2]->data[row]);
        c.out[0].data[at] = (p - (j == label ? 1 : 0)) * c.in[3]->data[0];
        if (c.in.size() > 4)
          c.out[0].data[at] += p * 2 * z_loss_of(c.site.attrs) * c.in[2]->data[row] * c.in[4]->data[0];
      }
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    const double dz = c.in.size() > 4 ? static_cast<double>(*data_in<float>(c, 4)) : 0;
    kernels::row_kernels(c.choice).cross_entropy_grad(
        r.n, r.d, kernel_in(c, 0), data_in<int32_t>(c, 1), data_in<float>(c, 2), *data_in<float>(c, 3),
        kernel_out(c, 0), c.parallel, static_cast<float>(2 * z_loss_of(c.site.attrs) * dz));
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, DType dtype, const Dims& rows, int64_t vocab, double bound = -1,
                         bool bench = false, double z_loss = 0) {
      Dims dims = rows;
      dims.push_back(vocab);
      std::vector<CaseInput> in = {
          tensor(dtype, std::move(dims)),
          tensor(DType::i32, rows, Fill::label, bound < 0 ? static_cast<double>(vocab) : bound),
          tensor(DType::f32, rows, Fill::positive), tensor(DType::f32, {})};
      Attrs attrs;
      if (z_loss > 0) {
        in.push_back(tensor(DType::f32, {}));
        attrs.set("z_loss", z_loss);
      }
      return Case{std::move(name), std::move(in), std::move(attrs), 1, bench};
    };
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    return {
        make("one_row", f32, {1}, 8),
        make("one_token", f32, {}, 5),
        make("odd", f32, {3, 7}, 37),
        make("misaligned", f32, {5}, 211),
        make("many_rows", f32, {71}, 4),
        make("none_supervised", f32, {2, 3}, 7, 0),
        make("bf16", bf16, {2, 5}, 37),
        make("empty", f32, {0}, 5),
        make("z_loss", f32, {3, 5}, 11, -1, false, 0.1),
        make("z_loss_bf16", bf16, {2, 5}, 37, -1, false, 1e-2),
        make("bench", bf16, {1024}, 32000, -1, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(cross_entropy_grad, CrossEntropyGrad)

}  // namespace lignum::ops
