#include "passes/autodiff.h"

#include <algorithm>
#include <set>

#include "ir/copy.h"
#include "ops/gradient.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Role;
using ir::Scan;
using ir::Value;
using ops::Builder;

// The forward graph with every scan stacking its carries' inputs and all results of its body: what a backward
// body may read. New results come after the scan's own, whose numbers stay.
Graph stack_everything(const Graph& forward) {
  return ir::rewrite(
      forward, [](Graph& to, int32_t, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (node.kind != "scan") return {};
        Scan s = ir::scan_of(node);
        auto body = std::make_shared<Graph>(*node.body);
        Node scan = node;
        scan.inputs.assign(inputs.begin(), inputs.end());
        const auto stack = [&](Value v, std::string name) {
          ir::Type t = body->type(v);
          t.dims.insert(t.dims.begin(), s.trip);
          if (!t.names.empty()) t.names.insert(t.names.begin(), "layers");
          body->output(std::move(name), v);
          scan.types.push_back(std::move(t));
          ++s.stacked;
        };
        for (int64_t i = 0; i < s.carry; ++i) stack(body->param_value(i), "decoder_layer_input");
        for (int32_t id = 0; id < static_cast<int32_t>(body->nodes().size()); ++id) {
          const Node& n = body->node(id);
          if (n.kind == "param") continue;
          LIGNUM_CHECK(n.kind != "scan", "a scan inside a scan is not differentiated");
          for (int32_t r = 0; r < static_cast<int32_t>(n.types.size()); ++r) stack({id, r}, n.tag.name);
        }
        scan.attrs = ir::scan_attrs(s);
        scan.body = std::move(body);
        // Its own results come first; what is stacked besides has no reader yet.
        std::vector<Value> out = to.results(to.add(std::move(scan)));
        out.resize(node.types.size());
        return out;
      });
}

void mark_ancestors(const Graph& g, const std::vector<Value>& of, std::vector<bool>& mark) {
  for (const Value v : of) mark[static_cast<size_t>(v.node)] = true;
  for (size_t id = g.nodes().size(); id-- > 0;) {
    if (!mark[id]) continue;
    for (const Value v : g.nodes()[id].inputs) mark[static_cast<size_t>(v.node)] = true;
  }
}

// Differentiates a scan: adds the reversed scan to build's graph.
class ScanGradient {
 public:
  ScanGradient(Builder& build, int32_t scan)
      : build_(build), node_(build.graph().node(scan)), scan_(scan), s_(ir::scan_of(node_)) {}

