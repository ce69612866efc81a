#include "ir/graph.h"

#include <set>

namespace lignum::ir {

int64_t Type::elements() const {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::forward:
      return "forward";
    case Role::dgrad:
      return "dgrad";
    case Role::wgrad:
      return "wgrad";
    case Role::remat:
      return "remat";
    case Role::update:
      return "update";
  }
  LIGNUM_CHECK(false, "role {}", static_cast<int>(role));
}

Scan scan_of(const Node& node) {
  LIGNUM_CHECK(node.kind == "scan", "kind {}", node.kind);
  const Attrs& a = node.attrs;
  return {a.get<int64_t>("trip"),          a.get<bool>("reversed"),     a.get<int64_t>("carry"),
          a.get<int64_t>("sliced"),        a.get<int64_t>("invariant"), a.get<int64_t>("stacked"),
          a.get_or<bool>("guarded", false)};
}

Attrs scan_attrs(const Scan& s) {
  Attrs attrs = {{"trip", s.trip},     {"reversed", s.reversed},   {"carry", s.carry},
                 {"sliced", s.sliced}, {"invariant", s.invariant}, {"stacked", s.stacked}};
  if (s.guarded) attrs.set("guarded", true);
  return attrs;
}

std::string print_identity(const Node& node);  // text.cc

int32_t Graph::add(Node node) {
  for (const Value v : node.inputs) {
    LIGNUM_CHECK(v.node >= 0 && v.node < static_cast<int32_t>(nodes_.size()) && v.index >= 0 &&
                     v.index < static_cast<int32_t>(nodes_[static_cast<size_t>(v.node)].types.size()),
                 "{} takes %{}#{}, which does not exist", node.kind, v.node, v.index);
  }
  const auto id = static_cast<int32_t>(nodes_.size());
  if (node.kind == "param") {
    params_.push_back(id);
  } else if (node.kind != "scan") {
    const auto [it, fresh] = known_.emplace(print_identity(node), id);
    if (!fresh) return it->second;
  }
  nodes_.push_back(std::move(node));
  return id;
}

std::vector<Value> Graph::results(int32_t id) const {
  std::vector<Value> values;
  for (int32_t r = 0; r < static_cast<int32_t>(node(id).types.size()); ++r) values.push_back({id, r});
  return values;
}

Value Graph::param(std::string param_name, Type type) {
  Node node;
  node.kind = "param";
  node.attrs.set("name", std::move(param_name));
  node.types.push_back(std::move(type));
  return {add(std::move(node)), 0};
}

const std::string& Graph::param_name(int64_t i) const {
  return node(params_[static_cast<size_t>(i)]).attrs.get<std::string>("name");
}

void Graph::set_names(Value v, std::vector<std::string> names) {
  Type& type = nodes_[static_cast<size_t>(v.node)].types[static_cast<size_t>(v.index)];
  LIGNUM_CHECK(names.empty() || names.size() == type.dims.size(), "{} names for {}", names.size(),
               to_string(type));
  type.names = std::move(names);
}

void for_each_node(const Graph& graph, const std::function<void(const Graph&, int32_t, int)>& fn) {
  const std::function<void(const Graph&, int)> walk = [&](const Graph& g, int depth) {
    for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id) {
      fn(g, id, depth);
      if (g.node(id).body) walk(*g.node(id).body, depth + 1);
    }
  };
  walk(graph, 0);
}

void number_origins(Graph& graph) {
  int32_t next = 0;
  const std::function<void(Graph&)> walk = [&](Graph& g) {
    for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id) {
      g.set_origin(id, next++);
      if (g.node(id).body) {
        auto body = std::make_shared<Graph>(*g.node(id).body);
        walk(*body);
        g.set_body(id, std::move(body));
      }
    }
  };
  walk(graph);
}

