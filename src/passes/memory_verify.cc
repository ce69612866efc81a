// That no two buffers meet, and that every value has a place.
#include <algorithm>
#include <functional>

#include "passes/memory.h"
#include "passes/packing.h"

namespace lignum::passes {
namespace {

// Iteration by iteration: the rows that are written against those that are still to be read. The two must
// live together in that one loop alone.
bool rows_apart(const Allocation& written, const Allocation& read) {
  const RowLife &w = written.written, &r = read.read;
  if (w.loop < 0 || w.loop != r.loop || written.first != read.last) return false;
  for (int64_t i = 0; i < w.rows; ++i) {
    // Row i is written and row i still read; towards the end of the loop's way lie the rows to be read.
    const int64_t first_written = w.reversed ? i : 0, last_written = w.reversed ? w.rows - 1 : i;
    const int64_t first_read = w.reversed ? 0 : i, last_read = w.reversed ? i : w.rows - 1;
    if (written.base + first_written * w.row_bytes < read.base + (last_read + 1) * r.row_bytes &&
        read.base + first_read * r.row_bytes < written.base + (last_written + 1) * w.row_bytes)
      return false;
  }
  return true;
}

}  // namespace

Status verify_memory(const Scheduled& step, const MemoryPlan& plan) {
  for (size_t i = 0; i < plan.allocations.size(); ++i) {
    const Allocation& a = plan.allocations[i];
    const int64_t begin = a.host ? plan.host_state_bytes : plan.state_bytes,
                  end = a.host ? plan.host_bytes : plan.arena_bytes;
    if (a.base < begin || a.base + a.bytes > end)
      return internal_error("{} lies at {}..{}, outside {}..{}", a.what, a.base, a.base + a.bytes, begin,
                            end);
    if (a.base % kAlign != 0)
      return internal_error("{} lies at {}, no multiple of {}", a.what, a.base, kAlign);
    for (size_t j = 0; j < i; ++j) {
      const Allocation& b = plan.allocations[j];
      const bool together = a.host == b.host && a.frame == b.frame && a.first <= b.last && b.first <= a.last;
      if (together && shared_bytes(a, b) > 0 && !rows_apart(a, b) && !rows_apart(b, a))
        return internal_error("{} and {} overlap at {}", a.what, b.what, std::max(a.base, b.base));
    }
  }
  // Every value of every graph has a place, inside the arena for all iterations.
  const std::function<Status(const Scheduled&, const Layout&, std::vector<int64_t>)> check =
      [&](const Scheduled& s, const Layout& layout, std::vector<int64_t> trips) -> Status {
    for (int32_t id = 0; id < static_cast<int32_t>(s.graph->nodes().size()); ++id) {
      for (int32_t r = 0; r < static_cast<int32_t>(s.graph->node(id).types.size()); ++r) {
        const auto p = layout.places.find({id, r});
        if (p == layout.places.end()) return internal_error("%{}#{} has no place", id, r);
        int64_t last = p->second.base + s.graph->node(id).types[static_cast<size_t>(r)].bytes();
        for (const Term& t : p->second.terms) {
          if (t.depth < 0 || t.depth >= static_cast<int>(trips.size()))
            return internal_error("%{}#{} moves with loop {} of {}", id, r, t.depth, trips.size());
          last += t.stride * ((t.modulus > 0 ? t.modulus : trips[static_cast<size_t>(t.depth)]) - 1);
        }
        if (const int64_t end = p->second.host ? plan.host_bytes : plan.arena_bytes;
            p->second.base < 0 || last > end)
          return internal_error("%{}#{} ends at {} of {}", id, r, last, end);
        if (p->second.host != s.graph->type({id, r}).host)
          return internal_error("%{}#{} lies in the wrong memory", id, r);
      }
    }
    for (const Copy& c : layout.at_end)
      if (c.from.host || c.to.host) return internal_error("{} is copied inside host memory", c.what);
    for (const auto& [id, body] : s.bodies) {
      std::vector<int64_t> inner = trips;
      inner.push_back(ir::scan_of(s.graph->node(id)).trip);
      LIGNUM_RETURN_IF_ERROR(
          check(body, layout.bodies.at(id), inner).with_context(fmt::format("%{} = scan", id)));
    }
    return {};
  };
  return check(step, plan.layout, {});
}

}  // namespace lignum::passes
