// adamw_update: one AdamW step of one tensor (Loshchilov, Hutter, "Decoupled Weight Decay Regularization",
// 2019; the form of optax.adamw).
//   param f32, m, v, grad each f32 or bf16, of one shape; learning_rate f32[]; step i32[], 0 in the first
//   one; grad_scale f32[]; attributes b1, b2, eps, eps_root, weight_decay -> param, m, v
// g = grad * grad_scale, m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, and with t = step + 1
//   param -= learning_rate (m / (1 - b1^t) / (sqrt(v / (1 - b2^t) + eps_root) + eps) + weight_decay param)
// Moments of bf16 are rounded where they are stored; param reads them before that (optax's mu_dtype).
// A grad_scale that is not finite leaves all three as they are: it stands for a step whose loss or gradient
// is not finite, and the state that led to it must stay, to be looked at and to be saved.
#include <cmath>
#include <limits>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

struct Settings {
  double b1, b2, eps, eps_root, weight_decay;
  explicit Settings(const Attrs& a)
      : b1(a.get<double>("b1")),
        b2(a.get<double>("b2")),
        eps(a.get<double>("eps")),
        eps_root(a.get<double>("eps_root")),
        weight_decay(a.get<double>("weight_decay")) {}
};

// 1 - beta^t in f32 without the cancellation of small t: at t = 1 and beta = 0.999 the plain difference is
// off by 1e-5 of itself. With x = t log(beta): the series of 1 - exp(x) near 0, the difference elsewhere.
Value one_minus_power(Arith& m, double beta, Value t) {
  if (beta == 0) return m.like(t, 1);
  const Value x = m.mul(t, std::log(beta));
  Value series = m.like(x, 1);
  for (int n = 8; n >= 2; --n) series = m.add(m.mul(m.mul(x, series), 1.0 / n), 1.0);
  constexpr double kNear = -0.25;
  return m.select(m.compare("gt", x, m.like(x, kNear)), m.neg(m.mul(x, series)), m.sub(1.0, m.exp(x)));
}

// Whether a scalar is finite, at every element of `type`: NaN compares false with everything.
Value is_finite(Builder& b, Arith& m, Value scalar, const Type& type) {
  const Value spread = b.splat(scalar, type);
  return m.compare("le", b.elementwise("abs", {spread}), m.like(spread, std::numeric_limits<float>::max()));
}

