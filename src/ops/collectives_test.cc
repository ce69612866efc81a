// Collectives: all ranks of a case in one process. What they ask of the transport is done here by the book
// and must give what the reference says; the gradient is the adjoint over the whole group.
#include <cmath>
#include <cstring>

#include "ops/emit.h"
#include "ops/gradient.h"
#include "ops/testing.h"

namespace lignum::ops {
namespace {

class CollectiveTest : public ::testing::TestWithParam<OpCase> {
 protected:
  const Op& op() const { return *GetParam().op; }
  const Case& the_case() const { return GetParam().c; }
  int64_t ranks() const { return GetParam().c.ranks; }
};
INSTANTIATE_TEST_SUITE_P(Case, CollectiveTest, ::testing::ValuesIn(op_cases(true)), param_name);

class Recorder final : public Collectives {
 public:
  Status start(const CollectiveCall& call) override {
    calls.push_back(call);
    return {};
  }
  int64_t position(std::string_view) const override { return place; }
  int64_t place = 0;
  std::vector<CollectiveCall> calls;
};

// Element (outer, row, e) of a rank's buffer with `rows` rows.
int64_t at(const CollectiveCall& c, int64_t rows, int64_t outer, int64_t row, int64_t e) {
  return (outer * rows + row) * c.row_elements + e;
}

// The calls of all ranks, carried out as ops/op.h words them.
void carry_out(const std::vector<CollectiveCall>& calls) {
  const auto ranks = static_cast<int64_t>(calls.size());
  const bool integer = !dtype_is_float(calls[0].dtype);
  const auto sum = [&](int64_t i) {
    if (integer) {
      double s = 0;
      for (const CollectiveCall& peer : calls) s += load_as_double(peer.dtype, peer.in, i);
      return s;
    }
    auto s = static_cast<float>(load_as_double(calls[0].dtype, calls[0].in, i));
    for (int64_t p = 1; p < ranks; ++p)
      s += static_cast<float>(
          load_as_double(calls[static_cast<size_t>(p)].dtype, calls[static_cast<size_t>(p)].in, i));
    return static_cast<double>(s);
  };
  const auto largest = [&](int64_t i) {
    double most = -std::numeric_limits<double>::infinity();
    for (const CollectiveCall& peer : calls) most = std::max(most, load_as_double(peer.dtype, peer.in, i));
    return most;
  };
  for (int64_t r = 0; r < ranks; ++r) {
    const CollectiveCall& c = calls[static_cast<size_t>(r)];
    for (int64_t o = 0; o < c.outer; ++o) {
      for (int64_t e = 0; e < c.row_elements; ++e) {
        switch (c.kind) {
          case CollectiveCall::Kind::all_gather:
            for (int64_t row = 0; row < c.logical_rows; ++row) {
              const CollectiveCall& owner = calls[static_cast<size_t>(row / c.local_rows)];
              store_from_double(
                  c.dtype, c.out, at(c, c.logical_rows, o, row, e),
                  load_as_double(c.dtype, owner.in, at(c, c.local_rows, o, row % c.local_rows, e)));
            }
            break;
          case CollectiveCall::Kind::reduce_scatter:
            for (int64_t row = 0; row < c.local_rows; ++row) {
              const int64_t whole = r * c.local_rows + row;
              store_from_double(c.out_dtype, c.out, at(c, c.local_rows, o, row, e),
                                whole < c.logical_rows ? sum(at(c, c.logical_rows, o, whole, e)) : 0.0);
            }
            break;
          case CollectiveCall::Kind::all_reduce:
            ASSERT_EQ(c.outer, 1);
            ASSERT_EQ(c.local_rows, 1);
            store_from_double(c.out_dtype, c.out, e, c.maximum ? largest(e) : sum(e));
            break;
          case CollectiveCall::Kind::permute: {
            ASSERT_EQ(c.outer * c.local_rows, 1);
            ASSERT_TRUE(c.shift >= 0 && c.shift < ranks) << c.shift;
            const CollectiveCall& source = calls[static_cast<size_t>((r + ranks - c.shift) % ranks)];
            store_from_double(c.dtype, c.out, e, load_as_double(c.dtype, source.in, e));
            break;
          }
        }
      }
    }
  }
}

std::vector<RefTensor> group_reference(const Op& op, const Site& site, const std::vector<RefTensor>& peers) {
  const auto in = pointers(peers);
  std::vector<RefTensor> out;
  for (size_t r = 0; r < peers.size(); ++r) {
    out.push_back({site.out[0].dims, std::vector<double>(static_cast<size_t>(site.out[0].elements()))});
    op.reference_group(RefGroupCall{site, in, static_cast<int64_t>(r), out.back()});
  }
  return out;
}

TEST_P(CollectiveTest, WhatIsAskedOfTheTransportIsTheReference) {
  const CaseSite s(op(), the_case());
  ASSERT_EQ(s.in.size(), 1u);
  ASSERT_EQ(s.out.size(), 1u);
  EXPECT_TRUE(s.out[0].async);
  Serial serial;
  Recorder recorder;
  std::vector<std::unique_ptr<Buffer>> in, out;
  std::vector<RefTensor> peers;
  for (int64_t r = 0; r < ranks(); ++r) {
    const CaseTensor t = case_inputs(op(), the_case(), r)[0];
    peers.push_back(t.values);
    in.push_back(std::make_unique<Buffer>(t.type.bytes(), dtype_size(t.type.dtype)));
    if (!t.bytes.empty()) std::memcpy(in.back()->data(), t.bytes.data(), t.bytes.size());
    out.push_back(std::make_unique<Buffer>(s.out[0].bytes(), dtype_size(s.out[0].dtype)));
    const std::vector<const void*> from = {in.back()->data()};
    const std::vector<void*> to = {out.back()->data()};
    Buffer workspace(op().workspace(s.site, 1), 0);
    const Status status = op().cpu(CpuCall{s.site, from, to, workspace.data(), serial, {}, &recorder});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ASSERT_EQ(recorder.calls.size(), static_cast<size_t>(ranks()));
  for (const CollectiveCall& c : recorder.calls) EXPECT_EQ(c.axis, s.attrs.get<std::string>("axis"));
  carry_out(recorder.calls);
  const std::vector<RefTensor> want = group_reference(op(), s.site, peers);
  double scale = 0;
  for (const RefTensor& p : peers) scale = std::max(scale, scale_of(p));
  for (size_t r = 0; r < want.size(); ++r) {
    EXPECT_TRUE(in[r]->intact() && out[r]->intact()) << "the call reaches beside its buffers";
    const auto in_r = pointers(peers);
    Bound bound = result_bound(op(), s.site, std::span(in_r).first(1), want[r], s.out[0].dtype);
    bound.absolute += dtype_is_float(s.out[0].dtype) ? 0x1p-23 * static_cast<double>(ranks()) * scale : 0;
    EXPECT_EQ(compare(want[r], load(s.out[0], out[r]->data()).data, bound), "") << "rank " << r;
  }
}

// Runs a graph of collectives and awaits for all ranks in step.
std::vector<std::vector<RefTensor>> interpret_group(const ir::Graph& graph,
                                                    const std::vector<std::vector<RefTensor>>& inputs) {
  const size_t ranks = inputs.size();
  std::map<Value, std::vector<RefTensor>> values;  // one a rank
  size_t param = 0;
  for (int32_t id = 0; id < static_cast<int32_t>(graph.nodes().size()); ++id) {
    const ir::Node& node = graph.node(id);
    std::vector<RefTensor>& out = values[{id, 0}];
    if (node.kind == "param") {
      for (size_t r = 0; r < ranks; ++r) out.push_back(inputs[r][param]);
      ++param;
      continue;
    }
    const Op& op = get_op(node.kind);
    const NodeSite site(graph, node);
    if (op.reference_group != nullptr) {
      out = group_reference(op, site.site, values.at(node.inputs[0]));
      continue;
    }
    for (size_t r = 0; r < ranks; ++r) {
      std::vector<const RefTensor*> in;
      for (const Value v : node.inputs) in.push_back(&values.at(v)[r]);
      out.push_back(evaluate(op, site.site, in)[0]);
    }
  }
  std::vector<std::vector<RefTensor>> results(ranks);
  for (const ir::Output& o : graph.outputs())
    for (size_t r = 0; r < ranks; ++r) results[r].push_back(values.at(o.value)[r]);
  return results;
}

// Over all ranks, <w, C x> = <gradient(w), x>.
TEST_P(CollectiveTest, GradientIsTheAdjoint) {
  const CaseSite s(op(), the_case());
  if (!dtype_is_float(s.in[0].dtype)) return;
  ir::Graph graph;
  graph.stage = ir::Stage::local;
  Builder build(graph);
  const Value x = graph.param("x", s.in[0]);
  Type whole = s.out[0];
  whole.async = false;
  const Value w = graph.param("w", whole);
  const Values inputs = {x};
  const Values started = build.add_all(op().name, inputs, s.attrs);
  const std::vector<std::optional<Value>> cotangents = {w};
  const Gradients gradients = gradient(op(), GradCall{build, s.site, inputs, started, cotangents});
  ASSERT_EQ(gradients.size(), 1u);
  ASSERT_EQ(gradients[0].has_value(), !s.attrs.has<std::string>("fn"));  // a maximum has none
  if (!gradients[0]) return;
  graph.output("y", build.add("await", {started[0]}));
  graph.output("dx", *gradients[0]);
  ASSERT_TRUE(verify(graph).ok()) << verify(graph).message();
  ASSERT_EQ(graph.type(*gradients[0]), s.in[0]);

  std::vector<std::vector<RefTensor>> arguments;
  Case weights = the_case();
  weights.in = {{whole}};
  for (int64_t r = 0; r < ranks(); ++r)
    arguments.push_back(
        {case_inputs(op(), the_case(), r)[0].values, case_inputs(op(), weights, r + 100)[0].values});
  const auto results = interpret_group(graph, arguments);
  const auto dot = [](const RefTensor& a, const RefTensor& b) {
    EXPECT_EQ(a.dims, b.dims);
    double sum = 0;
    for (size_t i = 0; i < a.data.size(); ++i) sum += a.data[i] * b.data[i];
    return sum;
  };
  double forward = 0, backward = 0;
  for (size_t r = 0; r < arguments.size(); ++r) {
    forward += dot(arguments[r][1], results[r][0]);
    backward += dot(arguments[r][0], results[r][1]);
  }
  EXPECT_NEAR(forward, backward, 1e-11 * (1 + std::fabs(forward)));
  EXPECT_NE(forward, 0);
}

TEST_P(CollectiveTest, CostAndRuleFit) {
  const CaseSite s(op(), the_case());
  const Cost c = op().cost(s.site);
  EXPECT_EQ(c.work, Work::collective);
  EXPECT_EQ(c.wire > 0, ranks() > 1) << c.wire;
  // No rank takes more than everything that the others have, twice.
  EXPECT_LE(c.wire, 2.0 * static_cast<double>(ranks() - 1) *
                        static_cast<double>(std::max(s.in[0].bytes(), s.out[0].bytes())));
  const ShardRule rule = op().partition(s.site);
  ASSERT_EQ(rule.in.size(), 1u);
  ASSERT_EQ(rule.in[0].size(), s.in[0].dims.size());
  ASSERT_EQ(rule.out[0].size(), s.out[0].dims.size());
  for (const auto& [r, i] : op().buffers(s.site).in_place)
    EXPECT_EQ(s.out[static_cast<size_t>(r)].bytes(), s.in[static_cast<size_t>(i)].bytes());
  EXPECT_FALSE(op().infer({}, s.attrs).ok());
  EXPECT_FALSE(op().infer(s.in, Attrs{}).ok()) << "a collective without an axis";
}

TEST_P(CollectiveTest, PrintsStableHlo) {
  const CaseSite s(op(), the_case());
  Lines out;
  const std::vector<std::string> in = {"%x"};
  const std::vector<std::string> names = emit_node(out, op(), s.site, in);
  ASSERT_EQ(names.size(), 1u);
  std::string text;
  for (const std::string& line : out.lines) text += line + "\n";
  EXPECT_NE(text.find(names[0] + " = "), std::string::npos) << text;
  EXPECT_NE(text.find(mlir_type(s.out[0])), std::string::npos) << text;
  const bool permutes = text.find("source_target_pairs = dense<[[0, ") != std::string::npos;
  EXPECT_TRUE(permutes || text.find(mlir_table(out.groups(""))) != std::string::npos) << text;
}

// Not a collective, but of a group: each rank has its own.
TEST(AxisIndex, IsTheRanksPlace) {
  const Op& op = get_op("axis_index");
  const CaseSite s(op, {"", {}, {{"axis", std::string("fsdp")}, {"group", int64_t{4}}}});
  Recorder recorder;
  recorder.place = 3;
  int32_t at = -1;
  void* to[] = {&at};
  Serial serial;
  ASSERT_TRUE(op.cpu(CpuCall{s.site, {}, to, nullptr, serial, {}, &recorder}).ok());
  EXPECT_EQ(at, 3);
  RefTensor want{{}, {0}};
  op.reference(RefCall{s.site, {}, {&want, 1}, 3});
  EXPECT_EQ(want.data[0], 3);
}

}  // namespace
}  // namespace lignum::ops
