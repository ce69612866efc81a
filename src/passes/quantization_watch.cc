#include "passes/quantization_watch.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "ops/op.h"
#include "ops/quantize/quantised.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Role;
using ir::Value;
using Dims = std::vector<int64_t>;

// quantize, however it rounds.
bool is_quotient(const Node& n) { return n.kind.starts_with("quantize"); }

class Watcher {
 public:
  Watcher(const WatchOptions& options, std::vector<WatchedOperand>& operands)
      : options_(options), operands_(operands) {}

  // The loop whose body it is, or null. New outputs follow the graph's own.
  Graph run(const Graph& from, const Node* loop) {
    std::vector<std::pair<std::string, Value>> made;
    const std::map<int32_t, std::vector<const Node*>> readers = readers_of(from);
    Graph out = ir::rewrite(
        from,
        [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
          if (node.kind == "scan") return scan(to, node, inputs, made);
          if (!is_quotient(node) || !readers.contains(id)) return {};
          Node copy = node;
          copy.inputs.assign(inputs.begin(), inputs.end());
          const std::vector<Value> q = to.results(to.add(std::move(copy)));
          watch(to, q[0], readers.at(id), loop, made);
          return q;
        });
    for (auto& [name, value] : made) out.output(std::move(name), value);
    return out;
  }

 private:
  using Made = std::vector<std::pair<std::string, Value>>;

  // The dots that read each quotient. A copy that the backward pass makes of either is no operand of its own.
  static std::map<int32_t, std::vector<const Node*>> readers_of(const Graph& g) {
    std::map<int32_t, std::vector<const Node*>> readers;
    for (const Node& n : g.nodes()) {
      if (n.kind != "scaled_matmul" || n.tag.role == Role::remat) continue;
      for (const size_t i : {size_t{0}, size_t{1}}) {
        const Node& q = g.node(n.inputs[i]);
        if (is_quotient(q) && q.tag.role != Role::remat) readers[n.inputs[i].node].push_back(&n);
      }
    }
    return readers;
  }

  std::vector<Value> scan(Graph& to, const Node& node, std::span<const Value> inputs, Made& made) {
    Node scan = node;
    scan.inputs.assign(inputs.begin(), inputs.end());
    ir::Scan s = ir::scan_of(node);
    auto body = std::make_shared<Graph>(run(*node.body, &node));
    for (size_t i = node.types.size(); i < body->outputs().size(); ++i) {
      ir::Type type = body->type(body->outputs()[i].value);
      type.dims.insert(type.dims.begin(), s.trip);
      scan.types.push_back(std::move(type));
      ++s.stacked;
    }
    scan.attrs = ir::scan_attrs(s);
    scan.body = body;
    std::vector<Value> results = to.results(to.add(std::move(scan)));
    for (size_t i = node.types.size(); i < results.size(); ++i)
      made.emplace_back(body->outputs()[i].name, results[i]);
    results.resize(node.types.size());
    return results;
  }

  // Whether it is a parameter, as it is or cast: carries of a loop are none.
  static bool is_weight(const Graph& g, Value v, const Node* loop) {
    while (g.node(v).kind == "convert") v = g.node(v).inputs[0];
    const auto at = std::find(g.params().begin(), g.params().end(), v.node);
    return at != g.params().end() &&
           at - g.params().begin() >= (loop != nullptr ? ir::scan_of(*loop).carry : 0);
  }

  void watch(Graph& to, Value q, const std::vector<const Node*>& readers, const Node* loop, Made& made) {
    const Node quotient = to.node(q);
    const Value x = quotient.inputs[0], scale = quotient.inputs[1];
    WatchedOperand o;
    std::set<Role> roles;
    for (const Node* reader : readers) {
      roles.insert(reader->tag.role);
      if (std::find(o.dots.begin(), o.dots.end(), reader->tag.path) == o.dots.end())
        o.dots.push_back(reader->tag.path);
    }
    if (quotient.tag.role == Role::forward)
      o.operand = is_weight(to, x, loop) ? "weight" : "act";
    else if (quotient.tag.name == ops::kResidualName)
      o.operand = "residual";
    else
      o.operand = roles.size() > 1 ? "bwd" : std::string(ir::role_name(*roles.begin()));
    o.format = to.type(q).dtype;
    o.elements = static_cast<double>(to.type(q).elements());
    const ir::Tag& tag = readers.front()->tag;
    if (loop != nullptr) {
      o.rows = ir::scan_of(*loop).trip;
      o.first_layer = tag.layer_begin;
      o.stride = (tag.layer_end - tag.layer_begin) / o.rows;
    }
    const std::string name = fmt::format("{}:{}{}", o.operand, tag.path,
                                         o.first_layer > 0 ? fmt::format("@{}", o.first_layer) : "");
    const auto output = [&](std::string_view what, Value v) {
      made.emplace_back(fmt::format("{}{}:{}", kWatchPrefix, what, name), v);
      return made.back().first;
    };
    ops::Builder b(to);
    b.tag = tag;
    b.tag.role = quotient.tag.role;
    b.tag.name.clear();
    const auto largest = [&](Value v) {
      const Dims ones(to.type(v).dims.size(), 1);
      return b.convert(b.reshape(b.add("absmax", {v}, {{"dims", ones}}), {}), DType::f32);
    };
    if (options_.errors) {
      o.error = output("error", b.add("quantization_error", {x, q, scale}));
      o.scale = output("scale", largest(scale));
    }
    if (options_.ranges)
      o.range = output("range", largest(to.node(x).kind == "scale_tiles" ? to.node(x).inputs[0] : x));
    operands_.push_back(std::move(o));
  }

  const WatchOptions& options_;
  std::vector<WatchedOperand>& operands_;
};

}  // namespace

Watched watch_quantization(const Graph& step, const WatchOptions& options) {
  Watched out;
  out.graph = Watcher(options, out.operands).run(step, nullptr);
  return out;
}

}  // namespace lignum::passes
