// Gradients of every op against finite differences, in double: the loss is <w, op(x)> with fixed random w.
#include "ops/gradient.h"

#include <cmath>

#include "base/rng.h"
#include "ops/testing.h"

namespace lignum::ops {
namespace {

class GradientTest : public ::testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(Case, GradientTest, ::testing::ValuesIn(op_cases(false)), param_name);

constexpr int64_t kProbes = 24;  // elements of each input that are moved

TEST_P(GradientTest, AgreesWithFiniteDifferences) {
  const Op& op = *GetParam().op;
  if (op.straight_through) return;  // quantised_test.cc
  const CaseSite s(op, GetParam().c);
  const auto gradient_type = [](Type t) {
    if (is_float8(t.dtype)) t.dtype = DType::f32;
    t.async = t.host = false;  // a gradient is never on its way, and on the device
    return t;
  };
  const std::vector<RefTensor> values = values_of(case_inputs(op, GetParam().c));
  const std::vector<RefTensor> whole = evaluate(op, s.site, pointers(values));
  std::vector<size_t> results;  // those a gradient can come from
  for (size_t r = 0; r < s.out.size(); ++r)
    if (dtype_is_float(s.out[r].dtype)) results.push_back(r);

  // From each result alone, and from all of them.
  std::vector<std::vector<size_t>> seeds;
  for (const size_t r : results) seeds.push_back({r});
  if (results.size() > 1) seeds.push_back(results);
  for (const std::vector<size_t>& seeded : seeds) {
    SCOPED_TRACE(fmt::format("seeded from {} results, first {}", seeded.size(), seeded[0]));
    ir::Graph graph;
    for (const Type& t : s.in)
      if (t.async) graph.stage = ir::Stage::local;
    Builder build(graph);
    Values inputs;
    for (size_t i = 0; i < s.in.size(); ++i) inputs.push_back(graph.param(fmt::format("in{}", i), s.in[i]));
    std::vector<RefTensor> arguments = values;
    std::vector<std::optional<Value>> cotangents(s.out.size());
    std::vector<RefTensor> weights(s.out.size());
    for (const size_t r : seeded) {
      cotangents[r] = graph.param(fmt::format("w{}", r), gradient_type(s.out[r]));
      const Random random(5, fmt::format("{}", r));
      weights[r].dims = s.out[r].dims;
      // What is not finite (the lse of no key) has no differences.
      for (int64_t i = 0; i < s.out[r].elements(); ++i)
        weights[r].data.push_back(std::isfinite(whole[r].data[static_cast<size_t>(i)])
                                      ? random.normal(static_cast<uint64_t>(i))
                                      : 0);
      arguments.push_back(weights[r]);
    }
    const Values outputs = build.add_all(op.name, inputs, s.attrs);
    const Gradients gradients = gradient(op, GradCall{build, s.site, inputs, outputs, cotangents});
    ASSERT_EQ(gradients.size(), inputs.size());
    std::vector<size_t> given;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i]) continue;
      ASSERT_TRUE(dtype_is_float(s.in[i].dtype)) << "a gradient of integers, input " << i;
      Type expected = gradient_type(s.in[i]);
      if (is_float8(s.in[i].dtype) && graph.type(*gradients[i]).dtype == DType::bf16)
        expected.dtype = DType::bf16;
      ASSERT_EQ(graph.type(*gradients[i]), expected) << "input " << i;
      graph.output(fmt::format("d{}", i), *gradients[i]);
      given.push_back(i);
    }
    if (given.empty()) continue;  // not differentiable, and says so
    ASSERT_TRUE(verify(graph).ok()) << verify(graph).message();
    const std::vector<RefTensor> got = interpret(graph, arguments);

    const auto loss = [&](const std::vector<RefTensor>& at) {
      const std::vector<RefTensor> out = evaluate(op, s.site, pointers(at));
      double sum = 0;
      for (const size_t r : seeded)
        for (size_t i = 0; i < out[r].data.size(); ++i)
          if (weights[r].data[i] != 0) sum += weights[r].data[i] * out[r].data[i];
      return sum;
    };
    const double here = loss(values);
    for (size_t i = 0, g = 0; i < inputs.size(); ++i) {
      if (!dtype_is_float(s.in[i].dtype)) continue;
      const bool has = g < given.size() && given[g] == i;
      const auto n = static_cast<int64_t>(values[i].data.size());
      // What is no gradient at all is zero everywhere.
      const RefTensor zero{values[i].dims, std::vector<double>(values[i].data.size())};
      const RefTensor& ours = has ? got[g] : zero;
      if (has) ++g;
      const double scale = std::max(1.0, scale_of(ours));
      const int64_t stride = std::max<int64_t>(1, n / kProbes) | 1;
      for (int64_t e = 0; e < n; e += stride) {
        std::vector<RefTensor> moved = values;
        double& x = moved[i].data[static_cast<size_t>(e)];
        const double at = x, h = 1e-5 * std::max(1.0, std::fabs(at));
        x = at + h;
        const double up = loss(moved);
        x = at - h;
        const double difference = (up - loss(moved)) / (2 * h);
        // Truncation goes with h^2, cancellation with the loss's last place over h.
        const double bound = 1e-6 * scale + 1e-10 * std::fabs(here);
        EXPECT_NEAR(ours.data[static_cast<size_t>(e)], difference, bound)
            << "input " << i << (has ? "" : " (declared without gradient)") << ", element " << e;
      }
    }
  }
}

}  // namespace
}  // namespace lignum::ops