Status verify_structure(const Graph& graph) {
  std::map<Value, int> async_uses;
  for (int32_t id = 0; id < static_cast<int32_t>(graph.nodes().size()); ++id) {
    const Node& n = graph.node(id);
    for (const Value v : n.inputs) {
      if (v.node < 0 || v.node >= id || v.index < 0 ||
          v.index >= static_cast<int32_t>(graph.node(v).types.size())) {
        return internal_error("%{} = {}: input %{}#{} does not come before it", id, n.kind, v.node, v.index);
      }
      if (graph.type(v).async) {
        if (n.kind != "await")
          return internal_error("%{} = {}: takes the async %{}; await it first", id, n.kind, v.node);
        if (++async_uses[v] > 1) return internal_error("%{} is awaited twice", v.node);
      }
    }
    for (const Type& t : n.types) {
      for (const int64_t d : t.dims)
        if (d < 0) return internal_error("%{} = {}: negative dim in {}", id, n.kind, to_string(t));
      if (!t.names.empty() && t.names.size() != t.dims.size())
        return internal_error("%{} = {}: {} dims, {} names", id, n.kind, t.dims.size(), t.names.size());
      const bool moves = n.inputs.size() == 1 && graph.type(n.inputs[0]).host != t.host;
      if (t.async && graph.stage == Stage::global && !moves)
        return internal_error("%{} = {}: an async value in a global graph", id, n.kind);
    }
    if (n.kind == "await" && (n.inputs.size() != 1 || !graph.type(n.inputs[0]).async))
      return internal_error("%{} = await: takes one async value", id);
    if ((n.kind == "scan") != static_cast<bool>(n.body))
      return internal_error("%{} = {}: a scan and nothing else has a body", id, n.kind);
    if (n.kind != "scan") continue;

    const Scan s = scan_of(n);
    const Graph& b = *n.body;
    if (s.trip < 1 || s.carry < 0 || s.sliced < 0 || s.invariant < 0 || s.stacked < 0 ||
        static_cast<int64_t>(n.inputs.size()) != s.carry + s.sliced + s.invariant ||
        b.params().size() != n.inputs.size() ||
        static_cast<int64_t>(b.outputs().size()) != s.carry + s.stacked ||
        static_cast<int64_t>(n.types.size()) != s.carry + s.stacked) {
      return internal_error(
          "%{} = scan: trip {} carry {} sliced {} invariant {} stacked {} do not fit {} inputs, {} body "
          "params, "
          "{} body results, {} results",
          id, s.trip, s.carry, s.sliced, s.invariant, s.stacked, n.inputs.size(), b.params().size(),
          b.outputs().size(), n.types.size());
    }
    if (s.guarded && (s.invariant == 0 || !(graph.type(n.inputs.back()) == Type{DType::i32, {}, {}})))
      return internal_error("%{} = scan: guarded, and its last invariant is no i32 scalar", id);
    if (b.stage != graph.stage) return internal_error("%{} = scan: body of another stage", id);
    const auto stacked_type = [&](Type t) {
      t.dims.insert(t.dims.begin(), s.trip);
      return t;
    };
    for (int64_t i = 0; i < static_cast<int64_t>(n.inputs.size()); ++i) {
      const Type& inner = b.type(b.param_value(i));
      const bool sliced = i >= s.carry && i < s.carry + s.sliced;
      const Type expected = sliced ? stacked_type(inner) : inner;
      if (!(graph.type(n.inputs[static_cast<size_t>(i)]) == expected))
        return internal_error("%{} = scan: input {} is {}, the body's param wants {}", id, i,
                              to_string(graph.type(n.inputs[static_cast<size_t>(i)])), to_string(expected));
    }
    for (int64_t i = 0; i < static_cast<int64_t>(n.types.size()); ++i) {
      const Type& inner = b.type(b.outputs()[static_cast<size_t>(i)].value);
      if (i < s.carry && !(inner == b.type(b.param_value(i))))
        return internal_error("%{} = scan: carry {} goes in as {} and comes out as {}", id, i,
                              to_string(b.type(b.param_value(i))), to_string(inner));
      const Type expected = i < s.carry ? inner : stacked_type(inner);
      if (!(n.types[static_cast<size_t>(i)] == expected))
        return internal_error("%{} = scan: result {} is {}, the body gives {}", id, i,
                              to_string(n.types[static_cast<size_t>(i)]), to_string(expected));
    }
    LIGNUM_RETURN_IF_ERROR(verify_structure(b).with_context(fmt::format("%{} = scan", id)));
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Output& o = graph.outputs()[i];
    if (o.value.node < 0 || o.value.node >= static_cast<int32_t>(graph.nodes().size()) || o.value.index < 0 ||
        o.value.index >= static_cast<int32_t>(graph.node(o.value).types.size()))
      return internal_error("output {} ({}) is no value", i, o.name);
    if (graph.type(o.value).async) return internal_error("output {} ({}) is async", i, o.name);
    if (o.alias < 0) continue;
    if (o.alias >= static_cast<int32_t>(graph.params().size()))
      return internal_error("output {} ({}) replaces param {} of {}", i, o.name, o.alias,
                            graph.params().size());
    if (!(graph.type(o.value) == graph.type(graph.param_value(o.alias))))
      return internal_error("output {} ({}) is {}, the param it replaces {}", i, o.name,
                            to_string(graph.type(o.value)),
                            to_string(graph.type(graph.param_value(o.alias))));
  }
  return {};
}

}  // namespace lignum::ir
