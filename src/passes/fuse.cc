#include "passes/fuse.h"

#include <algorithm>

#include "ops/fusion.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

struct Reader {
  int32_t node;  // -1: an output of the graph
  size_t input;
};
using Readers = std::map<Value, std::vector<Reader>>;

Readers readers_of(const Graph& g) {
  Readers readers;
  for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id)
    for (size_t i = 0; i < g.node(id).inputs.size(); ++i) readers[g.node(id).inputs[i]].push_back({id, i});
  for (const ir::Output& o : g.outputs()) readers[o.value].push_back({-1, 0});
  return readers;
}

bool widens(const Graph& g, Value v) {
  const Node& n = g.node(v);
  return n.kind == "convert" && n.types[0].dtype == DType::f32 && g.type(n.inputs[0]).dtype == DType::bf16;
}

// Moves widening converts of stacked results behind their loops where all readers take the narrow form.
Graph sink_converts(const Graph& from) {
  const Readers readers = readers_of(from);
  const auto all_fuse = [&](Value v) {
    const auto it = readers.find(v);
    return it != readers.end() && std::all_of(it->second.begin(), it->second.end(), [&](const Reader& r) {
             return r.node >= 0 && ops::find_fusion("convert", from.node(r.node).kind, r.input) != nullptr;
           });
  };
  return ir::rewrite(
      from,
      [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (node.kind != "scan") return {};
        const ir::Scan s = ir::scan_of(node);
        Node scan = node;
        scan.inputs.assign(inputs.begin(), inputs.end());
        auto body = std::make_shared<Graph>(*node.body);
        std::vector<bool> narrowed(node.types.size(), false);
        for (auto r = static_cast<size_t>(s.carry); r < node.types.size(); ++r) {
          ir::Output& o = body->outputs()[r];
          if (!widens(*body, o.value) || !all_fuse({id, static_cast<int32_t>(r)})) continue;
          o.value = body->node(o.value).inputs[0];
          scan.types[r].dtype = DType::bf16;
          narrowed[r] = true;
        }
        if (std::find(narrowed.begin(), narrowed.end(), true) == narrowed.end()) return {};
        scan.body = std::move(body);
        ops::Builder b(to);
        b.tag = node.tag;
        b.origin = node.origin;
        std::vector<Value> out = to.results(to.add(std::move(scan)));
        for (size_t r = 0; r < out.size(); ++r)
          if (narrowed[r]) out[r] = b.convert(out[r], DType::f32);
        return out;
      });
}

// The fusion of a node with the producer of one of its inputs, if there is one.
std::optional<Node> fused(const Graph& from, const Readers& readers, const Graph& to, const Node& node,
                          std::span<const Value> inputs) {
  const ops::NodeSite consumer(from, node);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Value v = node.inputs[i];
    const Node& producer = from.node(v);
    const ops::Fusion* f = ops::find_fusion(producer.kind, node.kind, i);
    if (f == nullptr || (f->alone && readers.at(v).size() != 1)) continue;
    const ops::NodeSite site(from, producer);
    std::optional<ir::Attrs> attrs = f->attrs(site.site, consumer.site);
    if (!attrs) continue;
    Node n = node;
    n.kind = f->kind;
    n.attrs = std::move(*attrs);
    n.inputs.assign(inputs.begin(), inputs.end());
    // The producer was copied into `to`, with the inputs that it has there.
    const std::vector<Value> replacing = to.node(inputs[i]).inputs;
    n.inputs.erase(n.inputs.begin() + static_cast<std::ptrdiff_t>(i));
    n.inputs.insert(n.inputs.begin() + static_cast<std::ptrdiff_t>(i), replacing.begin(), replacing.end());
    return n;
  }
  return std::nullopt;
}

Graph fuse_pairs(const Graph& from) {
  const Readers readers = readers_of(from);
  return ir::rewrite(
      from, [&](Graph& to, int32_t, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        Node n = node;
        n.inputs.assign(inputs.begin(), inputs.end());
        if (node.kind == "scan") {
          n.body = std::make_shared<Graph>(fuse(*node.body));
        } else if (std::optional<Node> one = fused(from, readers, to, node, inputs)) {
          n = std::move(*one);
        } else {
          return {};
        }
        return to.results(to.add(std::move(n)));
      });
}

}  // namespace

Graph fuse(const Graph& local) { return ir::prune(fuse_pairs(sink_converts(local))); }

}  // namespace lignum::passes
