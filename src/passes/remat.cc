#include "passes/remat.h"

#include <algorithm>
#include <optional>

#include "ir/copy.h"
#include "ops/op.h"
#include "ops/quantize/quantised.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Role;
using ir::Scan;
using ir::Value;

int64_t param_index(const Graph& g, Value v) {
  return std::find(g.params().begin(), g.params().end(), v.node) - g.params().begin();
}

// The body values that depend on sliced and invariant inputs alone: the layer's weights in their compute
// form.
std::vector<bool> weights_only(const Graph& body, const Scan& s) {
  std::vector<bool> out(body.nodes().size(), true);
  for (size_t id = 0; id < out.size(); ++id) {
    const Node& n = body.nodes()[id];
    if (n.kind == "param") {
      out[id] = param_index(body, {static_cast<int32_t>(id), 0}) >= s.carry;
    } else {
      for (const Value v : n.inputs) out[id] = out[id] && out[static_cast<size_t>(v.node)];
    }
  }
  return out;
}

// A node that moves no bytes: its results are its inputs'.
bool is_view(const Graph& g, const Node& n) {
  if (n.kind == "param" || n.kind == "scan" || n.kind == "await") return false;
  const ops::NodeSite site(g, n);
  return ops::get_op(n.kind).buffers(site.site).view.size() == n.types.size();
}

// The nodes that some output needs.
std::vector<bool> needed(const Graph& g) {
  std::vector<bool> out(g.nodes().size(), false);
  for (const ir::Output& o : g.outputs()) out[static_cast<size_t>(o.value.node)] = true;
  for (size_t id = out.size(); id-- > 0;)
    if (out[id])
      for (const Value v : g.nodes()[id].inputs) out[static_cast<size_t>(v.node)] = true;
  return out;
}

class Rebuild {
 public:
  Rebuild(const Graph& step, const RematPolicy& policy, const Node& scan)
      : step_(step), policy_(policy), scan_(scan), s_(ir::scan_of(scan)) {}

