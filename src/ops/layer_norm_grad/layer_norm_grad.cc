// layer_norm_grad: the gradients of layer_norm's x, scale and bias, from its saved mean and rstd. With
// g = dy * scale, xhat = (x - mean) * rstd:
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), dscale = sum over rows of dy * xhat, dbias = sum of dy
//   dy, x [..., d], scale [d], mean and rstd [...] f32 -> dx like x, dscale and dbias like scale
#include "ops/facets.h"
#include "ops/rms_norm/norm_cases.h"

namespace lignum::ops {
namespace {

struct LayerNormGrad {
  static constexpr std::string_view kName = "layer_norm_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 5));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "dy", in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[2], "scale"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[2], "scale", {in[1].dims.back()}, "the last dim of x"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[3], "mean", {DType::f32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[3], "mean", without_last(in[1].dims), "one value a row of x"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[4], "rstd", in[3], "mean"));
    return Types{in[1], in[2], in[2]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    auto x = factors(s.in[1].rank());
    x.back() = -1;
    const auto row = factors(s.in[3].rank());
    return {.in = {x, x, {-1}, row, row}, .out = {x, {-1}, {-1}}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s);
    c.flops = 13.0 * static_cast<double>(s.in[1].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[1].dims;
    const double width = static_cast<double>(dims.back());
    Arith m(b);
    const Value dy = m.f32(in[0]);
    const Value rstd = m.over_row(in[4], dims);
    const Value xhat = m.mul(m.sub(m.f32(in[1]), m.over_row(in[3], dims)), rstd);
    const Value g = m.mul(dy, m.over_rows(m.f32(in[2]), dims));
    const Value direct = m.mul(m.sum_last(g), 1 / width);
    const Value projection = m.mul(m.sum_last(m.mul(g, xhat)), 1 / width);
    const Value rest = m.sub(m.sub(g, m.over_row(direct, dims)), m.mul(xhat, m.over_row(projection, dims)));
    return {b.convert(m.mul(rstd, rest), s.out[0].dtype),
            b.convert(m.sum_rows(m.mul(dy, xhat)), s.out[1].dtype),
            b.convert(m.sum_rows(dy), s.out[2].dtype)};
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[1]);
    const double* scale = c.in[2]->data.data();
    const double width = static_cast<double>(r.d);
    for (int64_t i = 0; i < r.n; ++i) {
      const double* dy = c.in[0]->data.data() + i * r.d;
      const double* x = c.in[1]->data.data() + i * r.d;
      const double mean = c.in[3]->data[static_cast<size_t>(i)];
      const double rstd = c.in[4]->data[static_cast<size_t>(i)];
      double direct = 0, projection = 0;
      for (int64_t j = 0; j < r.d; ++j) {
        direct += dy[j] * scale[j] / width;
        projection += dy[j] * scale[j] * (x[j] - mean) * rstd / width;
      }
      for (int64_t j = 0; j < r.d; ++j) {
        const double xhat = (x[j] - mean) * rstd;
        c.out[0].data[static_cast<size_t>(i * r.d + j)] =
            rstd * (dy[j] * scale[j] - direct - xhat * projection);
        c.out[1].data[static_cast<size_t>(j)] += dy[j] * xhat;
        c.out[2].data[static_cast<size_t>(j)] += dy[j];
      }
    }
  }

  static int64_t workspace(const Site& s, int) {
    const Rows r = rows_of(s.in[1]);
    return kernels::RowKernels::layer_norm_grad_workspace(r.n, r.d);
  }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[1]);
    kernels::row_kernels(c.choice).layer_norm_grad(
        r.n, r.d, kernel_in(c, 0), kernel_in(c, 1), kernel_in(c, 2), data_in<float>(c, 3),
        data_in<float>(c, 4), kernel_out(c, 0), kernel_out(c, 1), kernel_out(c, 2), c.workspace, c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}, {0, 1}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    return norm_cases({}, [](DType dtype, const Dims& dims, DType scale) {
      const Dims rows = without_last(dims);
      return std::vector<CaseInput>{tensor(dtype, dims), tensor(dtype, dims), tensor(scale, {dims.back()}),
                                    tensor(DType::f32, rows), tensor(DType::f32, rows, Fill::positive)};
    });
  }
};

}  // namespace

LIGNUM_DEFINE_OP(layer_norm_grad, LayerNormGrad)

}  // namespace lignum::ops
