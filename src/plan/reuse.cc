#include "plan/reuse.h"

#include <algorithm>

#include "ops/op.h"

namespace lignum::plan {
namespace {

using ir::Value;

struct Operand {
  int64_t begin = 0, end = 0;  // bytes of the arena
  double bytes = 0;            // moved
  bool moves = false;          // lies elsewhere in each iteration
};

struct Move {
  std::vector<Operand> operands;
  double bytes = 0;
};

// All that one run of the block moves.
double traffic(const passes::Scheduled& step) {
  double bytes = 0;
  for (const passes::Slot& slot : step.order) {
    const ir::Node& node = step.graph->node(slot.node);
    if (node.kind == "scan") {
      bytes += static_cast<double>(ir::scan_of(node).trip) * traffic(step.bodies.at(slot.node));
    } else if (node.kind != "await") {
      const ops::NodeSite site(*step.graph, node);
      const ops::Cost cost = ops::get_op(node.kind).cost(site.site);
      if (cost.work != ops::Work::transfer) bytes += cost.read + cost.write;
    }
  }
  return bytes;
}

Move move_of(const passes::Scheduled& step, const passes::Slot& slot, const passes::Layout& layout) {
  const ir::Graph& graph = *step.graph;
  const ir::Node& node = graph.node(slot.node);
  Move move;
  if (node.kind == "await") return move;
  if (node.kind == "scan") {
    move.bytes = static_cast<double>(ir::scan_of(node).trip) * traffic(step.bodies.at(slot.node));
    return move;
  }
  const ops::NodeSite site(graph, node);
  const ops::Cost cost = ops::get_op(node.kind).cost(site.site);
  if (cost.work == ops::Work::transfer) return move;  // past the compute engine's caches
  move.bytes = cost.read + cost.write;
  double in = 0, out = 0;
  for (const ops::Type& t : site.in) in += static_cast<double>(t.bytes());
  for (const ops::Type& t : node.types) out += static_cast<double>(t.bytes());
  const auto add = [&](Value v, double all, double moved) {
    if (all <= 0 || moved <= 0) return;
    const passes::Place& place = layout.places.at(v);
    const int64_t bytes = graph.type(v).bytes();
    const bool moves = std::any_of(place.terms.begin(), place.terms.end(),
                                   [](const passes::Term& t) { return t.modulus == 0 && t.stride != 0; });
    move.operands.push_back(
        {place.base, place.base + bytes, moved * static_cast<double>(bytes) / all, moves || place.base < 0});
  };
  for (const Value v : node.inputs) add(v, in, cost.read);
  for (int32_t r = 0; r < static_cast<int32_t>(node.types.size()); ++r) add({slot.node, r}, out, cost.write);
  return move;
}

}  // namespace

std::vector<std::vector<Traffic>> reuse(const passes::Scheduled& step, const passes::Layout& layout,
                                        int64_t trip) {
  std::vector<Move> moves;
  double once = 0;
  for (const passes::Slot& slot : step.order) {
    moves.push_back(move_of(step, slot, layout));
    once += moves.back().bytes;
  }
  struct Touch {
    int64_t begin, end;
    double when;
  };
  std::vector<Touch> touches;
  std::vector<std::vector<Traffic>> all(moves.size());
  double now = 0;
  // Twice: the second time everything has been touched that an iteration touches.
  for (const bool second : {false, true}) {
    for (size_t i = 0; i < moves.size(); ++i) {
      const Move& move = moves[i];
      now += move.bytes;
      for (const Operand& o : move.operands) {
        if (!second) continue;
        const auto last = std::find_if(touches.rbegin(), touches.rend(),
                                       [&](const Touch& t) { return t.begin < o.end && o.begin < t.end; });
        const bool known = !o.moves && last != touches.rend();
        all[i].push_back({o.bytes / move.bytes, known ? now - last->when : once * static_cast<double>(trip)});
      }
      for (const Operand& o : move.operands)
        if (!o.moves) touches.push_back({o.begin, o.end, now});
    }
  }
  return all;
}

}  // namespace lignum::plan
