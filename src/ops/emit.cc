#include "ops/emit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

namespace lignum::ops {
namespace {

using ir::Graph;
using ir::Node;
using ir::Scan;
using Names = std::vector<std::string>;

// The SSA names of a graph's values.
class NameTable {
 public:
  explicit NameTable(const Graph& g) : names_(g.nodes().size()) {}
  Names& of(size_t node) { return names_[node]; }
  const std::string& of(Value v) const {
    return names_[static_cast<size_t>(v.node)][static_cast<size_t>(v.index)];
  }
  Names inputs(const Node& n) const {
    Names in;
    for (const Value v : n.inputs) in.push_back(of(v));
    return in;
  }
  Names outputs(const Graph& g) const {
    Names out;
    for (const ir::Output& o : g.outputs()) out.push_back(of(o.value));
    return out;
  }

 private:
  std::vector<Names> names_;
};

// A region's lines: two spaces deeper.
class Inside final : public Emitter {
 public:
  explicit Inside(Emitter& outside) : outside_(outside) {}
  std::string fresh() override { return outside_.fresh(); }
  void line(std::string text) override { outside_.line("  " + std::move(text)); }
  std::vector<std::vector<int64_t>> groups(std::string_view axis) override { return outside_.groups(axis); }
  bool host_memory() override { return outside_.host_memory(); }

 private:
  Emitter& outside_;
};

std::string integer(Emitter& out, int64_t value) {
  std::string name = out.fresh();
  out.line(fmt::format("{} = stablehlo.constant dense<{}> : tensor<i32>", name, value));
  return name;
}

std::string_view zero(DType d) {
  if (d == DType::pred) return "false";
  return dtype_is_float(d) ? "0.0" : "0";
}

// A row of a row ... of a stack: a leading dim, and the SSA name of an index, for each loop that goes over
// it, the outermost first. With no loop it is the tensor itself.
struct Row {
  std::vector<int64_t> trips;
  std::vector<std::string> at;
  std::string zero;  // the index in all other dims

  Row in(int64_t trip, const std::string& index, const std::string& origin) const {
    Row row = *this;
    row.trips.push_back(trip);
    row.at.push_back(index);
    row.zero = origin;
    return row;
  }
  Type stack(Type t) const { return led(std::move(t), trips); }
  Type alone(Type t) const { return led(std::move(t), std::vector<int64_t>(trips.size(), 1)); }
  std::string indices(size_t rank) const {
    std::vector<std::string> all = at;
    all.resize(at.size() + rank, zero);
    return fmt::format("{}", fmt::join(all, ", "));
  }
  std::string types(size_t rank) const {
    const std::vector<std::string_view> all(at.size() + rank, "tensor<i32>");
    return fmt::format("{}", fmt::join(all, ", "));
  }