  // The scan with recompute, its inputs still values of `step`; nothing when it reads no other scan's stacks.
  std::optional<Node> run() {
    if (!find_forward()) return std::nullopt;
    weight_like_ = weights_only(*forward_->body, forward_scan_);
    const Graph& old = *scan_.body;
    const std::vector<bool> live = needed(old);
    const auto is_live = [&](int64_t param) {
      return live[static_cast<size_t>(old.param_value(param).node)];
    };

    // 1. Which sliced inputs go, and what their recompute reads. What no gradient reads is not computed
    // again: the barrier would hold all that leads to it.
    std::vector<Value> again;  // forward body values to compute again
    for (int64_t i = s_.carry; i < s_.carry + s_.sliced; ++i) {
      const auto v = forward_value(scan_.inputs[static_cast<size_t>(i)]);
      if (v && recomputed(*v)) {
        dropped_.insert(i);
        if (is_live(i)) again.push_back(*v);
      }
    }
    for (const Value v : again) collect(v);

    // 2. Params of the new body: carry, sliced (kept, then what the recompute reads besides), invariant.
    auto body = std::make_shared<Graph>();
    body->name = old.name;
    Node out = scan_;
    out.inputs.assign(scan_.inputs.begin(), scan_.inputs.begin() + s_.carry);
    for (int64_t i = 0; i < s_.carry; ++i)
      map_[old.param_value(i)] = body->param(old.param_name(i), old.type(old.param_value(i)));
    int64_t sliced = 0, invariant = 0;
    std::map<Value, Value> by_outer;
    for (int64_t i = s_.carry; i < s_.carry + s_.sliced; ++i) {
      if (dropped_.contains(i)) continue;
      const Value outer = scan_.inputs[static_cast<size_t>(i)];
      map_[old.param_value(i)] = by_outer[outer] =
          body->param(old.param_name(i), old.type(old.param_value(i)));
      out.inputs.push_back(outer);
      ++sliced;
    }
    for (const Value leaf :
         leaves_) {  // values of the forward body that recompute reads and that are not invariants
      const Value outer = outer_of(leaf);
      if (is_invariant(leaf) || by_outer.contains(outer)) continue;
      by_outer[outer] = body->param(leaf_name(leaf), forward_->body->type(leaf));
      out.inputs.push_back(outer);
      ++sliced;
    }
    for (int64_t i = s_.carry + s_.sliced; i < static_cast<int64_t>(scan_.inputs.size()); ++i) {
      const Value outer = scan_.inputs[static_cast<size_t>(i)];
      map_[old.param_value(i)] = by_outer[outer] =
          body->param(old.param_name(i), old.type(old.param_value(i)));
      out.inputs.push_back(outer);
      ++invariant;
    }
    for (const Value leaf : leaves_) {
      const Value outer = outer_of(leaf);
      if (!is_invariant(leaf) || by_outer.contains(outer)) continue;
      by_outer[outer] = body->param(leaf_name(leaf), forward_->body->type(leaf));
      out.inputs.push_back(outer);
      ++invariant;
    }

    // 3. One barrier over all that the recompute reads and the incoming gradients; everything after reads its
    // results.
    const bool heavy = std::any_of(copies_.begin(), copies_.end(), [&](int32_t id) {
      return !weight_like_[static_cast<size_t>(id)] && !is_view(*forward_->body, forward_->body->node(id));
    });
    if (heavy) add_barrier(*body, by_outer, old);
    std::map<Value, Value> forward_map;
    for (const Value leaf : leaves_) forward_map[leaf] = by_outer.at(outer_of(leaf));

    // 4. The copies, in the forward's order, then the gradient's nodes.
    for (const int32_t id : copies_) {
      Node n = forward_->body->node(id);
      n.tag.role = Role::remat;
      ir::copy_node(std::move(n), id, *body, forward_map);
    }
    for (const int64_t i : dropped_)
      if (is_live(i))
        map_[old.param_value(i)] = forward_map.at(*forward_value(scan_.inputs[static_cast<size_t>(i)]));
    for (int32_t id = 0; id < static_cast<int32_t>(old.nodes().size()); ++id)
      if (live[static_cast<size_t>(id)] && old.node(id).kind != "param")
        ir::copy_node(old.node(id), id, *body, map_);
    for (const ir::Output& o : old.outputs()) body->output(o.name, map_.at(o.value));
    out.attrs = ir::scan_attrs({s_.trip, s_.reversed, s_.carry, sliced, invariant, s_.stacked});
    out.body = std::move(body);
    return out;
  }

