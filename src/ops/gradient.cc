#include "ops/gradient.h"

#include "ir/copy.h"

namespace lignum::ops {
namespace {

// A gradient is a tensor that is there, also where its value is on its way (await passes it through).
bool fits(const Type& gradient, const Type& value) {
  const bool dtypes =
      gradient.dtype == value.dtype ||
      (is_float8(value.dtype) && (gradient.dtype == DType::f32 || gradient.dtype == DType::bf16));
  return !gradient.async && dtypes && gradient.dims == value.dims;
}

}  // namespace

void walk_back(const Walk& w, int32_t begin, int32_t end) {
  ir::Graph& g = w.build.graph();
  for (int32_t id = end - 1; id >= begin; --id) {
    // A copy: building the gradient appends nodes, which may move the arena.
    const ir::Node node = g.node(id);
    if (node.kind == "param") continue;
    std::vector<std::optional<Value>> cotangents;
    bool any = false;
    for (int32_t r = 0; r < static_cast<int32_t>(node.types.size()); ++r) {
      const auto it = w.seeds.find({id, r});
      cotangents.push_back(it == w.seeds.end() ? std::nullopt : std::optional<Value>(it->second));
      any |= cotangents.back().has_value();
    }
    if (!any) continue;
    if (w.wanted) {
      bool reaches = false;
      for (const Value v : node.inputs) reaches |= w.wanted(v);
      if (!reaches) continue;
    }
    if (w.on_node) w.on_node(node);
    Gradients grads;
    if (!w.custom || !w.custom(id, cotangents, grads)) {
      const NodeSite site(g, node);
      const Values outputs = g.results(id);
      grads = gradient(get_op(node.kind), GradCall{w.build, site.site, node.inputs, outputs, cotangents});
    }
    LIGNUM_CHECK(grads.size() == node.inputs.size(), "{}: {} gradients for {} inputs", node.kind,
                 grads.size(), node.inputs.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      const Value in = node.inputs[i];
      if (!grads[i] || (w.wanted && !w.wanted(in))) continue;
      LIGNUM_CHECK(fits(g.type(*grads[i]), g.type(in)), "{}: gradient of input {} is {}, the input {}",
                   node.kind, i, ir::to_string(g.type(*grads[i])), ir::to_string(g.type(in)));
      // The names of the value it is the gradient of: partition shards a weight's gradient like the weight.
      if (grads[i]->node >= end && !g.type(in).names.empty()) g.set_names(*grads[i], g.type(in).names);
      const auto [it, fresh] = w.seeds.emplace(in, *grads[i]);
      if (fresh) continue;
      it->second = w.build.elementwise("add", {it->second, *grads[i]});
      if (!g.type(in).names.empty()) g.set_names(it->second, g.type(in).names);
    }
  }
}

Gradients gradient(const Op& op, const GradCall& call) {
  return op.grad != nullptr ? op.grad(call) : gradient_by_decomposition(op, call);
}

Gradients gradient_by_decomposition(const Op& op, const GradCall& call) {
  LIGNUM_CHECK(op.decompose != nullptr, "{} has neither a gradient nor a decomposition", op.name);
  ir::Graph& g = call.build.graph();
  // The decomposition's nodes may be in the graph already (hash-consed): they are walked on a copy of its
  // own, whose params stand for the inputs, and then replayed into the graph.
  ir::Graph piece = decomposition(op, call.site);
  const auto forward_end = static_cast<int32_t>(piece.nodes().size());
  std::map<Value, Value> seeds;
  Values cotangent_params;
  std::vector<Value> cotangent_values;
  Builder inner(piece);
  inner.tag = call.build.tag;
  for (size_t r = 0; r < call.cotangents.size(); ++r) {
    if (!call.cotangents[r]) continue;
    const Value p = piece.param(fmt::format("d_out{}", r), call.site.out[r]);
    cotangent_values.push_back(*call.cotangents[r]);
    const Value out = piece.outputs()[r].value;
    const auto [it, fresh] = seeds.emplace(out, p);
    if (!fresh) it->second = inner.elementwise("add", {it->second, p});
  }
  walk_back({inner, seeds, {}, {}, {}}, 0, forward_end);

  std::map<Value, Value> map;
  size_t p = 0;
  for (int32_t id = 0; id < static_cast<int32_t>(piece.nodes().size()); ++id) {
    ir::Node n = piece.node(id);
    if (n.kind == "param") {
      map[{id, 0}] = p < call.inputs.size() ? call.inputs[p] : cotangent_values[p - call.inputs.size()];
      ++p;
      continue;
    }
    n.tag = call.build.tag;
    n.origin = call.build.origin;
    ir::copy_node(std::move(n), id, g, map);
  }
  Gradients out;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto it = seeds.find(piece.param_value(static_cast<int64_t>(i)));
    out.push_back(it == seeds.end() || !dtype_is_float(call.site.in[i].dtype)
                      ? std::nullopt
                      : std::optional<Value>(map.at(it->second)));
  }
  return out;
}

}  // namespace lignum::ops
