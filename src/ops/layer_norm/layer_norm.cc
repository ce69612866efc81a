// layer_norm: over each row of d, mean = mean(x), rstd = 1 / sqrt(mean((x - mean)^2) + epsilon),
// y = (x - mean) * rstd * scale + bias.
//   x [..., d] f32 or bf16, scale and bias [d] of one type, f32 or bf16
//   -> y like x, mean and rstd [...] f32 (for the gradient)
// Ba, Kiros, Hinton, "Layer Normalization", 2016. All arithmetic in f32.
#include <cmath>

#include "ops/facets.h"
#include "ops/gradient.h"
#include "ops/rms_norm/norm_cases.h"

namespace lignum::ops {
namespace {

struct LayerNorm {
  static constexpr std::string_view kName = "layer_norm";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 3));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[0], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "scale"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[1], "scale", {in[0].dims.back()}, "the last dim of x"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[2], "bias", in[1], "scale"));
    LIGNUM_RETURN_IF_ERROR(number_in(attrs, "epsilon", 0, 1).status());
    const Type row = row_type(in[0], DType::f32);
    return Types{in[0], row, row};
  }

  static Gradients grad(const GradCall& c) {
    if (c.cotangents[1] || c.cotangents[2]) return gradient_by_decomposition(get_op(kName), c);
    const Values g = c.build.add_all("layer_norm_grad",
                                     {c.cotangent(0), c.inputs[0], c.inputs[1], c.outputs[1], c.outputs[2]});
    return {g[0], g[1], g[2]};
  }

  static ShardRule partition(const Site& s) {
    auto x = factors(s.in[0].rank());
    x.back() = -1;
    const auto row = factors(s.out[1].rank());
    return {.in = {x, {-1}, {-1}}, .out = {x, row, row}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s);
    c.flops = 8.0 * static_cast<double>(s.in[0].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[0].dims;
    const double width = static_cast<double>(dims.back());
    Arith m(b);
    const Value x = m.f32(in[0]);
    const Value mean = m.mul(m.sum_last(x), 1 / width);
    const Value centred = m.sub(x, m.over_row(mean, dims));
    const Value variance = m.mul(m.sum_last(m.mul(centred, centred)), 1 / width);
    const Value rstd = m.rsqrt(m.add(variance, s.attrs.get<double>("epsilon")));
    const Value scaled = m.mul(m.mul(centred, m.over_row(rstd, dims)), m.over_rows(m.f32(in[1]), dims));
    return {b.convert(m.add(scaled, m.over_rows(m.f32(in[2]), dims)), s.out[0].dtype), mean, rstd};
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    const double epsilon = c.site.attrs.get<double>("epsilon"), width = static_cast<double>(r.d);
    for (int64_t i = 0; i < r.n; ++i) {
      const double* x = c.in[0]->data.data() + i * r.d;
      double sum = 0, squares = 0;
      for (int64_t j = 0; j < r.d; ++j) sum += x[j];
      const double mean = sum / width;
      for (int64_t j = 0; j < r.d; ++j) squares += (x[j] - mean) * (x[j] - mean);
      const double rstd = 1 / std::sqrt(squares / width + epsilon);
      c.out[1].data[static_cast<size_t>(i)] = mean;
      c.out[2].data[static_cast<size_t>(i)] = rstd;
      for (int64_t j = 0; j < r.d; ++j) {
        const auto k = static_cast<size_t>(j);
        c.out[0].data[static_cast<size_t>(i * r.d + j)] =
            (x[j] - mean) * rstd * c.in[1]->data[k] + c.in[2]->data[k];
      }
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[0]);
    kernels::row_kernels(c.choice).layer_norm(r.n, r.d, kernel_in(c, 0), kernel_in(c, 1), kernel_in(c, 2),
                                              static_cast<float>(c.site.attrs.get<double>("epsilon")),
                                              kernel_out(c, 0), data_out<float>(c, 1), data_out<float>(c, 2),
                                              c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    return norm_cases({{"epsilon", 1e-5}}, [](DType dtype, const Dims& dims, DType scale) {
      const CaseInput vector = tensor(scale, {dims.back()});
      return std::vector<CaseInput>{tensor(dtype, dims), vector, vector};
    });
  }
};

}  // namespace

LIGNUM_DEFINE_OP(layer_norm, LayerNorm)

}  // namespace lignum::ops