 private:
  // The forward scan is the one whose stacks this scan slices.
  bool find_forward() {
    for (int64_t i = s_.carry; i < s_.carry + s_.sliced; ++i) {
      const Value v = scan_.inputs[static_cast<size_t>(i)];
      const Node& n = step_.node(v);
      if (n.kind != "scan" || v.index < ir::scan_of(n).carry) continue;
      LIGNUM_CHECK(forward_ == nullptr || forward_ == &n, "{} reads the stacks of two scans", scan_.tag.path);
      forward_ = &n;
      forward_id_ = v.node;
      forward_scan_ = ir::scan_of(n);
    }
    return forward_ != nullptr;
  }
  std::optional<Value> forward_value(Value outer) const {
    if (outer.node != forward_id_ || outer.index < forward_scan_.carry) return std::nullopt;
    return forward_->body->outputs()[static_cast<size_t>(outer.index)].value;
  }
  bool recomputed(Value v) const {
    const Node& n = forward_->body->node(v);
    if (n.kind == "param" || n.tag.name == ops::kScaleName) return false;  // the layer's input; a scale
    if (weight_like_[static_cast<size_t>(v.node)]) return true;
    // A view is made again: kept, it would be held twice.
    return policy_.save_all ? is_view(*forward_->body, n) : !policy_.saved.contains(n.tag.name);
  }
  // Nodes to copy and the leaves that they read: params of the forward body and kept values.
  void collect(Value v) {
    if (forward_->body->node(v).kind == "param" || !recomputed(v)) {
      if (std::find(leaves_.begin(), leaves_.end(), v) == leaves_.end()) leaves_.push_back(v);
      return;
    }
    if (!copies_.insert(v.node).second) return;
    for (const Value in : forward_->body->node(v).inputs) collect(in);
  }
  bool is_invariant(Value leaf) const {
    return forward_->body->node(leaf).kind == "param" &&
           param_index(*forward_->body, leaf) >= forward_scan_.carry + forward_scan_.sliced;
  }
  std::string leaf_name(Value leaf) const {
    const Node& n = forward_->body->node(leaf);
    return n.kind == "param" ? n.attrs.get<std::string>("name") : n.tag.name;
  }
  // Where the backward scan gets a leaf from.
  Value outer_of(Value leaf) const {
    if (forward_->body->node(leaf).kind == "param") {
      const int64_t i = param_index(*forward_->body, leaf);
      if (i >= forward_scan_.carry) return forward_->inputs[static_cast<size_t>(i)];
    }
    const auto& outputs = forward_->body->outputs();
    for (auto r = static_cast<int32_t>(outputs.size()) - 1; r >= static_cast<int32_t>(forward_scan_.carry);
         --r)
      if (outputs[static_cast<size_t>(r)].value == leaf) return {forward_id_, r};
    LIGNUM_CHECK(false, "%{}#{} of {} is not stacked", leaf.node, leaf.index, forward_->tag.path);
  }
  void add_barrier(Graph& body, std::map<Value, Value>& by_outer, const Graph& old) {
    Node barrier;
    barrier.kind = "barrier";
    barrier.tag.path = scan_.tag.path;
    barrier.tag.role = Role::remat;
    std::vector<Value*> through;
    for (int64_t i = 0; i < s_.carry; ++i) through.push_back(&map_.at(old.param_value(i)));
    for (const Value leaf : leaves_) {
      Value* v = &by_outer.at(outer_of(leaf));
      if (!is_invariant(leaf) && std::find(through.begin(), through.end(), v) == through.end())
        through.push_back(v);
    }
    for (const Value* v : through) {
      barrier.inputs.push_back(*v);
      barrier.types.push_back(body.type(*v));
    }
    const int32_t id = body.add(std::move(barrier));
    std::map<Value, Value> after;
    for (size_t k = 0; k < through.size(); ++k) after[*through[k]] = {id, static_cast<int32_t>(k)};
    for (auto* table : {&map_, &by_outer})
      for (auto& [key, v] : *table)
        if (after.contains(v)) v = after.at(v);
  }

  const Graph& step_;
  const RematPolicy& policy_;
  const Node& scan_;
  Scan s_, forward_scan_;
  const Node* forward_ = nullptr;
  int32_t forward_id_ = -1;
  std::vector<bool> weight_like_;
  std::set<int64_t> dropped_;   // sliced inputs that are recomputed
  std::set<int32_t> copies_;    // forward body nodes
  std::vector<Value> leaves_;   // forward body values
  std::map<Value, Value> map_;  // old body -> new body
};

using Names = std::set<std::string, std::less<>>;