struct AdamwUpdate {
  static constexpr std::string_view kName = "adamw_update";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 7));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(in[0], "param", {DType::f32}));
    const std::pair<size_t, std::string_view> edges[] = {{1, "m"}, {2, "v"}, {3, "grad"}};
    for (const auto& [i, name] : edges) {
      LIGNUM_RETURN_IF_ERROR(expect_edge(in[i], name));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[i], name, in[0].dims, "those of param"));
    }
    const std::pair<std::string_view, DType> scalars[] = {
        {"learning_rate", DType::f32}, {"step", DType::i32}, {"grad_scale", DType::f32}};
    for (size_t i = 0; i < 3; ++i) {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[4 + i], scalars[i].first, {scalars[i].second}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[4 + i], scalars[i].first, {}, "a scalar"));
    }
    for (const auto* key : {"b1", "b2", "eps", "eps_root"})
      LIGNUM_RETURN_IF_ERROR(number_in(attrs, key, 0, 1).status());
    LIGNUM_RETURN_IF_ERROR(number_in(attrs, "weight_decay", 0, 1e3).status());
    return Types{in[0], in[1], in[2]};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    const auto f = factors(s.in[0].rank());
    return {.in = {f, f, f, f, {}, {}, {}}, .out = {f, f, f}};
  }

  static Cost cost(const Site& s) { return streaming_cost(s, 5); }  // 15 an element, over three results

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const Settings a(s.attrs);
    Arith m(b);
    const auto spread = [&](Value scalar) { return b.splat(scalar, s.in[0]); };
    const Value t = m.add(m.f32(in[5]), 1.0);
    const Value correction1 = spread(one_minus_power(m, a.b1, t));
    const Value correction2 = spread(one_minus_power(m, a.b2, t));
    const Value g = m.mul(m.f32(in[3]), spread(in[6]));
    const Value m1 = m.add(m.mul(m.f32(in[1]), a.b1), m.mul(g, 1 - a.b1));
    const Value v1 = m.add(m.mul(m.f32(in[2]), a.b2), m.mul(m.mul(g, g), 1 - a.b2));
    const Value root = m.sqrt(m.add(m.div(v1, correction2), a.eps_root));
    const Value direction = m.div(m.div(m1, correction1), m.add(root, a.eps));
    const Value change = m.add(direction, m.mul(in[0], a.weight_decay));
    const Value finite = is_finite(b, m, in[6], s.in[0]);
    const auto kept = [&](Value moment, size_t i) {
      return m.select(finite, b.convert(moment, s.in[i].dtype), in[i]);
    };
    return {m.select(finite, m.sub(in[0], m.mul(change, spread(in[4]))), in[0]), kept(m1, 1), kept(v1, 2)};
  }

  static void reference(const RefCall& c) {
    const Settings a(c.site.attrs);
    const double learning_rate = c.in[4]->data[0], t = c.in[5]->data[0] + 1, grad_scale = c.in[6]->data[0];
    if (!std::isfinite(grad_scale)) {
      for (size_t r = 0; r < 3; ++r) c.out[r].data = c.in[r]->data;
      return;
    }
    for (size_t i = 0; i < c.out[0].data.size(); ++i) {
      const double p = c.in[0]->data[i], g = c.in[3]->data[i] * grad_scale;
      const double m = a.b1 * c.in[1]->data[i] + (1 - a.b1) * g;
      const double v = a.b2 * c.in[2]->data[i] + (1 - a.b2) * g * g;
      const double m_hat = m / (1 - std::pow(a.b1, t)), v_hat = v / (1 - std::pow(a.b2, t));
      c.out[0].data[i] =
          p - learning_rate * (m_hat / (std::sqrt(v_hat + a.eps_root) + a.eps) + a.weight_decay * p);
      c.out[1].data[i] = m;
      c.out[2].data[i] = v;
    }
  }

  static int64_t workspace(const Site&, int) { return 0; }

  static Status cpu(const CpuCall& c) {
    const Settings a(c.site.attrs);
    const double t = *data_in<int32_t>(c, 5) + 1.0;
    const kernels::AdamW step{.learning_rate = *data_in<float>(c, 4),
                              .beta1 = a.b1,
                              .beta2 = a.b2,
                              .eps = a.eps,
                              .eps_root = a.eps_root,
                              .weight_decay = a.weight_decay,
                              .correction1 = 1 - std::pow(a.b1, t),
                              .correction2 = 1 - std::pow(a.b2, t),
                              .grad_scale = *data_in<float>(c, 6)};
    for (size_t r = 0; r < 3; ++r) copy_through(c, r, r);  // the kernel works in place
    if (!std::isfinite(step.grad_scale)) return {};
    kernels::row_kernels(c.choice).adamw(step, c.site.in[0].elements(), data_out<float>(c, 0),
                                         kernel_out(c, 1), kernel_out(c, 2), kernel_in(c, 3), c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {.in_place = {{0, 0}, {1, 1}, {2, 2}}}; }

  static constexpr ByDecomposition emit{};

  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    const auto make = [](std::string name, const Dims& dims, double weight_decay, double largest_step,
                         double b2 = 0.95, bool bench = false, DType first = DType::f32,
                         DType second = DType::f32, double eps_root = 0, DType grad = DType::f32) {
      return Case{
          std::move(name),
          {tensor(f32, dims), tensor(first, dims), tensor(second, dims, Fill::positive), tensor(grad, dims),
           tensor(f32, {}, Fill::uniform01), tensor(DType::i32, {}, Fill::position, largest_step),
           tensor(f32, {}, Fill::positive)},
          {{"b1", 0.9}, {"b2", b2}, {"eps", 1e-8}, {"eps_root", eps_root}, {"weight_decay", weight_decay}},
          1,
          bench};
    };
    return {
        make("first_step", {1, 8}, 0.1, 1),
        make("first_step_slow", {3, 3}, 0.1, 1, 0.999),
        make("scalar", {}, 0.1, 5),
        make("odd", {5, 37}, 0.1, 10),
        make("misaligned", {211}, 0, 100),
        make("late", {2, 9}, 0.01, 100000, 0.999),
        make("empty", {0, 3}, 0.1, 3),
        make("bench", {4096, 4096}, 0.1, 1000, 0.95, true),
        make("eps_root", {3, 5}, 0.1, 10, 0.95, false, f32, f32, 1e-3),
        make("bf16_m", {3, 37}, 0.1, 10, 0.95, false, bf16),
        make("bf16_m_v", {7, 33}, 0.1, 10, 0.95, false, bf16, bf16),
        make("bf16_v", {9}, 0.1, 10, 0.95, false, f32, bf16),
        make("bf16_grad", {3, 1001}, 0.1, 10, 0.95, false, f32, f32, 0, bf16),
        make("bf16_all", {3, 1001}, 0.1, 10, 0.95, false, bf16, bf16, 0, bf16),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(adamw_update, AdamwUpdate)

}  // namespace lignum::ops
