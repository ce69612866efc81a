#include "ops/emit.h"

namespace lignum::ops {

std::vector<std::string> emit_node(Emitter& out, const Op& op, const Site& site,
                                   std::span<const std::string> in) {
  if (op.emit != nullptr) return op.emit(EmitCall{out, site, in});
  const ir::Graph graph = decomposition(op, site);
  std::vector<std::vector<std::string>> names(graph.nodes().size());
  const auto name_of = [&](Value v) {
    return names[static_cast<size_t>(v.node)][static_cast<size_t>(v.index)];
  };
  size_t param = 0;
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const ir::Node& node = graph.nodes()[id];
    if (node.kind == "param") {
      names[id] = {in[param++]};
      continue;
    }
    const NodeSite inner(graph, node);
    std::vector<std::string> operands;
    for (const Value v : node.inputs) operands.push_back(name_of(v));
    names[id] = emit_node(out, get_op(node.kind), inner.site, operands);
    LIGNUM_CHECK(names[id].size() == node.types.size(), "{} printed {} results of {}", node.kind,
                 names[id].size(), node.types.size());
  }
  std::vector<std::string> results;
  for (const ir::Output& o : graph.outputs()) results.push_back(name_of(o.value));
  return results;
}

}  // namespace lignum::ops