// A preset of MaxText. Those that offload keep the same names in host memory instead.
struct Preset {
  std::string_view name;
  Names names;
  bool offloads = false;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = [] {
    const auto with = [](Names names, const Names& more) {
      names.insert(more.begin(), more.end());
      return names;
    };
    const Names heads = {"query_proj", "key_proj", "value_proj", "kv_proj"};
    const Names qkv = with(heads, {"qkv_proj"});
    const Names dots = with(qkv, {"out_proj", "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo"});
    return std::vector<Preset>{
        {"full", {}},
        {"minimal", dots},
        {"minimal_with_context", with(dots, {"context"})},
        {"minimal_flash", with(dots, {"context"})},
        {"minimal_with_quantization", with(dots, {"quantization"})},
        {"minimal_with_context_and_quantization", with(dots, {"context", "quantization"})},
        {"save_dot_with_context_except_mlp", with(qkv, {"context", "out_proj"})},
        {"save_dot_except_mlpwi", with(qkv, {"out_proj", "mlpwo"})},
        {"save_dot_except_mlp", with(qkv, {"out_proj"})},
        {"save_qkv_proj", qkv},
        {"save_out_proj", {"out_proj"}},
        // Not qkv_proj, as in MaxText: with fused projections it offloads nothing.
        {"qkv_proj_offloaded", heads, true},
        {"minimal_offloaded", dots, true},
    };
  }();
  return kPresets;
}

}  // namespace

std::span<const std::string_view> device_policies() {
  static constexpr std::string_view kPolicies[] = {"none",
                                                   "minimal_with_context",
                                                   "minimal",
                                                   "save_dot_with_context_except_mlp",
                                                   "save_dot_except_mlpwi",
                                                   "save_dot_except_mlp",
                                                   "save_qkv_proj",
                                                   "save_out_proj",
                                                   "full"};
  return kPolicies;
}

std::span<const std::string_view> remat_tensors() {
  static constexpr std::string_view kTensors[] = {"decoder_layer_input",
                                                  "context",
                                                  "query_proj",
                                                  "key_proj",
                                                  "value_proj",
                                                  "kv_proj",
                                                  "qkv_proj",
                                                  "out_proj",
                                                  "mlpwi_0",
                                                  "mlpwi_1",
                                                  "mlpwi",
                                                  "mlpwo",
                                                  "attention_out",
                                                  "moe_mlpwi_0",
                                                  "moe_mlpwi_1",
                                                  "moe_mlpwo",
                                                  "mla_q",
                                                  "mla_kv",
                                                  "query_wa_proj",
                                                  "kv_wa_proj",
                                                  "engram",
                                                  "indexer_cutoff_threshold"};
  return kTensors;
}

Result<RematPolicy> remat_policy(std::string_view name) {
  if (name == "none") return RematPolicy{true, {}, {}};
  std::string known = "none";
  for (const Preset& p : presets()) {
    known += fmt::format(", {}", p.name);
    if (p.name != name) continue;
    return p.offloads ? RematPolicy{false, p.names, p.names} : RematPolicy{false, p.names, {}};
  }
  return user_error("remat_policy={}: it is one of {}, or custom", name, known);
}

Names named_tensors(const Graph& forward) {
  Names names;
  ir::for_each_node(forward, [&](const Graph& g, int32_t id, int) {
    if (!g.node(id).tag.name.empty()) names.insert(g.node(id).tag.name);
  });
  return names;
}

Names saved_tensors(const Graph& step) {
  Names names;
  ir::for_each_node(step, [&](const Graph& g, int32_t id, int) {
    const Node& n = g.node(id);
    if (n.kind != "scan" || n.tag.role != Role::forward) return;
    for (size_t o = static_cast<size_t>(ir::scan_of(n).carry); o < n.body->outputs().size(); ++o)
      names.insert(n.body->outputs()[o].name);
  });
  return names;
}

Graph remat(const Graph& step, const RematPolicy& policy) {
  return ir::prune(ir::rewrite(
      step,
      [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (node.kind != "scan") return {};
        auto rebuilt = Rebuild(step, policy, node).run();
        if (!rebuilt) return {};
        // rewrite() maps this node's own inputs; the new ones are values of `step` too, all of nodes before
        // it, and the map is the identity by result: nodes are copied one to one.
        (void)inputs;
        LIGNUM_CHECK(id == static_cast<int32_t>(to.nodes().size()), "nodes moved: {} became {}", id,
                     to.nodes().size());
        return to.results(to.add(std::move(*rebuilt)));
      }));
}

}  // namespace lignum::passes