 private:
  static Type led(Type t, const std::vector<int64_t>& by) {
    t.dims.insert(t.dims.begin(), by.begin(), by.end());
    return t;
  }
};

// What a graph's param is bound to, or where a result is to go: a tensor by its name, or a row of a stack by
// that stack's name. A row that only a loop inside goes on to cut, or fills, is never taken out or put in by
// itself: XLA would keep it beside the stack.
struct Bound {
  std::string name;
  Row row;
};

std::string take(Emitter& out, const Bound& b, const Type& t) {
  const Type one = b.row.alone(t);
  const std::string slice = out.fresh(), result = out.fresh();
  out.line(fmt::format("{} = stablehlo.dynamic_slice {}, {}, sizes = [{}] : ({}, {}) -> {}", slice, b.name,
                       b.row.indices(t.dims.size()), fmt::join(one.dims, ", "), mlir_type(b.row.stack(t)),
                       b.row.types(t.dims.size()), mlir_type(one)));
  out.line(
      fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", result, slice, mlir_type(one), mlir_type(t)));
  return result;
}

// The stack with `value` in that row.
std::string put(Emitter& out, const Bound& b, const std::string& value, const Type& t) {
  const Type one = b.row.alone(t), all = b.row.stack(t);
  const std::string slice = out.fresh(), result = out.fresh();
  out.line(fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", slice, value, mlir_type(t), mlir_type(one)));
  out.line(fmt::format("{} = stablehlo.dynamic_update_slice {}, {}, {} : ({}, {}, {}) -> {}", result, b.name,
                       slice, b.row.indices(t.dims.size()), mlir_type(all), mlir_type(one),
                       b.row.types(t.dims.size()), mlir_type(all)));
  return result;
}

// The sliced param whose row a body updates in place to result v, perhaps fetched from host memory and
// offloaded again; nothing where v is no such row.
std::optional<size_t> updated_param(const Graph& body, const Scan& s, Value v) {
  const auto behind = [&](Value of, std::string_view kind) {  // the copy between memories that `of` awaits
    if (body.node(of).kind != "await") return of;
    const Node& started = body.node(body.node(of).inputs[0]);
    return started.kind == kind ? started.inputs[0] : of;
  };
  const Value made = behind(v, "offload");
  const Node& update = body.node(made);
  if (update.kind == "param" || update.kind == "scan" || update.kind == "await") return std::nullopt;
  const NodeSite site(body, update);
  for (const auto& [result, input] : get_op(update.kind).buffers(site.site).in_place) {
    if (result != made.index) continue;
    const Value row = behind(update.inputs[static_cast<size_t>(input)], "fetch");
    const auto p = std::find(body.params().begin(), body.params().end(), row.node) - body.params().begin();
    if (p >= s.carry && p < s.carry + s.sliced) return static_cast<size_t>(p);
  }
  return std::nullopt;
}

// Where the loop carries each stacked result: an update in the place of the stack that it updates, where
// another would be held as well, the others behind all inputs.
std::vector<size_t> stack_places(const Node& n, const Scan& s) {
  std::vector<size_t> places;
  size_t next = 1 + n.inputs.size();
  for (auto r = static_cast<size_t>(s.carry); r < n.types.size(); ++r) {
    std::optional<size_t> param;
    if (n.tag.role == ir::Role::update) param = updated_param(*n.body, s, n.body->outputs()[r].value);
    places.push_back(param ? 1 + *param : next++);
  }
  return places;
}

// Whether all that reads param p of a body are loops that cut it into rows.
bool only_cut(const Graph& body, size_t p) {
  const Value v = body.param_value(static_cast<int64_t>(p));
  bool cut = false;
  for (const Node& n : body.nodes()) {
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (n.inputs[i] != v) continue;
      if (n.kind != "scan" || n.tag.role == ir::Role::update) return false;  // that may update it in place
      const Scan s = ir::scan_of(n);
      const auto first = static_cast<size_t>(s.carry), last = first + static_cast<size_t>(s.sliced);
      if (i < first || i >= last) return false;
      cut = true;
    }
  }
  return cut && std::ranges::none_of(body.outputs(), [&](const ir::Output& o) { return o.value == v; });
}

// Whether output r of a body is a stack that a loop in it makes, and that is nothing else.
bool only_filled(const Graph& body, size_t r) {
  const Value v = body.outputs()[r].value;
  const Node& n = body.node(v);
  if (n.kind != "scan" || n.tag.role == ir::Role::update || v.index < ir::scan_of(n).carry) return false;
  for (const Node& user : body.nodes())
    if (std::ranges::find(user.inputs, v) != user.inputs.end()) return false;
  return std::ranges::count(body.outputs(), v, &ir::Output::value) == 1;
}

using Targets = std::map<Value, Bound>;  // where results of a graph's loops are to go
Names emit_bound(Emitter& out, const Graph& g, std::span<const Bound> params, const Targets& targets);

// One iteration; in: what the loop's inputs are bound to; inside: the SSA names of what it carries; fills:
// what its stacked results are made in. Returns the next values.
Names iteration(Emitter& out, const Node& n, const Scan& s, std::span<const Bound> in, const Names& inside,
                const std::vector<size_t>& places, std::span<const Row> fills) {
  const Graph& body = *n.body;
  const auto carries = static_cast<size_t>(s.carry), stacks = static_cast<size_t>(s.sliced);
  std::string index = inside[0];
  if (s.reversed) {
    const std::string last = integer(out, s.trip - 1);
    index = out.fresh();
    out.line(fmt::format("{} = stablehlo.subtract {}, {} : tensor<i32>", index, last, inside[0]));
  }
  const std::string origin = integer(out, 0);
  std::vector<Bound> params;
  for (size_t i = 0; i < in.size(); ++i) {
    params.push_back({inside[1 + i], {}});
    if (i < carries || i >= carries + stacks) continue;
    params[i].row = in[i].row.in(s.trip, index, origin);
    if (!only_cut(body, i))
      params[i] = {take(out, params[i], body.type(body.param_value(static_cast<int64_t>(i)))), {}};
  }
  Targets made;
  std::vector<Bound> rows;
  for (size_t r = carries; r < n.types.size(); ++r) {
    rows.push_back({inside[places[r - carries]], fills[r - carries].in(s.trip, index, origin)});
    if (only_filled(body, r)) made.emplace(body.outputs()[r].value, rows.back());
  }
  const Names results = emit_bound(out, body, params, made);

  Names next = {out.fresh()};
  const std::string one = integer(out, 1);
  out.line(fmt::format("{} = stablehlo.add {}, {} : tensor<i32>", next[0], inside[0], one));
  next.insert(next.end(), results.begin(), results.begin() + s.carry);
  next.insert(next.end(), inside.begin() + 1 + s.carry, inside.end());
  for (size_t r = carries; r < results.size(); ++r) {
    const Value v = body.outputs()[r].value;
    next[places[r - carries]] =
        made.contains(v) ? results[r] : put(out, rows[r - carries], results[r], body.type(v));
  }
  return next;
}

// The loop carries: the counter, the carries, then the stacks as they are (sliced), the invariants, and the
// buffers of stacked results, of which `targets` has those that loops outside keep. id: the node's.
Names emit_scan(Emitter& out, const Node& n, int32_t id, std::span<const Bound> in, const Targets& targets) {
  const Scan s = ir::scan_of(n);
  const Graph& body = *n.body;
  const auto carries = static_cast<size_t>(s.carry), stacks = static_cast<size_t>(s.sliced);
  Names initial = {integer(out, 0)}, types = {"tensor<i32>"};
  for (size_t i = 0; i < in.size(); ++i) {
    const Type t = body.type(body.param_value(static_cast<int64_t>(i)));
    const bool sliced = i >= carries && i < carries + stacks;
    initial.push_back(in[i].name);
    types.push_back(mlir_type(sliced ? in[i].row.in(s.trip, "", "").stack(t) : t));
  }
  const std::vector<size_t> places = stack_places(n, s);
  std::vector<Row> fills(places.size());
  for (size_t r = carries; r < n.types.size(); ++r) {
    if (places[r - carries] <= in.size()) continue;
    if (const auto kept = targets.find({id, static_cast<int32_t>(r)}); kept != targets.end()) {
      initial.push_back(kept->second.name);
      fills[r - carries] = kept->second.row;
      types.push_back(mlir_type(kept->second.row.stack(n.types[r])));
      continue;
    }
    types.push_back(mlir_type(n.types[r]));
    initial.push_back(out.fresh());
    out.line(fmt::format("{} = stablehlo.constant dense<{}> : {}", initial.back(), zero(n.types[r].dtype),
                         types.back()));
  }
  Names inside, bindings;
  for (const std::string& value : initial) {
    inside.push_back(out.fresh());
    bindings.push_back(fmt::format("{} = {}", inside.back(), value));
  }
  const std::string result = out.fresh();
  const std::string all = fmt::format("{}", fmt::join(types, ", "));
  out.line(fmt::format("{}{} = stablehlo.while({}) : {}", result,
                       types.size() == 1 ? "" : fmt::format(":{}", types.size()), fmt::join(bindings, ", "),
                       all));
  Inside region(out);
  out.line("cond {");
  const std::string trip = integer(region, s.trip), more = out.fresh();
  region.line(fmt::format("{} = stablehlo.compare LT, {}, {} : (tensor<i32>, tensor<i32>) -> tensor<i1>",
                          more, inside[0], trip));
  region.line(fmt::format("stablehlo.return {} : tensor<i1>", more));
  out.line("} do {");
  const Names next = iteration(region, n, s, in, inside, places, fills);
  region.line(fmt::format("stablehlo.return {} : {}", fmt::join(next, ", "), all));
  out.line("}");
  Names results;
  const auto place = [&](size_t i) { return fmt::format("{}#{}", result, i); };
  for (size_t i = 0; i < carries; ++i) results.push_back(place(1 + i));
  for (const size_t stack : places) results.push_back(place(stack));
  return results;
}

Names emit_bound(Emitter& out, const Graph& g, std::span<const Bound> params, const Targets& targets) {
  NameTable names(g);
  std::map<Value, Row> rows;  // of the params that are rows of a stack still
  for (size_t i = 0; i < params.size(); ++i) {
    const Value v = g.param_value(static_cast<int64_t>(i));
    names.of(static_cast<size_t>(v.node)) = {params[i].name};
    if (!params[i].row.at.empty()) rows.emplace(v, params[i].row);
  }
  for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id) {
    const Node& n = g.node(id);
    if (n.kind == "param") continue;
    const Names in = names.inputs(n);
    Names& results = names.of(static_cast<size_t>(id));
    if (n.kind == "await") {  // no line of its own: the collective's value is its start's
      results = {in[0]};
      continue;
    }
    out.line(fmt::format("// %{} {} {} {}", id, n.kind, n.tag.path, ir::role_name(n.tag.role)));
    if (n.kind == "scan") {
      std::vector<Bound> bound;
      for (size_t i = 0; i < in.size(); ++i) {
        const auto row = rows.find(n.inputs[i]);
        bound.push_back({in[i], row == rows.end() ? Row{} : row->second});
      }
      results = emit_scan(out, n, id, bound, targets);
    } else {
      const NodeSite site(g, n);
      results = emit_node(out, get_op(n.kind), site.site, in);
    }
    LIGNUM_CHECK(results.size() == n.types.size(), "{} printed {} results of {}", n.kind, results.size(),
                 n.types.size());
  }
  return names.outputs(g);
}

}  // namespace

std::vector<std::string> emit_node(Emitter& out, const Op& op, const Site& site,
                                   std::span<const std::string> in) {
  if (op.emit != nullptr) return op.emit(EmitCall{out, site, in});
  const Graph graph = decomposition(op, site);
  NameTable names(graph);
  size_t param = 0;
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const Node& node = graph.nodes()[id];
    if (node.kind == "param") {
      names.of(id) = {in[param++]};
      continue;
    }
    const NodeSite inner(graph, node);
    names.of(id) = emit_node(out, get_op(node.kind), inner.site, names.inputs(node));
    LIGNUM_CHECK(names.of(id).size() == node.types.size(), "{} printed {} results of {}", node.kind,
                 names.of(id).size(), node.types.size());
  }
  return names.outputs(graph);
}

std::vector<std::string> emit_graph(Emitter& out, const Graph& g, std::span<const std::string> params) {
  std::vector<Bound> bound;
  for (const std::string& name : params) bound.push_back({name, {}});
  return emit_bound(out, g, bound, {});
}

std::string emit_slice(Emitter& out, const std::string& v, const Type& t, size_t dim, int64_t first,
                       int64_t last) {
  if (first == 0 && last == t.dims[dim]) return v;
  std::vector<std::string> spans;
  for (size_t d = 0; d < t.dims.size(); ++d)
    spans.push_back(d == dim ? fmt::format("{}:{}", first, last) : fmt::format("0:{}", t.dims[d]));
  Type part = t;
  part.dims[dim] = last - first;
  const std::string result = out.fresh();
  out.line(fmt::format("{} = stablehlo.slice {} [{}] : ({}) -> {}", result, v, fmt::join(spans, ", "),
                       mlir_type(t), mlir_type(part)));
  return result;
}

}  // namespace lignum::ops
