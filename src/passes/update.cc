#include "passes/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ir/copy.h"
#include "ops/op.h"
#include "passes/offload.h"
#include "passes/partition.h"
#include "passes/quantization_watch.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;
using ops::Builder;

constexpr std::string_view kGradPrefix = "grad:";

bool is_gradient(const std::string& output) { return output.starts_with(kGradPrefix); }

std::optional<Value> output_of(const Graph& g, std::string_view name) {
  for (const ir::Output& o : g.outputs())
    if (o.name == name) return o.value;
  return std::nullopt;
}

Value find_output(const Graph& g, std::string_view name) {
  const auto value = output_of(g, name);
  LIGNUM_CHECK(value.has_value(), "the step has no output {}", name);
  return *value;
}

// Copies nodes of `from` into `to`; params first become those of `to` given.
std::map<Value, Value> copy_nodes(const Graph& from, Graph& to) {
  std::map<Value, Value> map;
  for (int32_t id = 0; id < static_cast<int32_t>(from.nodes().size()); ++id)
    ir::copy_node(from.node(id), id, to, map);
  return map;
}

// What is only looked at goes on as it is.
void keep_watched(const Graph& from, const std::map<Value, Value>& map, Graph& to) {
  for (const ir::Output& o : from.outputs())
    if (o.name.starts_with(kWatchPrefix)) to.output(o.name, map.at(o.value));
}

// The logical names of a type that some rule shards, sorted.
std::vector<std::string> sharded_names(const ir::Type& type) {
  std::vector<std::string> out;
  for (const std::string& name : type.names)
    if (default_axis_rules().contains(name)) out.push_back(name);
  std::sort(out.begin(), out.end());
  return out;
}

// 1 / max(tokens, 1): a batch without a supervised token has gradients of zero, not NaN.
Value inverse_tokens(Builder& b, Value tokens) {
  const Value one = b.constant(DType::f32, {}, 1.0);
  return b.elementwise("div", {one, b.elementwise("max", {tokens, one})});
}

// The update of one parameter.
struct Update {
  std::string name;
  ops::Values in;  // of its op
  ir::Attrs attrs;
  std::vector<size_t> replaced;  // by the op's results: the parameter and its moments among `in`
};

bool any_host(const Builder& b, const Update& u) {
  return std::any_of(u.in.begin(), u.in.end(), [&](Value v) { return b.type(v).host; });
}

// What of the update lies in host memory, fetched.
Update fetched(Builder& b, Update u) {
  for (Value& v : u.in)
    if (b.type(v).host) v = transferred(b, "fetch", v);
  return u;
}

// The results of an update that `ready` has fetched, in host memory again where `u` has them there.
ops::Values updated(Builder& b, std::string_view kind, const Update& u, const Update& ready) {
  ops::Values out = b.add_all(kind, ready.in, u.attrs);
  for (size_t r = 0; r < out.size(); ++r)
    if (b.type(u.in[u.replaced[r]]).host) out[r] = transferred(b, "offload", out[r]);
  return out;
}

// Updates of stacks of `trip` layers, in one loop over them.
std::vector<ops::Values> update_layers(Builder& b, std::string_view kind, int64_t trip,
                                       const std::vector<const Update*>& updates) {
  auto body = std::make_shared<Graph>();
  body->name = "update_layer";
  Builder inner(*body);
  Node scan;
  scan.kind = "scan";
  scan.tag = b.tag;
  ir::Scan shape{.trip = trip};
  // Rows of stacks first, then the scalars, which all updates share.
  std::map<Value, Value> map;
  for (const bool rows : {true, false}) {
    for (const Update* u : updates) {
      for (size_t i = 0; i < u->in.size(); ++i) {
        const Value v = u->in[i];
        ir::Type t = b.type(v);
        if ((t.rank() > 0) != rows || map.contains(v)) continue;
        if (rows) {
          t.dims.erase(t.dims.begin());
          if (!t.names.empty()) t.names.erase(t.names.begin());
        }
        map[v] = body->param(rows ? fmt::format("{} {}", u->name, i) : fmt::format("scalar {}", i), t);
        scan.inputs.push_back(v);
        ++(rows ? shape.sliced : shape.invariant);
      }
    }
  }
  for (const Update* u : updates) {
    Update row = *u;
    for (Value& v : row.in) v = map.at(v);
    inner.tag = b.tag;
    inner.tag.path += "/" + u->name;
    const ops::Values out = updated(inner, kind, row, fetched(inner, row));
    for (size_t r = 0; r < out.size(); ++r) {
      const Value stack = u->in[u->replaced[r]];
      body->output(fmt::format("{} {}", u->name, r), out[r]);
      scan.types.push_back(b.type(stack));
      ++shape.stacked;
    }
  }
  scan.attrs = ir::scan_attrs(shape);
  scan.body = std::move(body);
  const ops::Values all = b.graph().results(b.graph().add(std::move(scan)));
  std::vector<ops::Values> out;
  auto next = all.begin();
  for (const Update* u : updates) {
    out.emplace_back(next, next + static_cast<std::ptrdiff_t>(u->replaced.size()));
    next += static_cast<std::ptrdiff_t>(u->replaced.size());
  }
  return out;
}

