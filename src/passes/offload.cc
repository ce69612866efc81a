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
      moved[v] = transferred(b, "offload", map.at(v));
    }
  }
  for (size_t o = 0; o < from.outputs().size(); ++o) {
    const ir::Output& out = from.outputs()[o];
    const bool host = std::find(stacks.begin(), stacks.end(), o) != stacks.end();
    to->output(out.name, host ? moved.at(out.value) : map.at(out.value));
  }
  return to;
}

ir::Type in_host(const ir::Type& t) {
  ir::Type host = t;
  host.host = true;
  return host;
}

// The body whose params in `rows` lie in host memory: fetched first.
std::shared_ptr<const Graph> fetching(const Graph& from, const ir::Tag& loop,
                                      const std::vector<int64_t>& rows) {
  return std::make_shared<Graph>(ir::replace_params(from, rows, in_host, [&](Graph& to, Value param) {
    ops::Builder b(to);
    b.tag = loop;
    return transferred(b, "fetch", param);
  }));
}

// The step with its parameters, all of whose floating params are that, in host memory; readers are as they
// were.
Graph parameters_in_host(const Graph& from) {
  Graph to;
  to.name = from.name;
  to.stage = from.stage;
  std::map<Value, Value> map;
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id) {
    Node node = from.node(id);
    if (node.kind == "param" && dtype_is_float(node.types[0].dtype)) node.types[0].host = true;
    ir::copy_node(std::move(node), id, to, map);
  }
  for (const ir::Output& o : from.outputs()) to.output(o.name, map.at(o.value), o.alias);
  return to;
}

}  // namespace

bool is_stack(const ir::Type& parameter) {
  return !parameter.names.empty() && parameter.names[0] == "layers";
}

Value transferred(ops::Builder& b, std::string_view kind, Value v) {
  return b.add("await", {b.add(kind, {v})});
}

Graph offload(const Graph& step, const Names& names, bool parameters) {
  if (names.empty() && !parameters) return step;
  const Graph from = parameters ? parameters_in_host(step) : step;
  return ir::rewrite(
      from,
      [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        Node moved = node;
        moved.inputs.assign(inputs.begin(), inputs.end());
        const ir::Scan s = node.kind == "scan" ? ir::scan_of(node) : ir::Scan{};
        std::vector<size_t> stacks;
        for (auto r = static_cast<size_t>(s.carry); node.kind == "scan" && r < node.types.size(); ++r)
          if (names.contains(node.body->outputs()[r].name) &&
              sliced_only(from, {id, static_cast<int32_t>(r)}))
            stacks.push_back(r);
        std::vector<int64_t> rows;
        bool fetched = false;
        ops::Builder b(to);
        b.tag = node.tag;
        b.tag.name.clear();
        for (size_t i = 0; i < inputs.size(); ++i) {
          if (!to.type(inputs[i]).host) continue;
          const auto at = static_cast<int64_t>(i);
          if (at >= s.carry && at < s.carry + s.sliced) {
            rows.push_back(at);
            continue;
          }
          LIGNUM_CHECK(!is_stack(to.type(inputs[i])), "{} ({}) reads a stack of host memory as a whole",
                       node.kind, node.tag.path);
          moved.inputs[i] = transferred(b, "fetch", inputs[i]);
          fetched = true;
        }
        if (stacks.empty() && rows.empty() && !fetched) return {};
        if (!rows.empty()) moved.body = fetching(*moved.body, node.tag, rows);
        if (!stacks.empty()) moved.body = offloading(*moved.body, node.tag, stacks);
        for (const size_t r : stacks) moved.types[r].host = true;
        return to.results(to.add(std::move(moved)));
      });
}

}  // namespace lignum::passes
