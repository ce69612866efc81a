#include <algorithm>
#include <set>

#include "ir/copy.h"
#include "ir/graph.h"

namespace lignum::ir {

int32_t copy_node(Node node, int32_t id, Graph& to, std::map<Value, Value>& map) {
  for (Value& v : node.inputs) v = map.at(v);
  const int32_t made = to.add(std::move(node));
  for (const Value v : to.results(made)) map[{id, v.index}] = v;
  return made;
}

Graph replace_params(const Graph& from, std::span<const int64_t> which,
                     const std::function<Type(const Type&)>& type,
                     const std::function<Value(Graph&, Value)>& derive) {
  Graph to;
  to.name = from.name;
  to.stage = from.stage;
  std::map<Value, Value> map;
  for (int64_t p = 0; p < static_cast<int64_t>(from.params().size()); ++p) {
    const Value old = from.param_value(p);
    const bool changes = std::find(which.begin(), which.end(), p) != which.end();
    map[old] = to.param(from.param_name(p), changes ? type(from.type(old)) : from.type(old));
    to.set_origin(map[old].node, from.node(old).origin);
  }
  for (const int64_t p : which) map[from.param_value(p)] = derive(to, map.at(from.param_value(p)));
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id)
    if (from.node(id).kind != "param") copy_node(from.node(id), id, to, map);
  for (const Output& o : from.outputs()) to.output(o.name, map.at(o.value), o.alias);
  return to;
}

Graph rewrite(const Graph& from, const Visit& visit) {
  Graph to;
  to.name = from.name;
  to.stage = from.stage;
  std::map<Value, Value> map;
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id) {
    const Node& n = from.node(id);
    std::vector<Value> inputs;
    for (const Value v : n.inputs) inputs.push_back(map.at(v));
    std::vector<Value> values;
    if (n.kind != "param") values = visit(to, id, n, inputs);
    if (values.empty()) {
      Node copy = n;
      copy.inputs = inputs;
      values = to.results(to.add(std::move(copy)));
    }
    LIGNUM_CHECK(values.size() == n.types.size(), "rewrite of %{} = {} gave {} values", id, n.kind,
                 values.size());
    for (int32_t i = 0; i < static_cast<int32_t>(values.size()); ++i)
      map[{id, i}] = values[static_cast<size_t>(i)];
  }
  for (const Output& o : from.outputs()) to.output(o.name, map.at(o.value), o.alias);
  return to;
}

namespace {

// keep_param[i] false drops body param i; keep_output likewise. Returns the body without what is then dead.
Graph prune_body(const Graph& from, const std::vector<bool>& keep_output, bool keep_all_params);

std::vector<bool> live_nodes(const Graph& g, const std::vector<bool>& keep_output) {
  std::vector<bool> live(g.nodes().size(), false);
  for (size_t i = 0; i < g.outputs().size(); ++i)
    if (keep_output[i]) live[static_cast<size_t>(g.outputs()[i].value.node)] = true;
  for (size_t id = g.nodes().size(); id-- > 0;) {
    if (!live[id]) continue;
    for (const Value v : g.nodes()[id].inputs) live[static_cast<size_t>(v.node)] = true;
  }
  return live;
}

Graph prune_body(const Graph& from, const std::vector<bool>& keep_output, bool keep_all_params) {
  // Liveness by value, last node first: a scan may lose stacked results that nobody uses, and then the inputs
  // which only those needed. Its shrunk form is made on the way and put into the new graph in order.
  struct Shrunk {
    Node node;                    // attrs, body, types and inputs (old values) of the smaller scan
    std::vector<int32_t> result;  // old result index -> new, or -1
  };
  std::map<int32_t, Shrunk> scans;
  std::set<Value> used;
  for (size_t i = 0; i < from.outputs().size(); ++i)
    if (keep_output[i]) used.insert(from.outputs()[i].value);
  const auto node_used = [&](int32_t id) {
    for (int32_t r = 0; r < static_cast<int32_t>(from.node(id).types.size()); ++r)
      if (used.contains({id, r})) return true;
    return false;
  };
  for (auto id = static_cast<int32_t>(from.nodes().size()) - 1; id >= 0; --id) {
    if (!node_used(id)) continue;
    const Node& n = from.node(id);
    if (n.kind != "scan") {
      used.insert(n.inputs.begin(), n.inputs.end());
      continue;
    }
    Scan s = scan_of(n);
    Shrunk small;
    small.node = n;
    small.node.types.clear();
    std::vector<bool> keep;
    for (int32_t r = 0; r < static_cast<int32_t>(n.types.size()); ++r) {
      const bool k = r < s.carry || used.contains({id, r});
      keep.push_back(k);
      small.result.push_back(k ? static_cast<int32_t>(small.node.types.size()) : -1);
      if (k) small.node.types.push_back(n.types[static_cast<size_t>(r)]);
    }
    Graph body = prune_body(*n.body, keep, true);
    const std::vector<bool> live = live_nodes(body, std::vector<bool>(body.outputs().size(), true));
    Graph shrunk;
    shrunk.name = body.name;
    shrunk.stage = body.stage;
    std::map<Value, Value> map;
    small.node.inputs.clear();
    int64_t sliced = 0, invariant = 0, p = 0;
    for (int32_t b = 0; b < static_cast<int32_t>(body.nodes().size()); ++b) {
      Node copy = body.node(b);
      if (copy.kind == "param") {
        const int64_t i = p++;
        const bool is_carry = i < s.carry, is_sliced = !is_carry && i < s.carry + s.sliced;
        const bool guard = s.guarded && p == static_cast<int64_t>(n.inputs.size());
        if (!is_carry && !guard && !live[static_cast<size_t>(b)]) continue;
        small.node.inputs.push_back(n.inputs[static_cast<size_t>(i)]);
        if (is_sliced) ++sliced;
        if (!is_carry && !is_sliced) ++invariant;
      }
      copy_node(std::move(copy), b, shrunk, map);
    }
    for (const Output& o : body.outputs()) shrunk.output(o.name, map.at(o.value), o.alias);
    s.sliced = sliced;
    s.invariant = invariant;
    s.stacked = static_cast<int64_t>(small.node.types.size()) - s.carry;
    small.node.attrs = scan_attrs(s);
    small.node.body = std::make_shared<Graph>(std::move(shrunk));
    used.insert(small.node.inputs.begin(), small.node.inputs.end());
    scans.emplace(id, std::move(small));
  }

  Graph to;
  to.name = from.name;
  to.stage = from.stage;
  std::map<Value, Value> map;
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id) {
    const Node& n = from.node(id);
    if (!(n.kind == "param" && keep_all_params) && !node_used(id)) continue;
    const auto scan = scans.find(id);
    Node copy = scan == scans.end() ? n : scan->second.node;
    for (Value& v : copy.inputs) v = map.at(v);
    const int32_t made = to.add(std::move(copy));
    for (int32_t r = 0; r < static_cast<int32_t>(n.types.size()); ++r) {
      const int32_t now = scan == scans.end() ? r : scan->second.result[static_cast<size_t>(r)];
      if (now >= 0) map[{id, r}] = {made, now};
    }
  }
  for (size_t i = 0; i < from.outputs().size(); ++i)
    if (keep_output[i])
      to.output(from.outputs()[i].name, map.at(from.outputs()[i].value), from.outputs()[i].alias);
  return to;
}

}  // namespace

Graph prune(const Graph& graph) {
  return prune_body(graph, std::vector<bool>(graph.outputs().size(), true), true);
}

}  // namespace lignum::ir
