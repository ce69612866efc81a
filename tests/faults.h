// Faults planted into a LOCAL step: each keeps it a valid program, and the tracer's checks must see it.
#pragma once

#include <algorithm>
#include <set>

#include "ops/op.h"

namespace lignum::tracer {

// Loop bodies go through `change`; the rest is copied.
inline ir::Graph change_bodies(const ir::Graph& local, const ir::Visit& change) {
  return ir::rewrite(local,
                     [&](ir::Graph& to, int32_t, const ir::Node& node, std::span<const ir::Value> inputs) {
                       std::vector<ir::Value> out;
                       if (node.kind != "scan") return out;
                       ir::Node made = node;
                       made.inputs.assign(inputs.begin(), inputs.end());
                       made.body = std::make_shared<const ir::Graph>(ir::rewrite(*node.body, change));
                       const int32_t id = to.add(std::move(made));
                       for (int32_t r = 0; r < static_cast<int32_t>(node.types.size()); ++r)
                         out.push_back({id, r});
                       return out;
                     });
}

// What a compiler that ignores barriers would see.
inline ir::Graph without_barriers(const ir::Graph& local) {
  return change_bodies(local,
                       [](ir::Graph&, int32_t, const ir::Node& node, std::span<const ir::Value> inputs) {
                         return node.kind == "barrier" ? std::vector<ir::Value>(inputs.begin(), inputs.end())
                                                       : std::vector<ir::Value>();
                       });
}

// Every gather of a sliced weight moves in front of its loop: the whole stack is gathered at once.
class HoistGathers {
 public:
  static ir::Graph run(const ir::Graph& local) {
    return ir::rewrite(local,
                       [](ir::Graph& to, int32_t, const ir::Node& node, std::span<const ir::Value> inputs) {
                         std::vector<ir::Value> out;
                         if (node.kind != "scan") return out;
                         const int32_t id = HoistGathers(to, node, inputs).scan();
                         for (int32_t r = 0; r < static_cast<int32_t>(node.types.size()); ++r)
                           out.push_back({id, r});
                         return out;
                       });
  }

 private:
  HoistGathers(ir::Graph& to, const ir::Node& node, std::span<const ir::Value> inputs)
      : to_(to), node_(node), scan_(ir::scan_of(node)), inputs_(inputs.begin(), inputs.end()) {}

  int32_t scan() {
    const ir::Graph& old = *node_.body;
    for (int32_t id = 0; id < static_cast<int32_t>(old.nodes().size()); ++id)
      if (old.node(id).kind == "await") hoist(old, id);
    auto body = std::make_shared<ir::Graph>();
    body->name = old.name;
    body->stage = old.stage;
    std::map<ir::Value, ir::Value> map;
    int64_t p = 0;
    for (int32_t id = 0; id < static_cast<int32_t>(old.nodes().size()); ++id) {
      ir::Node n = old.node(id);
      if (n.kind == "param") {
        const ir::Type type = gathered_.contains(id) ? old.type(gathered_.at(id)) : n.types[0];
        map[{id, 0}] = body->param(old.param_name(p++), type);
        continue;
      }
      if (skipped_.contains(id)) continue;
      for (ir::Value& v : n.inputs) v = map.at(v);
      const auto results = static_cast<int32_t>(n.types.size());
      const int32_t made = body->add(std::move(n));
      for (int32_t r = 0; r < results; ++r) map[{id, r}] = {made, r};
      for (const auto& [param, await] : gathered_) map[await] = map[{param, 0}];
    }
    for (const ir::Output& o : old.outputs()) body->output(o.name, map.at(o.value));
    ir::Node made = node_;
    made.inputs = inputs_;
    made.body = std::move(body);
    return to_.add(std::move(made));
  }

  // await <- all_gather <- converts <- sliced param, nobody else reading any of them.
  void hoist(const ir::Graph& old, int32_t await) {
    const int32_t gather = old.node(await).inputs[0].node;
    if (old.node(gather).kind != "all_gather") return;
    std::vector<int32_t> chain = {gather};
    int32_t at = old.node(gather).inputs[0].node;
    while (old.node(at).kind == "convert") {
      chain.push_back(at);
      at = old.node(at).inputs[0].node;
    }
    const auto index = std::find(old.params().begin(), old.params().end(), at) - old.params().begin();
    if (index < scan_.carry || index >= scan_.carry + scan_.sliced) return;
    ops::Builder build(to_);
    build.tag = old.node(gather).tag;
    ir::Value& stack = inputs_[static_cast<size_t>(index)];
    for (auto step = chain.rbegin(); step != chain.rend(); ++step) {
      const ir::Node& n = old.node(*step);
      if (n.kind == "convert") {
        stack = build.convert(stack, n.types[0].dtype);
        continue;
      }
      ir::Attrs attrs = n.attrs;
      attrs.set("dim", n.attrs.get<int64_t>("dim") + 1);
      stack = build.add("await", {build.add("all_gather", {stack}, attrs)});
    }
    skipped_.insert(chain.begin(), chain.end());
    skipped_.insert(await);
    gathered_[at] = {await, 0};
  }

  ir::Graph& to_;
  const ir::Node& node_;
  const ir::Scan scan_;
  std::vector<ir::Value> inputs_;
  std::set<int32_t> skipped_;
  std::map<int32_t, ir::Value> gathered_;  // param of the old body -> the value it now is
};

}  // namespace lignum::tracer
