// What every op prints, run by XLA on the CPU plug-in, against the op's reference: all cases of all ops, as
// few modules as there are group sizes. What is awaited is a collective, so await is in their cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "cpu_plugin.h"
#include "ops/testing.h"
#include "pjrt/reader.h"
#include "quick_compile.h"

namespace lignum {
namespace {

using ops::CaseSite;
using ops::OpCase;
using ops::RefTensor;
using pjrt::HostArray;
using pjrt::HostView;

// One module of many cases: each case's inputs are params, its results outputs.
struct Module {
  explicit Module(int64_t ranks) : ranks(ranks) {
    graph.name = "ops";
    graph.stage = ir::Stage::local;
  }
  void add(const OpCase& c) {
    ops::Builder build(graph);
    const CaseSite site(*c.op, c.c);
    ops::Values in;
    for (size_t i = 0; i < site.in.size(); ++i)
      in.push_back(graph.param(fmt::format("{} {}", ops::case_name(c), i), site.in[i]));
    const ops::Values out = build.add_all(c.op->name, in, site.attrs);
    for (size_t r = 0; r < out.size(); ++r)
      graph.output(fmt::format("{} {}", ops::case_name(c), r),
                   site.out[r].async ? build.add("await", {out[r]}) : out[r]);
    cases.push_back(c);
  }
  int64_t ranks;
  ir::Graph graph;
  std::vector<OpCase> cases;
};

// The case's results on every rank by its reference, and how far from them a kernel may be.
struct Expected {
  std::vector<std::vector<RefTensor>> results;  // [rank][result]
  std::vector<std::vector<ops::Bound>> bounds;
};
Expected expect(const OpCase& c, const CaseSite& site, const std::vector<std::vector<RefTensor>>& inputs) {
  Expected out;
  const auto ranks = static_cast<int64_t>(inputs.size());
  double scale = 0;
  std::vector<RefTensor> peers;
  if (c.op->reference_group != nullptr)
    for (const auto& in : inputs) {
      peers.push_back(in[0]);
      scale = std::max(scale, ops::scale_of(in[0]));
    }
  for (int64_t r = 0; r < ranks; ++r) {
    const auto in = ops::pointers(inputs[static_cast<size_t>(r)]);
    std::vector<RefTensor> results;
    if (c.op->reference_group == nullptr) {
      results = ops::evaluate(*c.op, site.site, in);
    } else {
      const auto all = ops::pointers(peers);
      results.push_back({site.out[0].dims, std::vector<double>(static_cast<size_t>(site.out[0].elements()))});
      c.op->reference_group(ops::RefGroupCall{site.site, all, r, results[0]});
    }
    out.bounds.emplace_back();
    for (size_t k = 0; k < results.size(); ++k) {
      ops::Bound bound = ops::result_bound(*c.op, site.site, in, results[k], site.out[k].dtype);
      // XLA adds the ranks in an order of its own, in the dtype that travels.
      if (ranks > 1 && dtype_is_float(site.out[k].dtype))
        bound.absolute +=
            (site.in[0].dtype == DType::bf16 ? 0x1p-8 : 0x1p-23) * static_cast<double>(ranks) * scale;
      out.bounds.back().push_back(bound);
    }
    out.results.push_back(std::move(results));
  }
  return out;
}

constexpr int kDevices = 8;

class Emission : public lignum::tests::CpuPlugin<kDevices> {
 protected:
  static pjrt::PrintOptions options(int64_t ranks) {
    pjrt::PrintOptions o;
    o.replicas = ranks;
    o.axes = {{"fsdp", {{}}}};
    for (int64_t r = 0; r < ranks; ++r) o.axes[0].groups[0].push_back(r);
    return o;
  }

