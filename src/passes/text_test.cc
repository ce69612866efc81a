// Passes, text in, text out: testdata/*.step holds a first line "pass NAME key=value ...", a graph, a line
// "---", and what the pass must print for it. LIGNUM_UPDATE=1 writes the second half anew (read the
// difference before you commit it).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ops/op.h"
#include "passes/autodiff.h"
#include "passes/fuse.h"
#include "passes/hoist.h"
#include "passes/memory.h"
#include "passes/offload.h"
#include "passes/partition.h"
#include "passes/quantise.h"
#include "passes/quantization_watch.h"
#include "passes/remat.h"
#include "passes/schedule.h"
#include "passes/update.h"

namespace lignum::passes {
namespace {

std::vector<std::string> files() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(LIGNUM_SOURCE_DIR "/src/passes/testdata"))
    if (entry.path().extension() == ".step") out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

struct Command {
  std::string pass;
  std::map<std::string, std::string> options;
  int64_t number(const std::string& key, int64_t otherwise) const {
    const auto it = options.find(key);
    return it == options.end() ? otherwise : std::stoll(it->second);
  }
};

Command read_command(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  Command c;
  words >> word >> c.pass;
  EXPECT_EQ(word, "pass");
  while (words >> word) c.options[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return c;
}

std::string memory_text(const Scheduled& s, const MemoryPlan& plan) {
  std::string out = fmt::format("state {} arena {}\n", plan.state_bytes, plan.arena_bytes);
  if (plan.host_bytes > 0) out += fmt::format("host {}\n", plan.host_bytes);
  for (const MemoryPart& p : plan.parts) out += fmt::format("part {} {}\n", p.name, p.bytes);
  const std::function<void(const Scheduled&, const Layout&, std::string)> walk =
      [&](const Scheduled& g, const Layout& layout, const std::string& indent) {
        for (const auto& [v, place] : layout.places) {
          out +=
              fmt::format("{}%{}#{} at {}{}", indent, v.node, v.index, place.host ? "host " : "", place.base);
          for (const Term& t : place.terms)
            out += fmt::format(" + {}*{}{}", t.stride, t.modulus > 0 ? "i" : "row",
                               t.modulus > 0 ? fmt::format("%{}", t.modulus) : "");
          out += "\n";
        }
        for (const Copy& c : layout.at_end)
          out += fmt::format("{}copy {} bytes of {} from {} to {}\n", indent, c.bytes, c.what, c.from.base,
                             c.to.base);
        for (const auto& [id, body] : g.bodies) walk(body, layout.bodies.at(id), indent + "  ");
      };
  walk(s, plan.layout, "");
  return out;
}

Result<std::string> run(const Command& c, const ir::Graph& g) {
  if (c.pass == "prune") return ir::print(ir::prune(g));
  if (c.pass == "quantise") {
    QuantizationRule rule;
    rule.module_path = c.options.at("path");
    rule.weight_dtype = rule.act_dtype = DType::f8e4m3fn;
    rule.bwd_dtype = DType::f8e5m2;
    rule.channelwise = c.number("channelwise", 1) != 0;
    rule.tile.size = c.number("tile", 0);
    rule.weight_grad_tile.size = c.number("weight_grad_tile", 0);
    rule.block = c.number("block", 0);
    if (c.number("bwd", 1) == 0) rule.bwd_dtype.reset();
    LIGNUM_ASSIGN_OR_RETURN(rule.weight, ops::parse_calibration(c.options.at("calibration")));
    rule.act = rule.weight;
    QuantizationRanges ranges;
    if (rule.weight.text() == "static") {
      rule.bwd = rule.weight;
      ir::for_each_node(g, [&](const ir::Graph& in, int32_t id, int) {
        if (in.node(id).kind == "matmul" && c.number("lacks", 0) == 0)
          ranges[in.node(id).tag.path] = {{"weight", {1, 2, 3}}, {"act", {4, 5, 6}}, {"bwd", {7, 8, 9}}};
      });
    }
    LIGNUM_ASSIGN_OR_RETURN(Quantised quantised, quantise(g, {rule}, ranges));
    ir::Graph made = std::move(quantised.graph);
    if (c.options.contains("remat")) {
      LIGNUM_ASSIGN_OR_RETURN(const RematPolicy policy, remat_policy(c.options.at("remat")));
      made = remat(autodiff(made), policy);
    }
    if (c.number("watch", 0) != 0) made = watch_quantization(made, {true, true}).graph;
    LIGNUM_RETURN_IF_ERROR(ops::verify(made));
    if (c.number("fsdp", 1) == 1) return ir::print(made);
    LIGNUM_ASSIGN_OR_RETURN(const Partitioned p, partition(made, {{{"fsdp", c.number("fsdp", 1)}}}));
    return ir::print(p.graph);
  }
  if (c.pass == "autodiff") return ir::print(ir::prune(autodiff(g)));
  if (c.pass == "remat") {
    if (const auto saved = c.options.find("saved"); saved != c.options.end())
      return ir::print(remat(autodiff(g), RematPolicy{false, {saved->second}, {}}));
    LIGNUM_ASSIGN_OR_RETURN(const RematPolicy policy, remat_policy(c.options.at("policy")));
    return ir::print(remat(autodiff(g), policy));
  }
  if (c.pass == "offload" && c.number("parameters", 0) != 0) {
    const ir::Graph moved = offload(remat(autodiff(g), RematPolicy{true, {}, {}}), {}, true);
    LIGNUM_RETURN_IF_ERROR(ops::verify(moved));
    return ir::print(moved);
  }
  if (c.pass == "offload") {
    const std::string& name = c.options.at("name");
    const ir::Graph moved = offload(remat(autodiff(g), RematPolicy{false, {name}, {}}), {name});
    LIGNUM_RETURN_IF_ERROR(ops::verify(moved));
    return ir::print(moved);
  }
  if (c.pass == "accumulate") return ir::print(accumulate(g, c.number("n", 1)));
  if (c.pass == "update") {
    Optimizer optimizer;
    if (c.number("sgd", 0) != 0) optimizer.kind = Optimizer::Kind::sgd;
    optimizer.momentum = 0.875 * static_cast<double>(c.number("momentum", 0));
    optimizer.limits = c.number("limits", 0) != 0;
    optimizer.offloaded = c.number("offloaded", 0) != 0;
    const ir::Graph updated = add_update(g, optimizer);
    LIGNUM_RETURN_IF_ERROR(ops::verify(updated));
    return ir::print(updated);
  }
  if (c.pass == "partition") {
    Mesh mesh;
    for (const char* axis : {"data", "pipeline", "fsdp", "fsdp_transpose", "context", "tensor"})
      mesh.axes.push_back({axis, c.number(axis, 1)});
    mesh.balanced = c.number("balanced", 0) != 0;
    mesh.ring = c.number("ring", 0) != 0;
    mesh.state_over_data = c.number("state_over_data", 0) != 0;
    const Pipeline pipeline{mesh.size("pipeline"), c.number("microbatches", mesh.size("pipeline")),
                            c.number("repeats", 1)};
    const ir::Graph step = c.number("autodiff", 0) != 0 ? remat(autodiff(g), {}) : g;
    LIGNUM_ASSIGN_OR_RETURN(const Partitioned p, partition(step, mesh, pipeline));
    return ir::print(p.graph);
  }
  if (c.pass == "hoist") {
    const ir::Graph hoisted = hoist_casts(g);
    LIGNUM_RETURN_IF_ERROR(ops::verify(hoisted));
    return ir::print(hoisted);
  }
  if (c.pass == "fuse") {
    const ir::Graph fused = fuse(g);
    LIGNUM_RETURN_IF_ERROR(ops::verify(fused));
    return ir::print(fused);
  }
  auto local = std::make_shared<const ir::Graph>(g);
  const Scheduled s = schedule(local, {c.number("distance", 1), c.number("overlap", 1) != 0});
  LIGNUM_RETURN_IF_ERROR(verify_schedule(s));
  if (c.pass == "schedule") return print_schedule(s);
  LIGNUM_CHECK(c.pass == "memory", "no pass {}", c.pass);
  const MemoryPlan plan = plan_memory(s, {});
  LIGNUM_RETURN_IF_ERROR(verify_memory(s, plan));
  return memory_text(s, plan);
}

class Text : public testing::TestWithParam<std::string> {};

TEST_P(Text, PrintsWhatIsExpected) {
  std::ifstream in(GetParam());
  std::string first, line, input, expected;
  std::getline(in, first);
  bool second = false;
  while (std::getline(in, line)) {
    if (line == "---") {
      second = true;
    } else {
      (second ? expected : input) += line + "\n";
    }
  }
  const Result<ir::Graph> g = ir::parse(input);
  ASSERT_TRUE(g.ok()) << g.status().message();
  const Status typed = ops::verify(*g);
  ASSERT_TRUE(typed.ok()) << typed.message();
  const Result<std::string> got = run(read_command(first), *g);
  const std::string text = got.ok() ? *got : "error: " + got.status().message() + "\n";
  if (std::getenv("LIGNUM_UPDATE") != nullptr) {
    std::ofstream(GetParam()) << first << "\n" << input << "---\n" << text;
  } else {
    EXPECT_EQ(text, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, Text, testing::ValuesIn(files()), [](const auto& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace lignum::passes
