#include "passes/fuse.h"

#include <algorithm>

#include "ir/copy.h"
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

// Whether all readers of v take what a widening convert of it reads; a loop that slices it, if its body does.
bool all_take_narrow(const Graph& g, const Readers& readers, Value v) {
  const auto it = readers.find(v);
  return it != readers.end() && std::all_of(it->second.begin(), it->second.end(), [&](const Reader& r) {
           if (r.node < 0) return false;
           const Node& n = g.node(r.node);
           if (n.kind != "scan") return ops::find_fusion("convert", n.kind, r.input) != nullptr;
           const ir::Scan s = ir::scan_of(n);
           const auto i = static_cast<int64_t>(r.input);
           return i >= s.carry && i < s.carry + s.sliced &&
                  all_take_narrow(*n.body, readers_of(*n.body), n.body->param_value(i));
         });
}

// The loop with the converts of the stacks that it slices in its body, of the rows.
bool sink_into(const Graph& g, Node& scan) {
  const ir::Scan s = ir::scan_of(scan);
  std::vector<int64_t> rows;
  for (int64_t i = s.carry; i < s.carry + s.sliced; ++i) {
    Value& v = scan.inputs[static_cast<size_t>(i)];
    if (!widens(g, v) || g.node(g.node(v).inputs[0]).kind != "scan") continue;
    v = g.node(v).inputs[0];
    rows.push_back(i);
  }
  if (rows.empty()) return false;
  const auto narrow = [](const ir::Type& t) {
    ir::Type row = t;
    row.dtype = DType::bf16;
    return row;
  };
  scan.body = std::make_shared<Graph>(ir::replace_params(*scan.body, rows, narrow, [&](Graph& to, Value row) {
    ops::Builder b(to);
    b.tag = scan.tag;
    b.origin = scan.origin;
    return b.convert(row, DType::f32);
  }));
  return true;
}

// Moves widening converts of stacked results behind their loops where all readers take the narrow form.
Graph sink_converts(const Graph& from) {
  const Readers readers = readers_of(from);
  return ir::rewrite(
      from,
      [&](Graph& to, int32_t id, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
        if (node.kind != "scan") return {};
        const ir::Scan s = ir::scan_of(node);
        Node scan = node;
        scan.inputs.assign(inputs.begin(), inputs.end());
        const bool sunk = sink_into(to, scan);
        auto body = std::make_shared<Graph>(*scan.body);
        std::vector<bool> narrowed(node.types.size(), false);
        for (auto r = static_cast<size_t>(s.carry); r < node.types.size(); ++r) {
          ir::Output& o = body->outputs()[r];
          if (!widens(*body, o.value) || !all_take_narrow(from, readers, {id, static_cast<int32_t>(r)}))
            continue;
          o.value = body->node(o.value).inputs[0];
          scan.types[r].dtype = DType::bf16;
          narrowed[r] = true;
        }
        if (!sunk && std::find(narrowed.begin(), narrowed.end(), true) == narrowed.end()) return {};
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
