#include "exec/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lignum::exec {

size_t event_count(const passes::Scheduled& step) {
  size_t n = 0;
  for (const passes::Slot& slot : step.order) {
    const auto body = step.bodies.find(slot.node);
    n += body == step.bodies.end()
             ? 1
             : static_cast<size_t>(ir::scan_of(step.graph->node(slot.node)).trip) * event_count(body->second);
  }
  return n;
}

std::string chrome_json(const std::vector<const Trace*>& ranks) {
  using nlohmann::json;
  int64_t begin = INT64_MAX;
  for (const Trace* t : ranks)
    for (const Event& e : t->events()) begin = std::min(begin, e.time.start_ns);
  json events = json::array();
  for (const Trace* t : ranks) {
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", t->rank()},
                      {"args", {{"name", fmt::format("rank {}", t->rank())}}}});
    for (const auto& [tid, name] :
         {std::pair{0, "compute"}, std::pair{1, "communication"}, std::pair{2, "copy"}})
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", t->rank()},
                        {"tid", tid},
                        {"args", {{"name", name}}}});
    for (const Event& e : t->events()) {
      const ir::Node& n = e.graph->node(e.node);
      json args = {
          {"id", e.id}, {"origin", n.origin}, {"path", n.tag.path}, {"role", ir::role_name(n.tag.role)}};
      if (e.row >= 0) args["layer"] = e.row;
      if (e.iteration >= 0) args["iteration"] = e.iteration;
      if (e.outer >= 0) args["outer_iteration"] = e.outer;
      events.push_back({{"ph", "X"},
                        {"name", n.kind},
                        {"cat", passes::engine_name(e.engine)},
                        {"pid", t->rank()},
                        {"tid", static_cast<int>(e.engine)},
                        {"ts", static_cast<double>(e.time.start_ns - begin) / 1e3},
                        {"dur", static_cast<double>(e.time.end_ns - e.time.start_ns) / 1e3},
                        {"args", std::move(args)}});
    }
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace lignum::exec