  ops::Gradients run(std::span<const std::optional<Value>> cotangents) {
    const Graph& forward = *node_.body;
    const auto forward_end = static_cast<int32_t>(forward.nodes().size());
    // 1. The body and its gradient in one graph; cotangents of the carries are params that follow the body's
    // own.
    Graph joint = forward;
    Builder inner(joint);
    std::map<Value, Value> seeds;
    std::vector<Value> d_carry;  // params of joint
    for (int64_t i = 0; i < s_.carry; ++i) {
      const Value out = forward.outputs()[static_cast<size_t>(i)].value;
      const bool is_float = dtype_is_float(forward.type(out).dtype);
      LIGNUM_CHECK(is_float, "carry {} is not of a float type", i);
      const Value d =
          joint.param(fmt::format("d_{}", forward.outputs()[static_cast<size_t>(i)].name), forward.type(out));
      d_carry.push_back(d);
      seed(inner, seeds, out, d);
    }
    // Only the forward graph's own results can have cotangents: what stack_everything added has no reader
    // yet.
    for (size_t r = static_cast<size_t>(s_.carry); r < cotangents.size(); ++r)
      LIGNUM_CHECK(!cotangents[r], "the loss reads stacked result {} of {}", r, node_.tag.path);

    ops::walk_back({inner,
                    seeds,
                    {},
                    [&](const Node& n) {
                      inner.tag = n.tag;
                      inner.tag.role = Role::dgrad;
                      inner.tag.name.clear();
                    },
                    {}},
                   0, forward_end);
    // d of carry i's input; zeros when the carry does not reach the loss through this body.
    std::vector<Value> d_carry_in;
    for (int64_t i = 0; i < s_.carry; ++i) {
      const Value p = joint.param_value(i);
      const auto it = seeds.find(p);
      d_carry_in.push_back(it != seeds.end() ? it->second
                                             : inner.constant(joint.type(p).dtype, joint.type(p).dims, 0.0));
    }
    std::vector<std::pair<int64_t, Value>> d_sliced;  // (sliced input, gradient in joint)
    for (int64_t i = s_.carry; i < s_.carry + s_.sliced; ++i) {
      const auto it = seeds.find(joint.param_value(i));
      if (it != seeds.end()) d_sliced.emplace_back(i, it->second);
    }
    for (int64_t i = s_.carry + s_.sliced; i < static_cast<int64_t>(node_.inputs.size()); ++i)
      LIGNUM_CHECK(!seeds.contains(joint.param_value(i)), "a gradient for the loop-invariant input {} of {}",
                   i, node_.tag.path);

    // 2. The backward body: joint's gradient nodes; each forward value that they read becomes a sliced input.
    std::vector<bool> towards_input(joint.nodes().size(), false);
    mark_ancestors(joint, d_carry_in, towards_input);
    auto body = std::make_shared<Graph>();
    body->name = forward.name + "_backward";
    std::map<Value, Value> map;
    for (int64_t i = 0; i < s_.carry; ++i)
      map[d_carry[static_cast<size_t>(i)]] =
          body->param(joint.param_name(forward_params() + i), joint.type(d_carry[static_cast<size_t>(i)]));
    std::vector<Value> sliced_outer, invariant_outer;
    std::vector<std::pair<Value, ir::Type>> invariants;
    for (int32_t id = forward_end; id < static_cast<int32_t>(joint.nodes().size()); ++id) {
      for (const Value v : joint.node(id).inputs)
        need(joint, v, forward_end, map, *body, sliced_outer, invariants);
    }
    for (const Value v : d_carry_in) need(joint, v, forward_end, map, *body, sliced_outer, invariants);
    for (const auto& [i, v] : d_sliced) need(joint, v, forward_end, map, *body, sliced_outer, invariants);
    for (const auto& [v, type] : invariants) {
      map[v] = body->param(joint.node(v).attrs.get<std::string>("name"), type);
      invariant_outer.push_back(node_.inputs[static_cast<size_t>(param_index(joint, v))]);
    }
    for (int32_t id = forward_end; id < static_cast<int32_t>(joint.nodes().size()); ++id) {
      Node n = joint.node(id);
      if (n.kind == "param") continue;
      if (!towards_input[static_cast<size_t>(id)]) n.tag.role = Role::wgrad;
      ir::copy_node(std::move(n), id, *body, map);
    }
    for (int64_t i = 0; i < s_.carry; ++i)
      body->output(joint.param_name(forward_params() + i), map.at(d_carry_in[static_cast<size_t>(i)]));
    Node scan;
    scan.kind = "scan";
    for (int64_t i = 0; i < s_.carry; ++i) {
      const auto& c = cotangents[static_cast<size_t>(i)];
      scan.inputs.push_back(c ? *c
                              : build_.constant(node_.types[static_cast<size_t>(i)].dtype,
                                                node_.types[static_cast<size_t>(i)].dims, 0.0));
      scan.types.push_back(node_.types[static_cast<size_t>(i)]);
    }
    for (const auto& [i, v] : d_sliced) {
      body->output("d_" + joint.param_name(i), map.at(v));
      ir::Type t = body->type(map.at(v));
      t.dims.insert(t.dims.begin(), s_.trip);
      t.names = build_.type(node_.inputs[static_cast<size_t>(i)]).names;
      scan.types.push_back(std::move(t));
    }
    scan.inputs.insert(scan.inputs.end(), sliced_outer.begin(), sliced_outer.end());
    scan.inputs.insert(scan.inputs.end(), invariant_outer.begin(), invariant_outer.end());
    scan.attrs =
        ir::scan_attrs({s_.trip, !s_.reversed, s_.carry, static_cast<int64_t>(sliced_outer.size()),
                        static_cast<int64_t>(invariant_outer.size()), static_cast<int64_t>(d_sliced.size())});
    scan.tag = node_.tag;
    scan.tag.role = Role::dgrad;
    scan.body = std::move(body);
    const int32_t made = build_.graph().add(std::move(scan));

    ops::Gradients out(node_.inputs.size());
    for (int64_t i = 0; i < s_.carry; ++i) out[static_cast<size_t>(i)] = Value{made, static_cast<int32_t>(i)};
    for (size_t k = 0; k < d_sliced.size(); ++k)
      out[static_cast<size_t>(d_sliced[k].first)] =
          Value{made, static_cast<int32_t>(s_.carry + static_cast<int64_t>(k))};
    return out;
  }

 private:
  static void seed(Builder& b, std::map<Value, Value>& seeds, Value of, Value d) {
    const auto [it, fresh] = seeds.emplace(of, d);
    if (!fresh) it->second = b.elementwise("add", {it->second, d});
  }
  int64_t forward_params() const { return static_cast<int64_t>(node_.inputs.size()); }
  static int64_t param_index(const Graph& g, Value v) {
    const auto it = std::find(g.params().begin(), g.params().end(), v.node);
    return it - g.params().begin();
  }