// The results of all updates. Of those in host memory the layers' come first.
std::vector<ops::Values> update_all(Builder& b, std::string_view kind, const std::vector<Update>& updates) {
  std::vector<ops::Values> out(updates.size());
  std::map<int64_t, std::vector<size_t>> stacked;  // by the number of layers
  std::vector<size_t> whole;
  for (size_t i = 0; i < updates.size(); ++i) {
    const ir::Type& type = b.type(updates[i].in[0]);
    if (!any_host(b, updates[i])) {
      out[i] = updated(b, kind, updates[i], updates[i]);
    } else if (is_stack(type)) {
      stacked[type.dims[0]].push_back(i);
    } else {
      whole.push_back(i);
    }
  }
  for (const auto& [trip, members] : stacked) {
    std::vector<const Update*> those;
    for (const size_t i : members) those.push_back(&updates[i]);
    std::vector<ops::Values> made = update_layers(b, kind, trip, those);
    for (size_t k = 0; k < members.size(); ++k) out[members[k]] = std::move(made[k]);
  }
  const std::string path = b.tag.path;
  const auto at = [&](size_t k) -> const Update& {
    b.tag.path = path + "/" + updates[whole[k]].name;  // equal copies are not one
    return updates[whole[k]];
  };
  std::optional<Update> ready;
  for (size_t k = 0; k < whole.size(); ++k) {
    if (!ready) ready = fetched(b, at(k));
    std::optional<Update> next;
    if (k + 1 < whole.size()) next = fetched(b, at(k + 1));
    out[whole[k]] = updated(b, kind, at(k), *ready);
    ready = std::move(next);
  }
  b.tag.path = path;
  return out;
}

}  // namespace

Graph accumulate(const Graph& step, int64_t n) {
  if (n == 1) return step;
  auto body = std::make_shared<Graph>();
  body->name = "micro_step";
  Builder inner(*body);
  Graph g;
  g.name = step.name;
  Builder b(g);
  b.tag.path = "gradient_accumulation";
  b.tag.role = ir::Role::update;

  // Outer params in the old order. Body params: carries (sums), sliced (batch), invariant (the rest).
  std::vector<Value> outer;
  std::vector<bool> batch;
  for (int64_t i = 0; i < static_cast<int64_t>(step.params().size()); ++i) {
    ir::Type t = step.type(step.param_value(i));
    batch.push_back(t.dtype == DType::i32);
    if (batch.back()) {
      t.dims.insert(t.dims.begin(), n);
      if (!t.names.empty()) t.names.insert(t.names.begin(), "");
    }
    outer.push_back(g.param(step.param_name(i), std::move(t)));
  }
  Node scan;
  scan.kind = "scan";
  scan.tag = b.tag;
  std::vector<Value> sums;
  for (const ir::Output& o : step.outputs()) {
    const ir::Type& type = step.type(o.value);
    LIGNUM_CHECK(type.dtype == DType::f32, "{} is summed and is {}", o.name, ir::to_string(type));
    // A path of its own: equal zeros would be one node, and each sum takes its zero's buffer.
    b.tag.path = "gradient_accumulation/" + o.name;
    const Value zero = b.constant(DType::f32, type.dims, 0.0);
    g.set_names(zero, type.names);
    scan.inputs.push_back(zero);
    scan.types.push_back(type);
    sums.push_back(body->param("sum:" + o.name, type));
  }
  std::map<Value, Value> map;
  for (const bool sliced : {true, false}) {
    for (size_t i = 0; i < outer.size(); ++i) {
      if (batch[i] != sliced) continue;
      const Value p = step.param_value(static_cast<int64_t>(i));
      map[p] = body->param(step.param_name(static_cast<int64_t>(i)), step.type(p));
      scan.inputs.push_back(outer[i]);
    }
  }
  for (int32_t id = 0; id < static_cast<int32_t>(step.nodes().size()); ++id)
    if (step.node(id).kind != "param") ir::copy_node(step.node(id), id, *body, map);
  inner.tag = scan.tag;
  for (size_t i = 0; i < sums.size(); ++i) {
    const ir::Output& o = step.outputs()[i];
    const Value sum = inner.elementwise("add", {sums[i], map.at(o.value)});
    body->set_names(sum, step.type(o.value).names);
    body->output(o.name, sum);
  }
  int64_t sliced = 0;
  for (const bool x : batch) sliced += x;
  scan.attrs = ir::scan_attrs(
      {n, false, static_cast<int64_t>(sums.size()), sliced, static_cast<int64_t>(batch.size()) - sliced, 0});
  scan.body = std::move(body);
  const int32_t made = g.add(std::move(scan));
  for (size_t i = 0; i < sums.size(); ++i) g.output(step.outputs()[i].name, {made, static_cast<int32_t>(i)});
  return g;
}

