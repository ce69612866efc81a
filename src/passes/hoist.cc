#include "passes/hoist.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "ir/copy.h"
#include "ops/op.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// The narrower dtype in which `reader` takes its input, nothing where it takes all of it. A quantize rounds
// to its scale's dtype first. An absmax that is cast may as well be taken of what is cast: rounding keeps
// order.
std::optional<DType> taken_in(const Graph& g, const Node& reader, size_t input) {
  if (reader.kind == "convert") return reader.types[0].dtype;
  if (reader.kind == "quantize" && input == 0) return g.type(reader.inputs[1]).dtype;
  return std::nullopt;
}

// Whether all that is made of v, a largest value, is cast to `dtype`, perhaps after it is one of all ranks.
bool is_cast_to(const Graph& g, Value v, DType dtype) {
  for (const ir::Output& o : g.outputs())
    if (o.value == v) return false;
  for (int32_t id = v.node + 1; id < static_cast<int32_t>(g.nodes().size()); ++id) {
    const Node& n = g.node(id);
    if (std::find(n.inputs.begin(), n.inputs.end(), v) == n.inputs.end()) continue;
    const bool cast = n.kind == "convert" && n.types[0].dtype == dtype;
    const bool passed = (n.kind == "all_reduce" || n.kind == "await") && is_cast_to(g, {id, 0}, dtype);
    if (!cast && !passed) return false;
  }
  return true;
}

// What a param is cast to, and a node that does it.
struct Cast {
  int32_t node;
  DType dtype;
};
using Casts = std::map<Value, Cast>;

// The casts that are all that a body reads of some of its params.
Casts casts_of(const Graph& body) {
  Casts casts;
  std::map<Value, Value> source;                 // what a barrier passes on -> the param that it is
  std::set<Value> other;                         // params that are read otherwise, or in two types
  std::vector<std::pair<Value, Value>> largest;  // a param, and an absmax of it
  const auto param_of = [&](Value v) -> std::optional<Value> {
    if (body.node(v).kind == "param") return v;
    const auto it = source.find(v);
    return it == source.end() ? std::nullopt : std::optional(it->second);
  };
  for (int32_t id = 0; id < static_cast<int32_t>(body.nodes().size()); ++id) {
    const Node& n = body.node(id);
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const std::optional<Value> param = param_of(n.inputs[i]);
      if (!param) continue;
      if (n.kind == "barrier") {
        source[{id, static_cast<int32_t>(i)}] = *param;
      } else if (const auto dtype = taken_in(body, n, i);
                 dtype && dtype_size(*dtype) < dtype_size(body.type(*param).dtype)) {
        if (casts.emplace(*param, Cast{id, *dtype}).first->second.dtype != *dtype) other.insert(*param);
      } else if (n.kind == "absmax") {
        largest.emplace_back(*param, Value{id, 0});
      } else {
        other.insert(*param);
      }
    }
  }
  for (const ir::Output& o : body.outputs())
    if (const std::optional<Value> param = param_of(o.value)) other.insert(*param);
  for (const auto& [param, value] : largest)
    if (const auto cast = casts.find(param);
        cast != casts.end() && !is_cast_to(body, value, cast->second.dtype))
      other.insert(param);
  for (const Value param : other) casts.erase(param);
  return casts;
}

// The body whose params in `casts` come cast.
Graph with_cast_params(const Graph& from, const Casts& casts) {
  Graph to;
  to.name = from.name;
  to.stage = from.stage;
  std::map<Value, Value> map;
  std::set<Value> narrow;  // values of `from` that are cast already
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id) {
    Node n = from.node(id);
    const Value first{id, 0};
    if (n.kind == "param") {
      const auto cast = casts.find(first);
      if (cast != casts.end()) {
        n.types[0].dtype = cast->second.dtype;
        narrow.insert(first);
      }
      map[first] = to.param(n.attrs.get<std::string>("name"), n.types[0]);
      to.set_origin(map[first].node, n.origin);
      continue;
    }
    if (n.kind == "convert" && narrow.contains(n.inputs[0])) {
      map[first] = map.at(n.inputs[0]);
      continue;
    }
    for (size_t i = 0; n.kind == "barrier" && i < n.inputs.size(); ++i) {
      if (!narrow.contains(n.inputs[i])) continue;
      narrow.insert({id, static_cast<int32_t>(i)});
      n.types[i].dtype = to.type(map.at(n.inputs[i])).dtype;
    }
    const DType whole = n.types[0].dtype;
    if (n.kind == "absmax") n.types[0].dtype = to.type(map.at(n.inputs[0])).dtype;
    ops::Builder b(to);
    b.tag = n.tag;
    b.origin = n.origin;
    const bool narrowed = n.types[0].dtype != whole;
    ir::copy_node(std::move(n), id, to, map);
    if (narrowed) map[first] = b.convert(map[first], whole);
  }
  for (const ir::Output& o : from.outputs()) to.output(o.name, map.at(o.value), o.alias);
  return to;
}

}  // namespace

Graph hoist_casts(const Graph& from) {
  return ir::rewrite(
      from, [](Graph& to, int32_t, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (node.kind != "scan") return {};
        Node scan = node;
        scan.inputs.assign(inputs.begin(), inputs.end());
        Graph body = hoist_casts(*node.body);
        Casts casts = casts_of(body);
        const ir::Scan s = ir::scan_of(node);
        for (int64_t i = 0; i < s.carry; ++i) casts.erase(body.param_value(i));
        ops::Builder b(to);
        for (auto i = static_cast<size_t>(s.carry); i < scan.inputs.size(); ++i) {
          const auto cast = casts.find(body.param_value(static_cast<int64_t>(i)));
          if (cast == casts.end()) continue;
          const Node& n = body.node(cast->second.node);
          b.tag.path = n.tag.path;  // and nothing else: one cast serves forward and backward
          b.origin = n.origin;
          scan.inputs[i] = b.convert(scan.inputs[i], cast->second.dtype);
        }
        scan.body = std::make_shared<Graph>(with_cast_params(body, casts));
        return to.results(to.add(std::move(scan)));
      });
}

}  // namespace lignum::passes
