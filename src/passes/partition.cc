#include "passes/partition.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "ops/op.h"
#include "ops/rules.h"
#include "passes/partition_factors.h"
#include "passes/tick_loop.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Scan;
using ir::Type;
using ir::Value;

// Inside a pipeline's loops: an axis of no ranks, which cuts the rows that the stages share into
// microbatches. What is open over it is summed over ticks.
constexpr const char* kMicrobatch = "microbatch";
constexpr const char* kDataAxis = "data";

bool contains(const Axes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// A value of the local graph and how it lies. partial: open over these axes still, a sum or a maximum.
struct Local {
  Value value;
  Sharding sharding;
  Axes partial;
  Value narrow = {};  // the same sum still open, in the narrower type that may travel instead
  // An unnamed constant: made again in whatever shape its reader's other operands have.
  const Node* fluid = nullptr;
  bool maximum = false;  // of what is partial: the largest is taken, not the sum
  bool ticked = false;   // stacked by a pipeline's ticks: [ticks, layers of a tick, ...]
};

// The rules inside a pipeline's loops, where a stage works on a microbatch of the rows that all share.
AxisRules stage_rules(const AxisRules& rules) {
  AxisRules out = rules;
  for (auto& [name, axes] : out)
    std::replace(axes.begin(), axes.end(), std::string(kStageAxis), std::string(kMicrobatch));
  return out;
}

// Weights over `data`, too, inside whatever else cuts them: it is gathered by itself.
AxisRules with_state_over_data(const AxisRules& rules) {
  AxisRules out = rules;
  out["embed"].emplace_back(kDataAxis);
  return out;
}

class Partitioner {
 public:
  Partitioner(const Mesh& mesh, const Pipeline& pipeline, const AxisRules& rules)
      : mesh_(mesh),
        pipeline_(pipeline),
        rules_(mesh.state_over_data ? with_state_over_data(rules) : rules),
        stage_rules_(stage_rules(rules_)),
        tokens_(mesh.tokens()) {
    if (pipeline.stages > 1) mesh_.axes.push_back({kMicrobatch, pipeline.microbatches});
  }

  Sharding by_names(const Type& type) const {
    Sharding s;
    s.dims.resize(type.dims.size());
    Axes used;
    for (size_t d = 0; d < type.names.size(); ++d) {
      const AxisRules& rules = in_stage_ ? stage_rules_ : rules_;
      const auto rule = rules.find(type.names[d]);
      if (rule == rules.end()) continue;
      for (const std::string& axis : rule->second) {
        if (mesh_.size(axis) == 1 || contains(used, axis)) continue;
        if (type.names[d] == "layers" && !pipeline_.cuts(type.dims[d])) continue;
        s.dims[d].push_back(axis);
        used.push_back(axis);
      }
    }
    return s;
  }

  // Fills `to` with the local form of `from`, whose params lie as given; outputs may be forced to lie as
  // wanted. Returns the outputs. Of those that a loop stacks vectors may be open sums still: the ranks add up
  // the stack, once, instead of a vector an iteration (the gradients of norms, of which a link sees little
  // but its latency).
  Result<std::vector<Local>> graph(const Graph& from, const std::vector<Sharding>& params,
                                   const std::vector<std::optional<Sharding>>& wanted, Graph& to) {
    to.name = from.name;
    to.stage = ir::Stage::local;
    std::map<Value, Local> map;
    ops::Builder b(to);
    const auto outer_gathers = std::exchange(gathers_, {});
    const auto outer_loop_gathers = std::exchange(loop_gathers_, {});
    for (int32_t id = 0, p = 0; id < static_cast<int32_t>(from.nodes().size()); ++id) {
      const Node& n = from.node(id);
      b.tag = n.tag;
      b.origin = n.origin;
      if (n.kind == "param") {
        const Sharding& s = params[static_cast<size_t>(p++)];
        Type t = n.types[0];
        t.dims = local_dims(t.dims, s, mesh_);
        const Value v = to.param(n.attrs.get<std::string>("name"), std::move(t));
        to.set_origin(v.node, n.origin);
        map[{id, 0}] = {v, s, {}};
      } else if (n.kind == "scan") {
        gathers_.clear();
        LIGNUM_RETURN_IF_ERROR(scan(from, id, b, map));
      } else {
        LIGNUM_RETURN_IF_ERROR(op(from, id, b, map));
      }
    }
    std::vector<Local> outputs;
    b.tag = {};
    for (size_t i = 0; i < from.outputs().size(); ++i) {
      const ir::Output& o = from.outputs()[i];
      b.tag = from.node(o.value).tag;
      b.origin = from.node(o.value).origin;
      const bool small = i >= wanted.size() && from.type(o.value).dims.size() <= 1;
      Local& l = small && !in_stage_ ? map.at(o.value) : resolved(from, o.value, b, map);
      Local out = l;
      if (i < wanted.size() && wanted[i] && !(*wanted[i] == l.sharding)) {
        LIGNUM_ASSIGN_OR_RETURN(out, relaid(from.type(o.value), l, *wanted[i], b, "output " + o.name));
      }
      to.output(o.name, out.value, o.alias);
      outputs.push_back(std::move(out));
    }
    gathers_ = outer_gathers;
    loop_gathers_ = outer_loop_gathers;
    return outputs;
  }

 private:
  using Gathers = std::map<std::tuple<Value, std::string, size_t>, Value>;  // by (local value, axis, dim)

  // The node that makes v, in the body of the loop that stacks it.
  static const Node& made_by(const Graph& from, Value v) {
    const Node& n = from.node(v);
    if (!n.body || v.index < ir::scan_of(n).carry) return n;
    return made_by(*n.body, n.body->outputs()[static_cast<size_t>(v.index)].value);
  }
  // Finishes a partial sum, once: reduce_scatter where the value's names want an axis, all_reduce for the
  // others.
  Local& resolved(const Graph& from, Value v, ops::Builder& b, std::map<Value, Local>& map) {
    Local& l = map.at(v);
    LIGNUM_CHECK(!l.ticked, "{} is kept a tick: the loop over layers that goes back alone reads it",
                 from.node(v).tag.path);
    Axes left = l.partial;
    const bool by_tick = std::erase(left, kMicrobatch) > 0;
    // A scale that is found from a microbatch is its own.
    if (by_tick && l.maximum) std::erase(l.partial, kMicrobatch);
    if (left.empty()) return l;
    const ir::Tag tag = b.tag;
    const int32_t origin = b.origin;
    b.tag = made_by(from, v).tag;
    b.tag.name.clear();
    b.origin = from.node(v).origin;
    const Sharding target = by_names(from.type(v));
    // The first reduction sends the narrow form and adds up in the wide one.
    const auto reduce = [&](std::string_view kind, const std::string& axis, std::optional<size_t> dim) {
      ir::Attrs attrs{{"axis", axis}, {"group", mesh_.size(axis)}};
      if (dim) attrs.set("dim", static_cast<int64_t>(*dim));
      if (l.narrow.valid()) attrs.set("dtype", std::string(dtype_name(b.type(l.value).dtype)));
      if (l.maximum) attrs.set("fn", std::string("max"));
      l.value = b.add("await", {b.add(kind, {l.narrow.valid() ? l.narrow : l.value}, std::move(attrs))});
      l.narrow = {};
    };
    for (size_t d = 0; d < target.dims.size() && !l.maximum; ++d) {
      // Outermost first: an axis may cut further what those before it have cut.
      Axes& have = l.sharding.dims[d];
      for (size_t k = 0; k < target.dims[d].size(); ++k) {
        const std::string& axis = target.dims[d][k];
        if (!contains(left, axis) || !std::equal(have.begin(), have.end(), target.dims[d].begin(),
                                                 target.dims[d].begin() + static_cast<std::ptrdiff_t>(k)))
          continue;
        reduce("reduce_scatter", axis, d);
        have.push_back(axis);
        std::erase(left, axis);
      }
    }
    for (const std::string& axis : left) reduce("all_reduce", axis, std::nullopt);
    l.partial.clear();
    if (by_tick && !l.maximum) l.partial = {kMicrobatch};
    if (!from.type(v).names.empty()) b.graph().set_names(l.value, from.type(v).names);
    b.tag = tag;
    b.origin = origin;
    return l;
  }

  // The value gathered on every axis that `to` does not have. Cutting a whole dim is not done here.
  Result<Local> relaid(const Type& global, const Local& l, const Sharding& to, ops::Builder& b,
                       const std::string& who) {
    return relaid(global, l, to, b, who, gathers_);
  }
  Result<Local> relaid(const Type& global, const Local& l, const Sharding& to, ops::Builder& b,
                       const std::string& who, Gathers& gathers) {
    Local out = l;
    if (l.fluid != nullptr && !(l.sharding == to)) {
      ir::Attrs attrs = l.fluid->attrs;
      attrs.set("dims", local_dims(global.dims, to, mesh_));
      return Local{b.add(l.fluid->kind, {}, std::move(attrs)), to, {}};
    }
    for (size_t d = 0; d < to.dims.size(); ++d) {
      // Innermost first: what remains is then a prefix of the axes.
      while (!out.sharding.dims[d].empty() && out.sharding.dims[d] != to.dims[d]) {
        const std::string axis = out.sharding.dims[d].back();
        if (axis == kMicrobatch) return internal_error("{}: needs the rows of all microbatches", who);
        out.sharding.dims[d].pop_back();
        const int64_t size = local_dims({global.dims[d]}, {{out.sharding.dims[d]}}, mesh_)[0];
        Value& gathered = gathers[{out.value, axis, d}];
        if (!gathered.valid()) {
          const Value started = b.add("all_gather", {out.value},
                                      {{"axis", axis},
                                       {"group", mesh_.size(axis)},
                                       {"dim", static_cast<int64_t>(d)},
                                       {"size", size}});
          gathered = b.add("await", {started});
        }
        out.value = gathered;
      }
      if (out.sharding.dims[d] != to.dims[d])
        return internal_error("{}: dim {} of {} is to be cut over {}, which partition does not do", who, d,
                              ir::to_string(global), to.dims[d].back());
    }
    return out;
  }

  Status op(const Graph& from, int32_t id, ops::Builder& b, std::map<Value, Local>& map) {
    const Node& n = from.node(id);
    const ops::Op& op = ops::get_op(n.kind);
    const ops::NodeSite site(from, n);
    ops::ShardRule rule = op.partition(site.site);
    if (rule.placed >= 0 && tokens_.ring) {
      rule.in = rule.ring_in;
      rule.out = rule.ring_out;
    }
    LIGNUM_CHECK(rule.in.size() == n.inputs.size() && rule.out.size() == n.types.size(), "{}: partition rule",
                 n.kind);
    if (rule.separate) {
      Values whole;
      for (const Value v : n.inputs) whole.push_back(map.at(v).value);
      const Values made = b.add_all(n.kind, whole, n.attrs);
      for (size_t r = 0; r < made.size(); ++r) {
        if (!n.types[r].names.empty()) b.graph().set_names(made[r], n.types[r].names);
        Local l = map.at(n.inputs[r]);
        l.value = made[r];
        map[{id, static_cast<int32_t>(r)}] = std::move(l);
      }
      return {};
    }

    rule.linear = rule.linear || (rule.rounds && n.tag.role == ir::Role::wgrad);
    // A sum may stay open through a linear op when all its inputs are open over the same axes.
    Axes partial;
    if (rule.linear && !n.inputs.empty()) {
      for (const Value v : n.inputs) open_over_copies(n.inputs, v, b, map);
      partial = map.at(n.inputs[0]).partial;
      for (const Value v : n.inputs)
        if (map.at(v).partial != partial || map.at(v).maximum) partial.clear();
    }
    std::vector<Local> in;
    for (const Value v : n.inputs) in.push_back(partial.empty() ? resolved(from, v, b, map) : map.at(v));
    if (partial.empty() && rule.linear_in >= 0) {
      Local& summed = in[static_cast<size_t>(rule.linear_in)];
      partial = std::exchange(summed.partial, {});
    }
    for (const Local& l : in)
      if (!l.partial.empty() && !(rule.linear && l.partial == partial))
        return internal_error("{} ({}) reads a sum over the rows of several microbatches", n.kind,
                              n.tag.path);

    std::vector<const Sharding*> lie;
    for (const Local& l : in) lie.push_back(l.fluid == nullptr ? &l.sharding : nullptr);
    const Sharding named = rule.result_dims.empty() ? Sharding{} : by_names(n.types[0]);
    const Factors factors(mesh_, rule, site.site, lie, named);
    Values inputs;
    for (size_t i = 0; i < in.size(); ++i) {
      Sharding want;
      for (size_t d = 0; d < rule.in[i].size(); ++d)
        want.dims.push_back(factors.cut(rule.in[i][d], site.site.in[i].dims[d]));
      LIGNUM_ASSIGN_OR_RETURN(const Local l, relaid(from.type(n.inputs[i]), in[i], want, b, n.kind));
      inputs.push_back(l.value);
    }
    std::vector<Sharding> out(n.types.size());
    std::vector<Axes> open(n.types.size(), partial);
    for (size_t r = 0; r < n.types.size(); ++r) {
      std::set<std::string> there;
      for (size_t d = 0; d < rule.out[r].size(); ++d) {
        out[r].dims.push_back(factors.cut(rule.out[r][d], n.types[r].dims[d]));
        there.insert(out[r].dims[d].begin(), out[r].dims[d].end());
      }
      for (const Axes& axes : factors.axes())
        std::copy_if(axes.begin(), axes.end(), std::back_inserter(open[r]),
                     [&](const std::string& axis) { return !there.contains(axis); });
    }
    ir::Attrs attrs = n.attrs;
    if (!rule.result_dims.empty())
      attrs.set(std::string(rule.result_dims), local_dims(n.types[0].dims, out[0], mesh_));
    const bool placed = rule.placed >= 0 && !factors.axes()[static_cast<size_t>(rule.placed)].empty();
    const Values made = placed ? local(rule, site.site, inputs, b) : b.add_all(n.kind, inputs, attrs);
    for (size_t r = 0; r < made.size(); ++r) {
      const Type& t = b.type(made[r]);
      const auto expected = local_dims(n.types[r].dims, out[r], mesh_);
      if (t.dims != expected)
        return internal_error("{}: local result {} is {}, the sharding of {} asks for other dims", n.kind, r,
                              ir::to_string(t), ir::to_string(n.types[r]));
      if (!n.types[r].names.empty()) b.graph().set_names(made[r], n.types[r].names);
      const bool fluid = n.inputs.empty() && rule.result_dims == "dims" && n.types[r].names.empty();
      const bool narrow = rule.widens && !open[r].empty() && !partial.empty();
      map[{id, static_cast<int32_t>(r)}] = {made[r],
                                            out[r],
                                            open[r],
                                            narrow ? inputs[0] : Value{},
                                            fluid ? &n : nullptr,
                                            rule.open == ops::ShardRule::Open::maximum};
    }
    return {};
  }
  using Values = std::vector<Value>;

  // Ranks with copies of key heads have the same gradient by what these heads read, and an open sum of it by
  // what query heads read: the former is the sum of the first one's and zeros.
  void open_over_copies(const Values& operands, Value v, ops::Builder& b, std::map<Value, Local>& map) {
    const std::string axis(kCopiesAxis);
    const Local& l = map.at(v);
    Axes open = l.partial;
    open.push_back(axis);
    const bool wanted = std::any_of(operands.begin(), operands.end(), [&](Value other) {
      const Local& o = map.at(other);
      return o.partial == open && o.sharding == l.sharding && !o.maximum;
    });
    if (!wanted) return;
    ops::Dims stack = b.type(l.value).dims;
    stack.insert(stack.begin(), 1);
    const Value rank = b.add("axis_index", {}, {{"axis", axis}, {"group", mesh_.size(axis)}});
    Local opened = l;
    opened.value = b.add("take_row", {b.reshape(l.value, std::move(stack)), rank});
    opened.partial = std::move(open);
    opened.narrow = {};
    map[v] = std::move(opened);
  }

  Values local(const ops::ShardRule& rule, const ops::Site& site, const Values& inputs, ops::Builder& b) {
    const Value rank = b.add("axis_index", {}, {{"axis", tokens_.axis}, {"group", tokens_.group}});
    return rule.local({b, site, inputs, tokens_, rank});
  }

  Status scan(const Graph& from, int32_t id, ops::Builder& b, std::map<Value, Local>& map) {
    const Node& n = from.node(id);
    Scan s = ir::scan_of(n);
    if (!in_stage_ && s.carry > 0 && cut_stack(n, s, map)) return staged_scan(from, id, b, map);
    std::vector<Local> in;
    for (const Value v : n.inputs) {
      in.push_back(resolved(from, v, b, map));
      if (!mesh_.state_over_data || s.carry == 0 || static_cast<int64_t>(in.size()) <= s.carry) continue;
      LIGNUM_ASSIGN_OR_RETURN(in.back(), gathered_for_loops(from, v, in.back(), b));
    }
    std::vector<Sharding> params;
    Axes rows;  // a loop over layers that keep to themselves (an update): each stage runs its own
    for (size_t i = 0; i < in.size(); ++i) {
      Sharding p = in[i].sharding;
      const bool sliced = static_cast<int64_t>(i) >= s.carry && static_cast<int64_t>(i) < s.carry + s.sliced;
      if (sliced) {
        if (i > static_cast<size_t>(s.carry) && p.dims[0] != rows)
          return internal_error("scan input {}: the dim that is sliced is sharded, others' is not", i);
        rows = p.dims[0];
        if (!rows.empty() && s.carry > 0)
          return internal_error("scan input {}: the dim that is sliced is sharded over {}", i, rows[0]);
        p.dims.erase(p.dims.begin());
      }
      params.push_back(std::move(p));
    }
    std::vector<std::optional<Sharding>> wanted(params.begin(), params.begin() + s.carry);
    auto body = std::make_shared<Graph>();
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<Local> outputs, graph(*n.body, params, wanted, *body));
    Node made = n;
    s.trip = local_dims({s.trip}, {{rows}}, mesh_)[0];
    made.attrs = ir::scan_attrs(s);
    made.inputs.clear();
    for (const Local& l : in) made.inputs.push_back(l.value);
    for (size_t r = 0; r < outputs.size(); ++r) {
      const bool carried = static_cast<int64_t>(r) < s.carry;
      LIGNUM_CHECK(!carried || outputs[r].partial.empty(), "{} stays open", n.body->outputs()[r].name);
      Sharding o = outputs[r].sharding;
      if (!carried) o.dims.insert(o.dims.begin(), rows);
      made.types[r].dims = local_dims(made.types[r].dims, o, mesh_);
      Local& l = map[{id, static_cast<int32_t>(r)}] = {{}, std::move(o), outputs[r].partial};
      l.maximum = outputs[r].maximum;
    }
    made.body = std::move(body);
    const int32_t at = b.graph().add(std::move(made));
    for (size_t r = 0; r < outputs.size(); ++r)
      map[{id, static_cast<int32_t>(r)}].value = {at, static_cast<int32_t>(r)};
    return {};
  }

  // A stack of weights that ranks of `data` store parts of, whole, for all loops that read it.
  Result<Local> gathered_for_loops(const Graph& from, Value v, const Local& l, ops::Builder& b) {
    Sharding whole = l.sharding;
    for (size_t d = 0; d < whole.dims.size(); ++d)
      if (ops::name_of(from.type(v), static_cast<int64_t>(d)) == "embed")
        std::erase(whole.dims[d], kDataAxis);
    return whole == l.sharding ? l : relaid(from.type(v), l, whole, b, "a loop", loop_gathers_);
  }

  // Whether the loop slices what the stages share, or what another loop over ticks keeps.
  static bool cut_stack(const Node& n, const Scan& s, const std::map<Value, Local>& map) {
    return std::any_of(n.inputs.begin() + s.carry, n.inputs.begin() + s.carry + s.sliced, [&](Value v) {
      const Local& l = map.at(v);
      return l.ticked || contains(l.sharding.dims[0], std::string(kStageAxis));
    });
  }

  // A loop over layers as one over ticks.
  Status staged_scan(const Graph& from, int32_t id, ops::Builder& b, std::map<Value, Local>& map) {
    const Node& n = from.node(id);
    const Scan s = ir::scan_of(n);
    const std::string axis(kStageAxis);
    StageLoop loop;
    loop.scan = n;
    std::vector<Sharding> params;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const bool sliced = at >= s.carry && at < s.carry + s.sliced;
      const bool ticked = map.at(n.inputs[i]).ticked;
      Local l = ticked ? map.at(n.inputs[i]) : resolved(from, n.inputs[i], b, map);
      const Type& type = from.type(n.inputs[i]);
      const bool batched = !sliced && contains(l.sharding.dims.empty() ? Axes{} : l.sharding.dims[0], axis);
      if (at < s.carry && !batched)
        return internal_error("{}: carry {} has no rows that the stages share", n.tag.path, at);
      if (batched) {
        Sharding whole = l.sharding;
        std::erase(whole.dims[0], axis);
        LIGNUM_ASSIGN_OR_RETURN(l, relaid(type, l, whole, b, n.tag.path));
        whole.dims[0].emplace_back(kMicrobatch);
        params.push_back(std::move(whole));
      } else {
        params.push_back(l.sharding);
        if (sliced) params.back().dims.erase(params.back().dims.begin());
      }
      loop.inputs.push_back(l.value);
      loop.batched.push_back(batched && at >= s.carry);
      loop.ticked.push_back(ticked);
      loop.whole.push_back(sliced && !ticked && l.sharding.dims[0].empty());
    }
    const std::vector<std::optional<Sharding>> wanted(params.begin(), params.begin() + s.carry);
    auto body = std::make_shared<Graph>();
    in_stage_ = true;
    Result<std::vector<Local>> outputs = graph(*n.body, params, wanted, *body);
    in_stage_ = false;
    if (!outputs.ok()) return outputs.status();
    loop.body = std::move(body);
    for (const Local& o : *outputs) loop.summed.push_back(!o.partial.empty());
    b.tag = n.tag;
    b.origin = n.origin;
    const std::vector<Value> made = add_tick_loop(b, loop, pipeline_);
    for (size_t r = 0; r < made.size(); ++r) {
      Local l{made[r], (*outputs)[r].sharding, {}};
      if (static_cast<int64_t>(r) < s.carry) {
        // All rows on one stage, zeros on the others: a sum that is open.
        std::erase(l.sharding.dims[0], kMicrobatch);
        l.partial = {axis};
      } else {
        l.ticked = !loop.summed[r];
        l.sharding.dims.insert(l.sharding.dims.begin(), loop.summed[r] ? Axes{axis} : Axes{});
      }
      if (!l.ticked && !n.types[r].names.empty()) b.graph().set_names(l.value, n.types[r].names);
      map[{id, static_cast<int32_t>(r)}] = std::move(l);
    }
    return {};
  }

  Mesh mesh_;
  const Pipeline& pipeline_;
  const AxisRules rules_;
  const AxisRules stage_rules_;
  const ops::TokenAxis tokens_;
  bool in_stage_ = false;  // in the body of a pipeline's loop
  // What the graph being filled has gathered already, by (local value, axis, dim): a weight that recompute
  // and gradient both read is gathered once, under its first reader's tag. Not across a loop: it would be
  // held all along it.
  Gathers gathers_;
  // What is held across loops nevertheless (state_over_data).
  Gathers loop_gathers_;
};

}  // namespace

