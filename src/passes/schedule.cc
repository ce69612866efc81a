#include "passes/schedule.h"

#include <algorithm>
#include <functional>
#include <set>

#include "ops/op.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

bool starts(const Node& n) {
  return std::any_of(n.types.begin(), n.types.end(), [](const ir::Type& t) { return t.async; });
}

bool copies(const Graph& g, const Node& n) {
  return starts(n) && n.inputs.size() == 1 && g.type(n.inputs[0]).host != n.types[0].host;
}

// A node all of whose results are views moves no bytes; an await is one too, but it is where waiting happens.
bool free_view(const Graph& g, int32_t id) {
  const Node& n = g.node(id);
  if (n.kind == "param" || n.kind == "scan" || n.kind == "await") return false;
  const ops::NodeSite site(g, n);
  return ops::get_op(n.kind).buffers(site.site).view.size() == n.types.size();
}

// The input that result v is a view of; -1 when its node makes it.
int view_input(const Graph& g, Value v) {
  const Node& n = g.node(v);
  if (n.kind == "param" || n.kind == "scan") return -1;
  const ops::NodeSite site(g, n);
  for (const auto& [result, input] : ops::get_op(n.kind).buffers(site.site).view)
    if (result == v.index) return input;
  return -1;
}

class Scheduler {
 public:
  Scheduler(const Graph& g, const ScheduleOptions& options, const ir::Scan* scan)
      : g_(g), options_(options), scan_(scan) {}

  std::vector<Slot> run() {
    find_shifted();
    for (int32_t id = 0; id < static_cast<int32_t>(g_.nodes().size()); ++id)
      if (g_.node(id).kind != "param" && !free_view(g_, id) && !shifted_.contains(id)) order_.push_back(id);
    if (options_.overlap) {
      for (const int32_t id : std::vector<int32_t>(order_)) {
        if (g_.node(id).kind == "await") sink_await(id);
      }
      for (const int32_t id : std::vector<int32_t>(order_))
        if (starts(g_.node(id))) place_start(id);
    }
    std::vector<Slot> slots;
    for (const auto& [id, shift] : shifted_) slots.push_back({id, shift});
    for (const int32_t id : order_)
      if (!lags(id)) slots.push_back({id, 0});
    for (const int32_t id : order_)
      if (lags(id)) slots.push_back({id, -1});
    for (Slot& s : slots) {
      const Node& n = g_.node(s.node);
      s.engine = copies(g_, n) ? Engine::copy : starts(n) ? Engine::communication : Engine::compute;
    }
    return slots;
  }

 private:
  // The await of a copy to host memory, or of a gradient's sum over ranks, that a body's stack alone takes.
  // Not where it reads a param: the carry is written over at the end of the iteration.
  bool lags(int32_t id) const {
    if (scan_ == nullptr || !options_.overlap || g_.node(id).kind != "await") return false;
    const bool sum = options_.late_sums && options_.prefetch_distance > 0 &&
                     g_.node(g_.node(id).inputs[0]).kind == "reduce_scatter";
    if (!sum && !g_.node(id).types[0].host) return false;
    const Value from = view_root(g_, g_.node(g_.node(id).inputs[0]).inputs[0]);
    return g_.node(from).kind != "param" && first_reader({id, 0}) == order_.size();
  }
  // Gathers that need the layer's weights alone, and what leads to them: for a weight that is quantised by a
  // scale which the ranks find together, that collective too, and its await. A shard that a gather takes from
  // host memory is fetched a layer earlier still.
  void find_shifted() {
    if (scan_ == nullptr) return;
    for (int32_t id = 0; id < static_cast<int32_t>(g_.nodes().size()); ++id) {
      const bool offloads = copies(g_, g_.node(id)) && g_.node(id).types[0].host;
      if (!starts(g_.node(id)) || offloads || fetched_whole(id)) continue;
      std::set<int32_t> cone;
      if (!weights_cone(id, cone)) continue;
      early_.insert(id);
      if (!options_.overlap || options_.prefetch_distance == 0) continue;
      for (const int32_t link : cone) {
        const bool leads = link != id && copies(g_, g_.node(link));
        int64_t& shift = shifted_[link];
        shift = std::max(shift, options_.prefetch_distance + (leads ? 1 : 0));
      }
    }
  }
  // A copy of what no loop slices, outside the layers' loops: there it is as in the outermost graph.
  bool fetched_whole(int32_t id) const { return copies(g_, g_.node(id)) && (scan_ == nullptr || has_loops_); }
  static bool leads_to_gather(const Node& started) {
    return started.kind == "all_reduce" || started.kind == "fetch";
  }
  bool weights_cone(int32_t id, std::set<int32_t>& cone) {
    for (Value v : g_.node(id).inputs) {
      for (int in = view_input(g_, v); in >= 0 && g_.node(v).kind != "await"; in = view_input(g_, v))
        v = g_.node(v).inputs[static_cast<size_t>(in)];
      const Node& n = g_.node(v);
      if (n.kind == "param") {
        if (std::find(g_.params().begin(), g_.params().begin() + scan_->carry, v.node) !=
            g_.params().begin() + scan_->carry)
          return false;
      } else if (n.kind == "scan" || (n.kind == "await" && !leads_to_gather(g_.node(n.inputs[0]))) ||
                 !weights_cone(v.node, cone)) {
        return false;
      }
    }
    cone.insert(id);
    return true;
  }

