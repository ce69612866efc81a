// rms_norm: over each row of d, rstd = 1 / sqrt(mean(x^2) + epsilon), y = x * rstd * scale.
//   x [..., d] f32 or bf16, scale [d] f32 or bf16 -> y like x, rstd [...] f32 (for the gradient)
// Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019. All arithmetic in f32.
#include <cmath>

#include "ops/facets.h"
#include "ops/gradient.h"
#include "ops/rms_norm/norm_cases.h"

namespace lignum::ops {
namespace {

struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 2));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "scale"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "scale", {in[0].dims.back()}, "the last dim of x"));
    LIGNUM_RETURN_IF_ERROR(number_in(attrs, "epsilon", 0, 1).status());
    return Types{in[0], row_type(in[0], DType::f32)};
  }

  static Gradients grad(const GradCall& c) {
    if (c.cotangents[1]) return gradient_by_decomposition(get_op(kName), c);
    const Values g =
        c.build.add_all("rms_norm_grad", {c.cotangent(0), c.inputs[0], c.inputs[1], c.outputs[1]});
    return {g[0], g[1]};
  }

  static ShardRule partition(const Site& s) {
    auto x = factors(s.in[0].rank());
    x.back() = -1;
    return {.in = {x, {-1}}, .out = {x, factors(s.out[1].rank())}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s);
    c.flops = 4.0 * static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[0].dims;
    Arith m(b);
    const Value x = m.f32(in[0]);
    const Value mean = m.mul(m.sum_last(m.mul(x, x)), 1.0 / static_cast<double>(dims.back()));
    const Value rstd = m.rsqrt(m.add(mean, s.attrs.get<double>("epsilon")));
    const Value y = m.mul(m.mul(x, m.over_row(rstd, dims)), m.over_rows(m.f32(in[1]), dims));
    return {b.convert(y, s.out[0].dtype), rstd};
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    const double epsilon = c.site.attrs.get<double>("epsilon");
    for (int64_t i = 0; i < r.n; ++i) {
      const double* x = c.in[0]->data.data() + i * r.d;
      double sum = 0;
      for (int64_t j = 0; j < r.d; ++j) sum += x[j] * x[j];
      const double rstd = 1 / std::sqrt(sum / static_cast<double>(r.d) + epsilon);
      c.out[1].data[static_cast<size_t>(i)] = rstd;
      for (int64_t j = 0; j < r.d; ++j)
        c.out[0].data[static_cast<size_t>(i * r.d + j)] = x[j] * rstd * c.in[1]->data[static_cast<size_t>(j)];
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    kernels::row_kernels(c.choice).rms_norm(r.n, r.d, kernel_in(c, 0), kernel_in(c, 1),
                                            static_cast<float>(c.site.attrs.get<double>("epsilon")),
                                            kernel_out(c, 0), data_out<float>(c, 1), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    return norm_cases({{"epsilon", 1e-5}}, [](DType dtype, const Dims& dims, DType scale) {
      return std::vector<CaseInput>{tensor(dtype, dims), tensor(scale, {dims.back()})};
    });
  }
};

}  // namespace

LIGNUM_DEFINE_OP(rms_norm, RmsNorm)

}  // namespace lignum::ops