  // Makes the forward value v of joint readable in the backward body.
  void need(const Graph& joint, Value v, int32_t forward_end, std::map<Value, Value>& map, Graph& body,
            std::vector<Value>& sliced_outer, std::vector<std::pair<Value, ir::Type>>& invariants) {
    if (v.node >= forward_end || map.contains(v)) return;
    if (joint.node(v).kind == "param") {
      const int64_t i = param_index(joint, v);
      if (i >= s_.carry + s_.sliced) {
        if (std::none_of(invariants.begin(), invariants.end(), [&](const auto& p) { return p.first == v; }))
          invariants.emplace_back(v, joint.type(v));
        return;
      }
      sliced_outer.push_back(i >= s_.carry ? node_.inputs[static_cast<size_t>(i)] : stacked_of(joint, v));
      map[v] = body.param(joint.param_name(i), joint.type(v));
      return;
    }
    const Node& n = joint.node(v);
    sliced_outer.push_back(stacked_of(joint, v));
    map[v] = body.param(fmt::format("{}{}", n.tag.name.empty() ? n.kind : n.tag.name,
                                    v.index == 0 ? "" : fmt::format("#{}", v.index)),
                        joint.type(v));
  }

  // The forward scan's stacked copy of a body value: the last output that gives it (the scan's own come
  // first).
  Value stacked_of(const Graph& joint, Value v) const {
    for (auto r = static_cast<int32_t>(joint.outputs().size()) - 1; r >= static_cast<int32_t>(s_.carry); --r)
      if (joint.outputs()[static_cast<size_t>(r)].value == v) return {scan_, r};
    LIGNUM_CHECK(false, "%{}#{} of {} is not stacked", v.node, v.index, node_.tag.path);
  }

  Builder& build_;
  const Node node_;
  int32_t scan_;
  Scan s_;
};

// At the top, a gradient that only parameters wait for is a wgrad: nodes that no other gradient reads.
Graph mark_weight_gradients(const Graph& g, int32_t forward_end) {
  std::vector<bool> activation(g.nodes().size(), false);
  std::vector<Value> read;
  for (int32_t id = forward_end; id < static_cast<int32_t>(g.nodes().size()); ++id)
    if (g.node(id).kind == "scan")
      read.insert(read.end(), g.node(id).inputs.begin(), g.node(id).inputs.end());
  mark_ancestors(g, read, activation);
  return ir::rewrite(
      g, [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (id < forward_end || node.kind == "scan" || activation[static_cast<size_t>(id)]) return {};
        Node n = node;
        n.inputs.assign(inputs.begin(), inputs.end());
        n.tag.role = Role::wgrad;
        return to.results(to.add(std::move(n)));
      });
}

}  // namespace

Graph autodiff(const Graph& forward, const AutodiffOptions& options) {
  Graph g = stack_everything(forward);
  const auto forward_end = static_cast<int32_t>(g.nodes().size());
  Builder b(g);
  std::map<Value, Value> seeds;
  for (const ir::Output& o : g.outputs()) {
    if (std::find(options.losses.begin(), options.losses.end(), o.name) == options.losses.end()) continue;
    LIGNUM_CHECK(g.type(o.value).dims.empty(), "the loss is {}", ir::to_string(g.type(o.value)));
    b.tag.path = "loss";
    b.tag.role = Role::dgrad;
    seeds[o.value] = b.constant(g.type(o.value).dtype, {}, 1.0);
  }
  LIGNUM_CHECK(std::any_of(g.outputs().begin(), g.outputs().end(),
                           [&](const ir::Output& o) { return o.name == options.losses[0]; }),
               "no output {}", options.losses[0]);
  const auto on_node = [&](const Node& n) {
    b.tag = n.tag;
    b.tag.role = Role::dgrad;
    b.tag.name.clear();
  };
  const auto custom = [&](int32_t id, std::span<const std::optional<Value>> cotangents, ops::Gradients& out) {
    if (b.graph().node(id).kind != "scan") return false;
    out = ScanGradient(b, id).run(cotangents);
    return true;
  };
  ops::walk_back({b, seeds, custom, on_node, {}}, 0, forward_end);
  for (int64_t i = 0; i < static_cast<int64_t>(g.params().size()); ++i) {
    const Value p = g.param_value(i);
    const auto it = seeds.find(p);
    if (dtype_is_float(g.type(p).dtype) && it != seeds.end()) g.output("grad:" + g.param_name(i), it->second);
  }
  return mark_weight_gradients(g, forward_end);
}

}  // namespace lignum::passes
