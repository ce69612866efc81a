#include "passes/offload.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "ir/copy.h"
#include "ops/op.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;
using Names = std::set<std::string, std::less<>>;

// Whether loops alone read v, a row an iteration.
bool sliced_only(const Graph& g, Value v) {
  bool read = false;
  for (const Node& n : g.nodes()) {
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (n.inputs[i] != v) continue;
      if (n.kind != "scan") return false;
      const ir::Scan s = ir::scan_of(n);
      const auto at = static_cast<int64_t>(i);
      if (at < s.carry || at >= s.carry + s.sliced) return false;
      read = true;
    }
  }
  return read && std::none_of(g.outputs().begin(), g.outputs().end(),
                              [&](const ir::Output& o) { return o.value == v; });
}

Value started(ops::Builder& b, std::string_view kind, Value v) { return b.add("await", {b.add(kind, {v})}); }

// The body that offloads the rows of the outputs in `stacks`, each right where it is made.
std::shared_ptr<const Graph> offloading(const Graph& from, const ir::Tag& loop,
                                        const std::vector<size_t>& stacks) {
  auto to = std::make_shared<Graph>();
  to->name = from.name;
  to->stage = from.stage;
  ops::Builder b(*to);
  std::map<Value, Value> map, moved;
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id) {
    ir::copy_node(from.node(id), id, *to, map);
    for (const size_t o : stacks) {
      const Value v = from.outputs()[o].value;
      if (v.node != id || moved.contains(v)) continue;
      b.tag = from.node(id).kind == "param" ? loop : from.node(id).tag;
      b.tag.name.clear();
      moved[v] = started(b, "offload", map.at(v));
    }
  }
  for (size_t o = 0; o < from.outputs().size(); ++o) {
    const ir::Output& out = from.outputs()[o];
    const bool host = std::find(stacks.begin(), stacks.end(), o) != stacks.end();
    to->output(out.name, host ? moved.at(out.value) : map.at(out.value));
  }
  return to;
}

// The body whose params in `rows` lie in host memory: fetched first.
std::shared_ptr<const Graph> fetching(const Graph& from, const ir::Tag& loop,
                                      const std::vector<int64_t>& rows) {
  auto to = std::make_shared<Graph>();
  to->name = from.name;
  to->stage = from.stage;
  ops::Builder b(*to);
  std::map<Value, Value> map;
  for (int64_t p = 0; p < static_cast<int64_t>(from.params().size()); ++p) {
    ir::Type type = from.type(from.param_value(p));
    type.host = type.host || std::find(rows.begin(), rows.end(), p) != rows.end();
    map[from.param_value(p)] = to->param(from.param_name(p), std::move(type));
  }
  b.tag = loop;
  for (const int64_t p : rows) map[from.param_value(p)] = started(b, "fetch", map.at(from.param_value(p)));
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id)
    if (from.node(id).kind != "param") ir::copy_node(from.node(id), id, *to, map);
  for (const ir::Output& o : from.outputs()) to->output(o.name, map.at(o.value));
  return to;
}

}  // namespace

Graph offload(const Graph& step, const Names& names) {
  if (names.empty()) return step;
  return ir::rewrite(
      step,
      [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (node.kind != "scan") return {};
        const ir::Scan s = ir::scan_of(node);
        Node scan = node;
        scan.inputs.assign(inputs.begin(), inputs.end());
        std::vector<size_t> stacks;
        for (auto r = static_cast<size_t>(s.carry); r < node.types.size(); ++r)
          if (names.contains(node.body->outputs()[r].name) &&
              sliced_only(step, {id, static_cast<int32_t>(r)}))
            stacks.push_back(r);
        std::vector<int64_t> rows;
        for (int64_t i = s.carry; i < s.carry + s.sliced; ++i)
          if (to.type(inputs[static_cast<size_t>(i)]).host) rows.push_back(i);
        if (stacks.empty() && rows.empty()) return {};
        if (!rows.empty()) scan.body = fetching(*scan.body, node.tag, rows);
        if (!stacks.empty()) scan.body = offloading(*scan.body, node.tag, stacks);
        for (const size_t r : stacks) scan.types[r].host = true;
        return to.results(to.add(std::move(scan)));
      });
}

}  // namespace lignum::passes