  size_t position(int32_t id) const {
    return static_cast<size_t>(std::find(order_.begin(), order_.end(), id) - order_.begin());
  }
  bool reads(int32_t id, Value of) const {
    const Node& n = g_.node(id);
    return std::any_of(n.inputs.begin(), n.inputs.end(), [&](Value v) { return depends_view(v, of); });
  }
  bool depends_view(Value v, Value of) const {
    while (true) {
      if (v == of) return true;
      const int in = view_input(g_, v);
      if (in < 0 || g_.node(v).kind == "await") return false;
      v = g_.node(v).inputs[static_cast<size_t>(in)];
    }
  }
  size_t first_reader(Value v) const {
    for (size_t i = 0; i < order_.size(); ++i)
      if (order_[i] > v.node && reads(order_[i], v)) return i;
    return order_.size();
  }
  void move_before(int32_t id, size_t target) {
    const size_t from = position(id);
    LIGNUM_CHECK(from < order_.size(), "%{} is not in the order", id);
    if (target == from || target == from + 1) return;
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(from));
    order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(target > from ? target - 1 : target), id);
  }
  // As late as its first reader allows; a gradient that only the next segment reads is awaited at the end.
  void sink_await(int32_t id) { move_before(id, first_reader({id, 0})); }

  // A sum over ranks starts where its input is made. A gather or fetch of weights that is not shifted starts
  // one loop before its reader, so that it runs under that loop, holds memory no longer than this, and is not
  // in the way of what is read before. What an update fetches starts where it is: before that is the loop
  // which holds most.
  void place_start(int32_t id) {
    const bool whole = scan_ == nullptr || fetched_whole(id);
    const bool gather =
        early_.contains(id) || (whole && g_.node(id).tag.role != ir::Role::update && only_params(id));
    if (!gather) return g_.node(id).kind == "reduce_scatter" ? start_early(id) : void();
    const size_t use = first_reader({id, 0});
    if (!whole) return move_before(id, use);  // distance 0: under nothing
    if (use == order_.size()) return;
    size_t target = use;
    while (target > 0 && g_.node(order_[target]).kind != "scan") --target;
    if (g_.node(order_[target]).kind != "scan") return;  // no loop before its reader: it stays where it is
    // What leads to it (the cast of the shard) moves along.
    std::vector<int32_t> chain;
    collect_chain(id, chain);
    for (const int32_t link : chain) {
      move_before(link, std::min(target, first_reader({link, 0})));
      target = std::max(target, position(link) + 1);
    }
  }
  // A gradient is summed over ranks as soon as it is there, and made as soon as what it needs is: before its
  // layer's gradient by the activations, which the sum then runs under.
  void start_early(int32_t id) {
    const int32_t made_by = maker(g_.node(id).inputs[0]);
    if (made_by < 0) return;
    const Node& n = g_.node(made_by);
    if (n.kind != "await" && n.kind != "scan") {
      size_t ready = 0;
      for (const Value v : n.inputs)
        if (const int32_t from = maker(v); from >= 0) ready = std::max(ready, position(from) + 1);
      if (ready < position(made_by)) move_before(made_by, ready);
    }
    if (position(made_by) + 1 < position(id)) move_before(id, position(made_by) + 1);
  }
  // The slot after which v is there; -1 for an input, or what runs for another iteration.
  int32_t maker(Value v) const {
    for (int in = view_input(g_, v); in >= 0 && g_.node(v).kind != "await"; in = view_input(g_, v))
      v = g_.node(v).inputs[static_cast<size_t>(in)];
    return g_.node(v).kind == "param" || shifted_.contains(v.node) ? -1 : v.node;
  }
  bool only_params(int32_t id) const {
    std::vector<int32_t> chain;
    return collect_chain(id, chain);
  }
  // The nodes that `id` needs, itself last, if it needs nothing but params.
  bool collect_chain(int32_t id, std::vector<int32_t>& chain) const {
    for (const Value v : g_.node(id).inputs) {
      const Value root = view_root(g_, v);
      const Node& n = g_.node(root);
      if (n.kind == "param") continue;
      if (n.kind == "scan" || starts(n) || !collect_chain(root.node, chain)) return false;
    }
    if (std::find(chain.begin(), chain.end(), id) == chain.end()) chain.push_back(id);
    return true;
  }

  const Graph& g_;
  const ScheduleOptions& options_;
  const ir::Scan* scan_;  // the loop that this is the body of
  const bool has_loops_ =
      std::any_of(g_.nodes().begin(), g_.nodes().end(), [](const Node& n) { return n.kind == "scan"; });
  std::map<int32_t, int64_t> shifted_;  // by how many iterations
  std::set<int32_t> early_;             // starts that need weights alone
  std::vector<int32_t> order_;
};

