// sgd_update: one step of gradient descent of one tensor, with or without momentum (Sutskever et al., "On the
// importance of initialization and momentum in deep learning", 2013; the form of optax.sgd).
//   param, grad f32 of one shape; learning_rate f32[]; grad_scale f32[]; with momentum > 0 also trace like
//   param attributes momentum, nesterov -> param, with momentum also trace
// g = grad * grad_scale and trace = g + momentum trace, then
//   param -= learning_rate trace,  with nesterov  param -= learning_rate (g + momentum trace)
// Without momentum param -= learning_rate g. A grad_scale that is not finite leaves all as it is, as
// adamw_update does.
#include <cmath>
#include <limits>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct SgdSettings {
  double momentum;
  bool nesterov;
  explicit SgdSettings(const Attrs& a)
      : momentum(a.get<double>("momentum")), nesterov(a.get<bool>("nesterov")) {}
};

struct SgdUpdate {
  static constexpr std::string_view kName = "sgd_update";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_ASSIGN_OR_RETURN(const double momentum, number_in(attrs, "momentum", 0, 1));
    LIGNUM_RETURN_IF_ERROR(bool_attr(attrs, "nesterov").status());
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, momentum > 0 ? 5 : 4));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[0], "param", {DType::f32}));
    LIGNUM_RETURN_IF_ERROR(expect_like(in[1], "grad", in[0], "param"));
    for (const size_t i : {2, 3}) {
      const std::string_view scalar = i == 2 ? "learning_rate" : "grad_scale";
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[i], scalar, {DType::f32}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[i], scalar, {}, "a scalar"));
    }
    if (momentum == 0) return Types{in[0]};
    LIGNUM_RETURN_IF_ERROR(expect_like(in[4], "trace", in[0], "param"));
    return Types{in[0], in[4]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    if (s.out.size() == 1) return {.in = {f, f, {}, {}}, .out = {f}};
    return {.in = {f, f, {}, {}, f}, .out = {f, f}};
  }

  static Cost cost(const Site& s) { return streaming_cost(s, 3); }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const SgdSettings a(s.attrs);
    Arith m(b);
    const Value scale = b.splat(in[3], s.in[0]);
    const Value finite =
        m.compare("le", b.elementwise("abs", {scale}), m.like(scale, std::numeric_limits<float>::max()));
    const Value g = m.mul(in[1], scale);
    const auto moved = [&](Value step) {
      return m.select(finite, m.sub(in[0], m.mul(step, b.splat(in[2], s.in[0]))), in[0]);
    };
    if (a.momentum == 0) return {moved(g)};
    const Value trace = m.add(g, m.mul(in[4], a.momentum));
    return {moved(a.nesterov ? m.add(g, m.mul(trace, a.momentum)) : trace), m.select(finite, trace, in[4])};
  }

  static void reference(const RefCall& c) {
    const SgdSettings a(c.site.attrs);
    const double learning_rate = c.in[2]->data[0], grad_scale = c.in[3]->data[0];
    const bool has_trace = a.momentum > 0;
    if (!std::isfinite(grad_scale)) {
      c.out[0].data = c.in[0]->data;
      if (has_trace) c.out[1].data = c.in[4]->data;
      return;
    }
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double g = c.in[1]->data[i] * grad_scale;
      double step = g;
      if (has_trace) {
        const double trace = g + a.momentum * c.in[4]->data[i];
        c.out[1].data[i] = trace;
        step = a.nesterov ? g + a.momentum * trace : trace;
      }
      c.out[0].data[i] = c.in[0]->data[i] - learning_rate * step;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const SgdSettings a(c.site.attrs);
    const bool has_trace = a.momentum > 0;
    const kernels::Sgd step{*data_in<float>(c, 2), a.momentum, a.nesterov, *data_in<float>(c, 3)};
    copy_through(c, 0, 0);  // the kernel works in place
    if (has_trace) copy_through(c, 1, 4);
    if (!std::isfinite(step.grad_scale)) return {};
    kernels::row_kernels(c.choice).sgd(step, c.site.in[0].elements(), data_out<float>(c, 0),
                                       has_trace ? data_out<float>(c, 1) : nullptr, data_in<float>(c, 1),
                                       c.parallel);
    return {};
  }

  static Buffers buffers(const Site& s) {
    if (s.out.size() == 1) return {.in_place = {{0, 0}}};
    return {.in_place = {{0, 0}, {1, 4}}};
  }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    const auto make = [](std::string name, const Dims& dims, double momentum, bool nesterov = false,
                         bool bench = false) {
      constexpr DType f32 = DType::f32;
      std::vector<CaseInput> in = {tensor(f32, dims), tensor(f32, dims), tensor(f32, {}, Fill::uniform01),
                                   tensor(f32, {}, Fill::positive)};
      if (momentum > 0) in.push_back(tensor(f32, dims));
      return Case{std::move(name), std::move(in), {{"momentum", momentum}, {"nesterov", nesterov}}, 1, bench};
    };
    return {
        make("plain", {3, 7}, 0),   make("scalar", {}, 0.9),
        make("odd", {5, 37}, 0.9),  make("misaligned", {211}, 0.5, true),
        make("empty", {0, 3}, 0.9), make("bench", {4096, 4096}, 0.9, false, true),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(sgd_update, SgdUpdate)

}  // namespace lignum::ops
