#include "ops/emit.h"

#include <fmt/ranges.h>

#include <algorithm>
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

Type stack_of(Type t, int64_t rows) {
  t.dims.insert(t.dims.begin(), rows);
  return t;
}

// Row `row` of stacks of `trip` tensors: start indices and their types for a tensor of that rank.
struct RowIndex {
  int64_t trip;
  std::string row, origin;

  std::string indices(size_t rank) const {
    std::string out = row;
    for (size_t i = 0; i < rank; ++i) out += ", " + origin;
    return out;
  }
  static std::string types(size_t rank) {
    std::string out = "tensor<i32>";
    for (size_t i = 0; i < rank; ++i) out += ", tensor<i32>";
    return out;
  }
};

std::string row_of(Emitter& out, const std::string& stack, const Type& t, const RowIndex& at) {
  const Type one = stack_of(t, 1), all = stack_of(t, at.trip);
  const std::string slice = out.fresh(), result = out.fresh();
  out.line(fmt::format("{} = stablehlo.dynamic_slice {}, {}, sizes = [{}] : ({}, {}) -> {}", slice, stack,
                       at.indices(t.dims.size()), fmt::join(one.dims, ", "), mlir_type(all),
                       RowIndex::types(t.dims.size()), mlir_type(one)));
  out.line(
      fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", result, slice, mlir_type(one), mlir_type(t)));
  return result;
}

std::string with_row(Emitter& out, const std::string& buffer, const std::string& value, const Type& t,
                     const RowIndex& at) {
  const Type one = stack_of(t, 1), all = stack_of(t, at.trip);
  const std::string slice = out.fresh(), result = out.fresh();
  out.line(fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", slice, value, mlir_type(t), mlir_type(one)));
  out.line(fmt::format("{} = stablehlo.dynamic_update_slice {}, {}, {} : ({}, {}, {}) -> {}", result, buffer,
                       slice, at.indices(t.dims.size()), mlir_type(all), mlir_type(one),
                       RowIndex::types(t.dims.size()), mlir_type(all)));
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

// One iteration; returns the loop's next values.
Names iteration(Emitter& out, const Node& n, const Scan& s, const Names& inside,
                const std::vector<size_t>& places) {
  const Graph& body = *n.body;
  const auto carries = static_cast<size_t>(s.carry), stacks = static_cast<size_t>(s.sliced);
  RowIndex at{s.trip, inside[0], {}};
  if (s.reversed) {
    const std::string last = integer(out, s.trip - 1);
    at.row = out.fresh();
    out.line(fmt::format("{} = stablehlo.subtract {}, {} : tensor<i32>", at.row, last, inside[0]));
  }
  at.origin = integer(out, 0);
  Names params(inside.begin() + 1, inside.begin() + 1 + static_cast<std::ptrdiff_t>(body.params().size()));
  for (size_t i = carries; i < carries + stacks; ++i)
    params[i] = row_of(out, params[i], body.type(body.param_value(static_cast<int64_t>(i))), at);
  const Names results = emit_graph(out, body, params);

  Names next = {out.fresh()};
  const std::string one = integer(out, 1);
  out.line(fmt::format("{} = stablehlo.add {}, {} : tensor<i32>", next[0], inside[0], one));
  next.insert(next.end(), results.begin(), results.begin() + static_cast<std::ptrdiff_t>(carries));
  next.insert(next.end(), inside.begin() + 1 + static_cast<std::ptrdiff_t>(carries), inside.end());
  for (size_t r = carries; r < results.size(); ++r) {
    const size_t place = places[r - carries];
    next[place] = with_row(out, inside[place], results[r], body.type(body.outputs()[r].value), at);
  }
  return next;
}

// The loop carries: the counter, the carries, then the stacks as they are (sliced), the invariants, and the
// buffers of stacked results.
Names emit_scan(Emitter& out, const Node& n, const Names& in) {
  const Scan s = ir::scan_of(n);
  const Graph& body = *n.body;
  const auto carries = static_cast<size_t>(s.carry), stacks = static_cast<size_t>(s.sliced);
  Names initial = {integer(out, 0)}, types = {"tensor<i32>"};
  initial.insert(initial.end(), in.begin(), in.end());
  for (size_t i = 0; i < in.size(); ++i) {
    const Type t = body.type(body.param_value(static_cast<int64_t>(i)));
    types.push_back(mlir_type(i >= carries && i < carries + stacks ? stack_of(t, s.trip) : t));
  }
  const std::vector<size_t> places = stack_places(n, s);
  for (size_t r = carries; r < n.types.size(); ++r) {
    if (places[r - carries] <= in.size()) continue;
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
  const Names next = iteration(region, n, s, inside, places);
  region.line(fmt::format("stablehlo.return {} : {}", fmt::join(next, ", "), all));
  out.line("}");
  Names results;
  const auto place = [&](size_t i) { return fmt::format("{}#{}", result, i); };
  for (size_t i = 0; i < carries; ++i) results.push_back(place(1 + i));
  for (const size_t stack : places) results.push_back(place(stack));
  return results;
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
  NameTable names(g);
  for (size_t i = 0; i < params.size(); ++i) names.of(static_cast<size_t>(g.params()[i])) = {params[i]};
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
      results = emit_scan(out, n, in);
    } else {
      const NodeSite site(g, n);
      results = emit_node(out, get_op(n.kind), site.site, in);
    }
    LIGNUM_CHECK(results.size() == n.types.size(), "{} printed {} results of {}", n.kind, results.size(),
                 n.types.size());
  }
  return names.outputs(g);
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
