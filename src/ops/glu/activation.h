// What glu, activation and their gradients share: the activations, x s(z(x)) with s the logistic function
// (kernels/rows.h), and the shapes of their cases.
#pragma once

#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/rows.h"
#include "ops/facets.h"

namespace lignum::ops {

struct GluActivation {
  std::string_view name;
  kernels::Activation kernel;
};
inline constexpr std::array<GluActivation, 2> kGluActivations = {
    {{"silu", kernels::Activation::silu}, {"gelu_tanh", kernels::Activation::gelu_tanh}}};

inline Result<kernels::Activation> activation_of(const Attrs& attrs) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string name, string_attr(attrs, "activation"));
  for (const GluActivation& a : kGluActivations)
    if (a.name == name) return a.kernel;
  return user_error("attribute activation = \"{}\"; allowed: silu, gelu_tanh", name);
}

inline constexpr double kGeluCube = 0.044715;
inline const double kGeluScale = 2 * std::sqrt(2 / std::numbers::pi);  // z = kGeluScale (x + kGeluCube x^3)

// s(z(x)) and z'(x) in double.
struct ActivationAt {
  double s, slope;
};
inline ActivationAt activation_at(kernels::Activation a, double x) {
  const bool gelu = a == kernels::Activation::gelu_tanh;
  const double z = gelu ? kGeluScale * (x + kGeluCube * x * x * x) : x;
  return {1 / (1 + std::exp(-z)), gelu ? kGeluScale * (1 + 3 * kGeluCube * x * x) : 1};
}

// The same as nodes; slope absent where it is 1.
struct ActivationNodes {
  Value s;
  std::optional<Value> slope;
};
inline ActivationNodes activation_nodes(Arith& m, kernels::Activation a, Value x) {
  if (a == kernels::Activation::silu) return {m.logistic(x), {}};
  const Value square = m.mul(x, x);
  const Value z = m.mul(m.mul(x, m.add(m.mul(square, kGeluCube), 1.0)), kGeluScale);
  return {m.logistic(z), m.mul(m.add(m.mul(square, 3 * kGeluCube), 1.0), kGeluScale)};
}

// Cases of an op whose inputs are like gate, `gate` saying which of them that is.
inline std::vector<Case> glu_cases(size_t inputs, size_t gate) {
  std::vector<Case> cases;
  const auto add = [&](std::string name, std::string_view activation, DType dtype, const Dims& dims,
                       double deviation = 1, bool bench = false) {
    Case c{fmt::format("{}_{}", activation, name), {}, {{"activation", std::string(activation)}}, 1, bench};
    for (size_t i = 0; i < inputs; ++i)
      c.in.push_back(tensor(dtype, dims, Fill::normal, i == gate ? deviation : 1));
    cases.push_back(std::move(c));
  };
  for (const GluActivation& a : kGluActivations) {
    add("one_row", a.name, DType::f32, {1, 16});
    add("scalar", a.name, DType::f32, {});
    add("odd", a.name, DType::f32, {3, 37});
    add("misaligned", a.name, DType::f32, {211});
    add("saturated", a.name, DType::f32, {5, 7}, 30);
    add("bf16", a.name, DType::bf16, {3, 37});
    add("empty", a.name, DType::f32, {0, 3});
    add("bench", a.name, DType::bf16, {2048, 8192}, 1, true);
  }
  return cases;
}

}  // namespace lignum::ops