Scheduled schedule_graph(std::shared_ptr<const Graph> graph, const ScheduleOptions& options,
                         const ir::Scan* scan) {
  Scheduled s;
  s.order = Scheduler(*graph, options, scan).run();
  for (int32_t id = 0; id < static_cast<int32_t>(graph->nodes().size()); ++id) {
    if (!graph->node(id).body) continue;
    const ir::Scan inner = ir::scan_of(graph->node(id));
    s.bodies.emplace(id, schedule_graph(graph->node(id).body, options, &inner));
  }
  s.graph = std::move(graph);
  return s;
}

void number(Scheduled& s, int32_t& next) {
  for (Slot& slot : s.order) {
    slot.id = next++;
    const auto body = s.bodies.find(slot.node);
    if (body != s.bodies.end()) number(body->second, next);
  }
}

void print_into(const Scheduled& s, const std::string& indent, std::string& out) {
  for (const Slot& slot : s.order) {
    const Node& n = s.graph->node(slot.node);
    out += fmt::format("{}{}{} {}{} {} {}\n", indent, slot.id,
                       slot.shift != 0 ? fmt::format(" {:+}", slot.shift) : "", n.kind,
                       slot.engine == Engine::compute ? "" : fmt::format(" [{}]", engine_name(slot.engine)),
                       n.tag.path, ir::role_name(n.tag.role));
    const auto body = s.bodies.find(slot.node);
    if (body != s.bodies.end()) print_into(body->second, indent + "  ", out);
  }
}

}  // namespace

std::string_view engine_name(Engine engine) {
  constexpr std::string_view kNames[] = {"compute", "communication", "copy"};
  return kNames[static_cast<size_t>(engine)];
}

Value view_root(const Graph& graph, Value v) {
  for (int in = view_input(graph, v); in >= 0; in = view_input(graph, v))
    v = graph.node(v).inputs[static_cast<size_t>(in)];
  return v;
}

Scheduled schedule(std::shared_ptr<const Graph> local, const ScheduleOptions& options) {
  LIGNUM_CHECK(local->stage == ir::Stage::local, "schedule takes a local graph");
  LIGNUM_CHECK(options.prefetch_distance >= 0, "prefetch_distance {}", options.prefetch_distance);
  Scheduled s = schedule_graph(std::move(local), options, nullptr);
  int32_t next = 0;
  number(s, next);
  return s;
}

Status verify_schedule(const Scheduled& s) {
  const Graph& g = *s.graph;
  // When the value is ready, as (shift, place): a slot of shift d at place p is ready for iteration i at
  // place p of i - d.
  std::map<int32_t, std::pair<int64_t, size_t>> made;
  for (size_t p = 0; p < s.order.size(); ++p) {
    if (!made.emplace(s.order[p].node, std::pair{s.order[p].shift, p}).second)
      return internal_error("%{} is scheduled twice", s.order[p].node);
  }
  for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id) {
    if (g.node(id).kind == "param" || free_view(g, id)) continue;
    const auto at = made.find(id);
    if (at == made.end()) return internal_error("%{} = {} is not scheduled", id, g.node(id).kind);
    for (Value v : g.node(id).inputs) {
      // Through views, but not through an await: that one is a slot of its own.
      for (int in = view_input(g, v); in >= 0 && g.node(v).kind != "await"; in = view_input(g, v))
        v = g.node(v).inputs[static_cast<size_t>(in)];
      if (g.node(v).kind == "param") continue;
      const auto from = made.find(v.node);
      if (from == made.end()) return internal_error("%{} reads %{}, which is not scheduled", id, v.node);
      const auto [shift, place] = at->second;
      const auto [from_shift, from_place] = from->second;
      if (from_shift < shift || (from_shift == shift && from_place >= place))
        return internal_error("%{} = {} (place {}, shift {}) reads %{} = {} (place {}, shift {})", id,
                              g.node(id).kind, place, shift, v.node, g.node(v).kind, from_place, from_shift);
    }
  }
  for (const auto& [id, body] : s.bodies)
    LIGNUM_RETURN_IF_ERROR(verify_schedule(body).with_context(fmt::format("%{} = scan", id)));
  return {};
}

std::string print_schedule(const Scheduled& s) {
  std::string out;
  print_into(s, "", out);
  return out;
}

}  // namespace lignum::passes
