// What the generic tests do not see: a step that is not finite leaves the state alone, in the kernel, in the
// reference and in the decomposition.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "kernels/isa.h"
#include "ops/interpreter.h"

namespace lignum::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const ir::Type kTensor{DType::f32, {3, 5}, {}}, kScalar{DType::f32, {}, {}}, kStep{DType::i32, {}, {}};

struct Call {
  ir::Graph graph;
  std::vector<RefTensor> inputs;
  explicit Call(float scale) {
    std::vector<Value> in;
    const std::pair<const char*, const ir::Type*> params[] = {
        {"param", &kTensor},         {"m", &kTensor},  {"v", &kTensor},         {"grad", &kTensor},
        {"learning_rate", &kScalar}, {"step", &kStep}, {"grad_scale", &kScalar}};
    for (const auto& [name, type] : params) in.push_back(graph.param(name, *type));
    Builder b(graph);
    const auto out =
        b.add_all("adamw_update", in,
                  {{"b1", 0.9}, {"b2", 0.95}, {"eps", 1e-8}, {"eps_root", 0.0}, {"weight_decay", 0.1}});
    const char* const names[] = {"param_new", "m_new", "v_new"};
    for (size_t r = 0; r < 3; ++r) graph.output(names[r], out[r]);
    for (const auto& [name, type] : params) {
      RefTensor t;
      t.dims = type->dims;
      for (int64_t i = 0; i < type->elements(); ++i) t.data.push_back(0.25 + static_cast<double>(i) / 64);
      inputs.push_back(t);
    }
    inputs[5].data = {7};
    inputs[6].data = {scale};
    for (double& g : inputs[3].data) g = kNaN;  // what a scale that is not finite comes with
  }
};

TEST(AdamwUpdate, StateStaysWhereTheScaleIsNotFinite) {
  for (const float scale : {kNaN, kInf, -kInf}) {
    const Call call(scale);
    const auto golden = interpret(call.graph, call.inputs);
    const Op& op = get_op("adamw_update");
    const NodeSite site(call.graph, call.graph.node(call.graph.outputs()[0].value.node));
    const auto decomposed = interpret(decomposition(op, site.site), call.inputs);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(golden[r].data, call.inputs[r].data) << scale;
      EXPECT_EQ(decomposed[r].data, call.inputs[r].data) << scale;
    }

    std::vector<std::vector<float>> state(3);
    std::vector<const void*> in_data;
    std::vector<void*> out_data;
    for (size_t r = 0; r < 3; ++r) {
      state[r].assign(call.inputs[r].data.begin(), call.inputs[r].data.end());
      out_data.push_back(state[r].data());
      in_data.push_back(state[r].data());
    }
    const auto before = state;
    const std::vector<float> grad(15, kNaN);
    const float learning_rate = 0.1F;
    const int32_t step = 7;
    in_data.insert(in_data.end(), {grad.data(), &learning_rate, &step, &scale});
    Serial serial;
    for (const kernels::Isa isa : kernels::available_isas()) {
      ASSERT_TRUE(
          op.cpu({site.site, in_data, out_data, nullptr, serial, kernels::Choice{isa}, nullptr}).ok());
      EXPECT_EQ(state, before);
    }
  }
}

}  // namespace
}  // namespace lignum::ops
