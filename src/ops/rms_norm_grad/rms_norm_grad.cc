// rms_norm_grad: the gradients of rms_norm's x and scale, from its saved rstd. With xhat = x * rstd:
//   dx = rstd * (dy * scale - xhat * mean(dy * scale * xhat)),   dscale = sum over rows of dy * xhat
//   dy, x [..., d], scale [d], rstd [...] f32 -> dx like x, dscale like scale
#include "ops/facets.h"
#include "ops/rms_norm/norm_cases.h"

namespace lignum::ops {
namespace {

struct RmsNormGrad {
  static constexpr std::string_view kName = "rms_norm_grad";

  static Result<Types> infer(std::span<const Type> in, const Attrs&) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 4));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_last_dim(in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[0], "dy", in[1], "x"));
    LIGNUM_RETURN_IF_ERROR(expect_edge(in[2], "scale"));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[2], "scale", {in[1].dims.back()}, "the last dim of x"));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[3], "rstd", {DType::f32}));
    LIGNUM_RETURN_IF_ERROR(expect_dims(in[3], "rstd", without_last(in[1].dims), "one value a row of x"));
    return Types{in[1], in[2]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    auto x = factors(s.in[1].rank());
    x.back() = -1;
    return {.in = {x, x, {-1}, factors(s.in[3].rank())}, .out = {x, {-1}}};
  }

  static Cost cost(const Site& s) {
    Cost c = streaming_cost(s);
    c.flops = 9.0 * static_cast<double>(s.in[1].elements());
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Dims& dims = s.in[1].dims;
    Arith m(b);
    const Value dy = m.f32(in[0]);
    const Value rstd = m.over_row(in[3], dims);
    const Value xhat = m.mul(m.f32(in[1]), rstd);
    const Value g = m.mul(dy, m.over_rows(m.f32(in[2]), dims));
    const Value mean = m.mul(m.sum_last(m.mul(g, xhat)), 1.0 / static_cast<double>(dims.back()));
    const Value dx = m.mul(rstd, m.sub(g, m.mul(xhat, m.over_row(mean, dims))));
    const Value dscale = m.sum_rows(m.mul(dy, xhat));
    return {b.convert(dx, s.out[0].dtype), b.convert(dscale, s.out[1].dtype)};
  }

  static void reference(const RefCall& c) {
    const Rows r = rows_of(c.site.in[1]);
    const double* scale = c.in[2]->data.data();
    for (int64_t i = 0; i < r.n; ++i) {
      const double* dy = c.in[0]->data.data() + i * r.d;
      const double* x = c.in[1]->data.data() + i * r.d;
      const double rstd = c.in[3]->data[static_cast<size_t>(i)];
      double sum = 0;
      for (int64_t j = 0; j < r.d; ++j) sum += dy[j] * scale[j] * x[j] * rstd;
      const double mean = sum / static_cast<double>(r.d);
      for (int64_t j = 0; j < r.d; ++j) {
        const double xhat = x[j] * rstd;
        c.out[0].data[static_cast<size_t>(i * r.d + j)] = rstd * (dy[j] * scale[j] - xhat * mean);
        c.out[1].data[static_cast<size_t>(j)] += dy[j] * xhat;
      }
    }
  }

  static int64_t workspace(const Site& s, int) {
    const Rows r = rows_of(s.in[1]);
    return kernels::RowKernels::rms_norm_grad_workspace(r.n, r.d);
  }

  static Status cpu(const CpuCall& c) {
    const Rows r = rows_of(c.site.in[1]);
    kernels::row_kernels(c.choice).rms_norm_grad(r.n, r.d, kernel_in(c, 0), kernel_in(c, 1), kernel_in(c, 2),
                                                 data_in<float>(c, 3), kernel_out(c, 0), kernel_out(c, 1),
                                                 c.workspace, c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}, {0, 1}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    return norm_cases({}, [](DType dtype, const Dims& dims, DType scale) {
      return std::vector<CaseInput>{tensor(dtype, dims), tensor(dtype, dims), tensor(scale, {dims.back()}),
                                    tensor(DType::f32, without_last(dims), Fill::positive)};
    });
  }
};

}  // namespace

LIGNUM_DEFINE_OP(rms_norm_grad, RmsNormGrad)

}  // namespace lignum::ops