  static void run(const Module& module) {
    auto step = pjrt::load_step(*client_, module.graph, options(module.ranks), kQuickCompile);
    ASSERT_TRUE(step.ok()) << step.status().message();
    const auto ranks = static_cast<size_t>(module.ranks);
    std::vector<std::vector<std::vector<ops::CaseTensor>>> inputs(ranks);  // [rank][case]
    std::vector<std::vector<HostView>> arguments(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      for (const OpCase& c : module.cases) {
        inputs[r].push_back(ops::case_inputs(*c.op, c.c, static_cast<int64_t>(r)));
        for (const ops::CaseTensor& t : inputs[r].back())
          arguments[r].push_back({t.type.dtype, t.type.dims, t.bytes.data()});
      }
    }
    auto results = step->run(arguments);
    ASSERT_TRUE(results.ok()) << results.status().message();
    size_t first = 0;
    for (size_t k = 0; k < module.cases.size(); ++k) {
      const OpCase& c = module.cases[k];
      const CaseSite site(*c.op, c.c);
      std::vector<std::vector<RefTensor>> values;
      for (size_t r = 0; r < ranks; ++r) values.push_back(ops::values_of(inputs[r][k]));
      const Expected want = expect(c, site, values);
      for (size_t r = 0; r < ranks; ++r) {
        for (size_t i = 0; i < site.out.size(); ++i) {
          const HostArray& got = (*results)[r][first + i];
          ASSERT_EQ(got.dims, site.out[i].dims) << ops::case_name(c);
          ASSERT_EQ(got.dtype, site.out[i].dtype) << ops::case_name(c);
          EXPECT_EQ(ops::compare(want.results[r][i], ops::load(site.out[i], got.data.data()).data,
                                 want.bounds[r][i]),
                    "")
              << ops::case_name(c) << " result " << i << " rank " << r;
        }
      }
      first += site.out.size();
    }
  }
};

TEST_F(Emission, OpsOfOneRank) {
  Module module(1);
  for (const OpCase& c : ops::op_cases(false))
    if (c.op->name != "await") module.add(c);
  ASSERT_GT(module.cases.size(), 50u);
  run(module);
}

// Longer rows than any case of the op tests, whose finite differences cost the square of them: attention is
// then printed as several loops over tiles of queries and a part of a tile.
TEST_F(Emission, AttentionInTiles) {
  constexpr int64_t kCase = 229, kLong = 661;
  Module module(1);
  for (OpCase c : ops::op_cases(false)) {
    if (!c.op->name.starts_with("attention") || !c.c.name.ends_with("two_blocks")) continue;
    for (ops::CaseInput& in : c.c.in) std::replace(in.type.dims.begin(), in.type.dims.end(), kCase, kLong);
    if (c.c.attrs.all().contains("window")) c.c.attrs.set("window", int64_t{150});
    module.add(c);
  }
  ASSERT_EQ(module.cases.size(), 8u);
  run(module);
}

TEST_F(Emission, Collectives) {
  std::map<int64_t, Module> modules;
  for (const OpCase& c : ops::op_cases(true)) modules.try_emplace(c.c.ranks, c.c.ranks).first->second.add(c);
  ASSERT_GE(modules.size(), 2u);
  for (const auto& [ranks, module] : modules) {
    ASSERT_LE(ranks, kDevices);
    run(module);
  }
}

// On a mesh whose groups are no runs of ranks, each rank gets its own place.
TEST_F(Emission, AxisIndex) {
  ir::Graph g;
  g.stage = ir::Stage::local;
  ops::Builder b(g);
  const ops::Value x = g.param("x", {DType::i32, {}, {}});
  const auto index = [&](const char* axis) {
    return b.add("axis_index", {}, {{"axis", std::string(axis)}, {"group", int64_t{2}}});
  };
  for (const char* axis : {"data", "fsdp"}) g.output(axis, b.elementwise("add", {x, index(axis)}));
  pjrt::PrintOptions o;
  o.replicas = 4;
  o.axes = {{"data", {{0, 2}, {1, 3}}}, {"fsdp", {{0, 1}, {2, 3}}}};
  auto step = pjrt::load_step(*client_, g, o, kQuickCompile);
  ASSERT_TRUE(step.ok()) << step.status().message();
  const int32_t ten = 10;
  const auto results = step->run(std::vector<std::vector<HostView>>(4, {{DType::i32, {}, &ten}}));
  ASSERT_TRUE(results.ok()) << results.status().message();
  for (int r = 0; r < 4; ++r) {
    int32_t got[2];
    for (size_t i = 0; i < 2; ++i)
      std::memcpy(&got[i], (*results)[static_cast<size_t>(r)][i].data.data(), sizeof got[i]);
    EXPECT_EQ(got[0], 10 + r / 2);
    EXPECT_EQ(got[1], 10 + r % 2);
  }
}

}  // namespace
}  // namespace lignum