std::vector<Moment> Optimizer::moments() const {
  if (kind == Kind::adamw) return {{"adam_m:", mu_dtype}, {"adam_v:", nu_dtype}};
  if (momentum > 0) return {{"sgd_trace:", DType::f32}};
  return {};
}

std::string describe(const Optimizer& o) {
  if (o.kind == Optimizer::Kind::adamw)
    return fmt::format("adamw, moments {} and {}", dtype_name(o.mu_dtype), dtype_name(o.nu_dtype));
  if (o.momentum == 0) return "sgd";
  return fmt::format("sgd, momentum {}{}", o.momentum, o.nesterov ? " (nesterov)" : "");
}

Graph add_update(const Graph& gradients, const Optimizer& options) {
  Graph g;
  g.name = gradients.name;
  const std::map<Value, Value> map = copy_nodes(gradients, g);
  Builder b(g);
  b.tag.role = ir::Role::update;
  b.tag.path = "optimizer/clip";
  const Value tokens = map.at(find_output(gradients, "tokens"));
  const Value inverse = inverse_tokens(b, tokens);
  const Value loss = b.elementwise("mul", {map.at(find_output(gradients, "loss_sum")), inverse});

  std::vector<std::pair<std::string, Value>> grads;
  for (const ir::Output& o : gradients.outputs())
    if (is_gradient(o.name)) grads.emplace_back(o.name.substr(kGradPrefix.size()), map.at(o.value));
  // Gradients that are sharded alike are summed first: their sum stays open over the ranks, and one scalar is
  // reduced.
  std::map<std::vector<std::string>, Value> by_sharding;
  for (const auto& [name, grad] : grads) {
    const Value s = b.add("sum_squares", {grad});
    const auto [it, fresh] = by_sharding.emplace(sharded_names(g.type(grad)), s);
    if (!fresh) it->second = b.elementwise("add", {it->second, s});
  }
  std::optional<Value> squares;
  for (const auto& [names, s] : by_sharding) squares = squares ? b.elementwise("add", {*squares, s}) : s;
  LIGNUM_CHECK(squares.has_value(), "no gradients");
  const Value norm = b.elementwise("mul", {b.elementwise("sqrt", {*squares}), inverse});
  Value scale = inverse;
  if (options.clip > 0) {
    // min(1, clip / norm): exactly 1 while clipping is inactive, so that it leaves every bit alone.
    const Value coefficient =
        b.elementwise("min", {b.constant(DType::f32, {}, 1.0),
                              b.elementwise("div", {b.constant(DType::f32, {}, options.clip), norm})});
    scale = b.elementwise("mul", {inverse, coefficient});
  }
  // 0 x finite adds nothing; a loss or norm that is not finite makes the scale NaN, and the update's op then
  // leaves the state alone. (min(1, clip / norm) alone would turn an infinite norm into a step of zero
  // gradients.)
  Value suspect = b.elementwise("add", {loss, norm});
  if (options.limits) {
    // 1 / (value <= limit): 1, or infinity above the limit.
    const std::pair<std::string_view, Value> limited[] = {{"loss_limit", loss}, {"grad_norm_limit", norm}};
    for (const auto& [name, value] : limited) {
      const Value limit = g.param(std::string(name), {DType::f32, {}, {}});
      const Value within = b.convert(b.elementwise("le", {value, limit}), DType::f32);
      const Value one = b.constant(DType::f32, {}, 1.0);
      suspect = b.elementwise("add", {suspect, b.elementwise("div", {one, within})});
    }
  }
  const Value poison = b.elementwise("mul", {b.constant(DType::f32, {}, 0.0), suspect});
  scale = b.elementwise("add", {scale, poison});
  const bool adamw = options.kind == Optimizer::Kind::adamw;
  const Value learning_rate = g.param("learning_rate", {DType::f32, {}, {}});
  const Value step = g.param("step", {DType::i32, {}, {}});
  g.output("loss", loss);
  g.output("tokens", tokens);
  g.output("grad_norm", norm);
  if (const auto z = output_of(gradients, "z_loss_sum"))
    g.output("z_loss", b.elementwise("mul", {map.at(*z), inverse}));
  b.tag.path = adamw ? "optimizer/adamw" : "optimizer/sgd";
  const auto param_index = [&](std::string_view name) {
    for (int64_t i = 0; i < static_cast<int64_t>(g.params().size()); ++i)
      if (g.param_name(i) == name) return static_cast<int32_t>(i);
    LIGNUM_CHECK(false, "no param {}", name);
  };
  std::vector<Update> updates;
  std::vector<std::vector<int32_t>> params;  // that the results of each replace
  for (const auto& [name, grad] : grads) {
    const int32_t p = param_index(name);
    const ir::Type type = g.type(g.param_value(p));
    params.push_back({p});
    ops::Values moments;
    for (const Moment& m : options.moments()) {
      ir::Type t = type;
      t.dtype = m.dtype;
      t.host = options.offloaded;
      params.back().push_back(static_cast<int32_t>(g.params().size()));
      moments.push_back(g.param(std::string(m.prefix) + name, std::move(t)));
    }
    Update u{name, {g.param_value(p)}, {}, {0}};
    if (adamw) {
      u.in.insert(u.in.end(), {moments[0], moments[1], grad, learning_rate, step, scale});
      u.replaced = {0, 1, 2};
      u.attrs = {{"b1", options.b1},
                 {"b2", options.b2},
                 {"eps", options.eps},
                 {"eps_root", options.eps_root},
                 {"weight_decay", options.decays(name) ? options.weight_decay : 0.0}};
    } else {
      u.in.insert(u.in.end(), {grad, learning_rate, scale});
      for (const Value m : moments) {
        u.replaced.push_back(u.in.size());
        u.in.push_back(m);
      }
      u.attrs = {{"momentum", options.momentum}, {"nesterov", options.nesterov}};
    }
    updates.push_back(std::move(u));
  }
  const std::vector<ops::Values> results = update_all(b, adamw ? "adamw_update" : "sgd_update", updates);
  for (size_t i = 0; i < results.size(); ++i)
    for (size_t r = 0; r < results[i].size(); ++r)
      g.output(g.param_name(params[i][r]), results[i][r], params[i][r]);
  keep_watched(gradients, map, g);
  return g;
}

Graph add_mean_gradients(const Graph& gradients) {
  Graph g;
  g.name = gradients.name;
  const std::map<Value, Value> map = copy_nodes(gradients, g);
  Builder b(g);
  b.tag.role = ir::Role::update;
  b.tag.path = "mean";
  const Value tokens = map.at(find_output(gradients, "tokens"));
  const Value inverse = inverse_tokens(b, tokens);
  g.output("loss", b.elementwise("mul", {map.at(find_output(gradients, "loss_sum")), inverse}));
  g.output("tokens", tokens);
  for (const ir::Output& o : gradients.outputs()) {
    if (o.name == "logits") g.output(o.name, map.at(o.value));
    if (!is_gradient(o.name)) continue;
    const Value grad = map.at(o.value);
    const ir::Type type = g.type(grad);
    // Sharded like the gradient, by the same names; the path keeps equal shapes of other parameters apart.
    b.tag.path = "mean/" + o.name;
    const Value factor = b.splat(inverse, type);
    g.set_names(factor, type.names);
    const Value mean = b.elementwise("mul", {grad, factor});
    g.set_names(mean, type.names);
    g.output(o.name, mean);
  }
  keep_watched(gradients, map, g);
  return g;
}

}  // namespace lignum::passes