Result<Partitioned> partition(const Graph& global, const Mesh& mesh, const Pipeline& pipeline,
                              const AxisRules& rules) {
  LIGNUM_CHECK(global.stage == ir::Stage::global, "partition takes a global graph");
  LIGNUM_CHECK(pipeline.stages == mesh.size(kStageAxis), "a pipeline of {} stages on {} ranks",
               pipeline.stages, mesh.size(kStageAxis));
  Partitioner p(mesh, pipeline, rules);
  Partitioned out;
  std::vector<std::optional<Sharding>> wanted;
  for (int64_t i = 0; i < static_cast<int64_t>(global.params().size()); ++i) {
    const Type& t = global.type(global.param_value(i));
    out.params.push_back(p.by_names(t));
    for (size_t d = 0; d < t.dims.size(); ++d) {
      if (t.names.empty() || t.names[d] != "activation_batch") continue;
      int64_t cut = 1;
      for (const std::string& axis : out.params.back().dims[d]) cut *= mesh.size(axis);
      if (t.dims[d] % cut != 0)
        return user_error(
            "{}: {} rows cannot be divided over {} ranks; change per_device_batch_size or the mesh",
            global.param_name(i), t.dims[d], cut);
    }
  }
  for (const ir::Output& o : global.outputs())
    wanted.push_back(o.alias < 0 ? std::nullopt
                                 : std::optional<Sharding>(out.params[static_cast<size_t>(o.alias)]));
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<Local> outputs, p.graph(global, out.params, wanted, out.graph));
  for (const Local& o : outputs) out.outputs.push_back(o.sharding);
  const auto deal = [&](const Type& type, Sharding& s) {
    if (!s.dims.empty() && s.dims[0] == Axes{std::string(kStageAxis)} && ops::name_of(type, 0) == "layers")
      s.rounds = pipeline.repeats;
  };
  for (size_t i = 0; i < out.params.size(); ++i)
    deal(global.type(global.param_value(static_cast<int64_t>(i))), out.params[i]);
  for (size_t i = 0; i < out.outputs.size(); ++i)
    deal(global.type(global.outputs()[i].value), out.outputs[i]);
  out.graph = ir::prune(out.graph);  // wide forms of sums that travelled narrow
  LIGNUM_RETURN_IF_ERROR(ops::verify(out.graph));
  return out;
}

}  // namespace lignum::passes
