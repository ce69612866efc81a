#include "passes/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/status.h"

namespace lignum::passes {
namespace {

using Kind = TickWork::Kind;

// What a stage does, in order, in 1F1B.
std::vector<TickWork> stage_order(const Pipeline& p, int64_t stage) {
  std::vector<TickWork> order;
  const int64_t ahead = std::min(p.microbatches, p.stages - 1 - stage);
  for (int64_t i = 0; i < p.microbatches + ahead; ++i) {
    if (i < p.microbatches) order.push_back({Kind::forward, i, 0});
    if (i >= ahead) order.push_back({Kind::backward, i - ahead, 0});
  }
  return order;
}

}  // namespace

double Pipeline::bubble() const {
  return static_cast<double>(stages - 1) / static_cast<double>(repeats * microbatches + stages - 1);
}

TickTable fill_and_drain(const Pipeline& p) {
  LIGNUM_CHECK(p.repeats == 1 || p.microbatches >= p.stages, "{} repeats of {} microbatches on {} stages",
               p.repeats, p.microbatches, p.stages);
  const int64_t work = p.repeats * p.microbatches, ticks = work + p.stages - 1;
  TickTable table(static_cast<size_t>(ticks), std::vector<TickWork>(static_cast<size_t>(p.stages)));
  for (int64_t t = 0; t < ticks; ++t) {
    for (int64_t stage = 0; stage < p.stages; ++stage) {
      const int64_t k = t - stage;
      if (k < 0 || k >= work) continue;
      table[static_cast<size_t>(t)][static_cast<size_t>(stage)] = {
          Kind::forward, p.microbatches - 1 - k % p.microbatches, k / p.microbatches};
    }
  }
  for (int64_t t = ticks - 1; t >= 0; --t) {
    table.push_back(table[static_cast<size_t>(t)]);
    for (TickWork& w : table.back())
      if (w.kind == Kind::forward) w.kind = Kind::backward;
  }
  return table;
}

TickTable one_forward_one_backward(const Pipeline& p) {
  LIGNUM_CHECK(p.repeats == 1, "1F1B of {} repeats", p.repeats);
  std::vector<std::vector<TickWork>> orders;
  for (int64_t stage = 0; stage < p.stages; ++stage) orders.push_back(stage_order(p, stage));
  std::vector<size_t> next(orders.size(), 0);
  std::map<std::pair<Kind, int64_t>, std::set<int64_t>> done;  // stages, by direction and microbatch
  TickTable table;
  while (table.size() < 4 * static_cast<size_t>(p.microbatches + p.stages)) {
    std::vector<TickWork> tick(orders.size());
    for (int64_t stage = 0; stage < p.stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      if (next[s] == orders[s].size()) continue;
      const TickWork& w = orders[s][next[s]];
      const bool forward = w.kind == Kind::forward, first = stage == (forward ? 0 : p.stages - 1);
      if (first || done[{w.kind, w.microbatch}].contains(stage + (forward ? -1 : 1))) tick[s] = w;
    }
    bool any = false;
    for (int64_t stage = 0; stage < p.stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      if (tick[s].kind == Kind::idle) continue;
      any = true;
      ++next[s];
      done[{tick[s].kind, tick[s].microbatch}].insert(stage);
    }
    if (!any) break;
    table.push_back(std::move(tick));
  }
  return table;
}

double idle_share(const TickTable& table) {
  double idle = 0, all = 0;
  for (const auto& tick : table) {
    idle += static_cast<double>(
        std::count_if(tick.begin(), tick.end(), [](const TickWork& w) { return w.kind == Kind::idle; }));
    all += static_cast<double>(tick.size());
  }
  return all > 0 ? idle / all : 0;
}

int64_t most_held(const TickTable& table, size_t stage) {
  int64_t held = 0, most = 0;
  for (const auto& tick : table) {
    if (tick[stage].kind == Kind::forward) most = std::max(most, ++held);
    if (tick[stage].kind == Kind::backward) --held;
  }
  return most;
}

std::string print_table(const TickTable& table) {
  std::string out;
  for (size_t stage = 0; !table.empty() && stage < table[0].size(); ++stage) {
    out += std::to_string(stage);
    for (const auto& tick : table) {
      const TickWork& w = tick[stage];
      out += w.kind == Kind::idle ? " ."
                                  : fmt::format(" {}{}", w.kind == Kind::forward ? 'F' : 'B', w.microbatch);
      if (w.repeat > 0) out += fmt::format("'{}", w.repeat);
    }
    out += '\n';
  }
  return out;
}

TickLoop tick_loop(const Pipeline& p, Kind direction) {
  const bool forward = direction == Kind::forward;
  TickTable table;  // in time
  for (const auto& tick : fill_and_drain(p))
    if (std::any_of(tick.begin(), tick.end(), [&](const TickWork& w) { return w.kind == direction; }))
      table.push_back(tick);
  const auto stages = static_cast<size_t>(p.stages);
  const size_t first = forward ? 0 : stages - 1;
  TickLoop loop;
  for (size_t t = 0; t <= table.size(); ++t) {
    std::vector<int64_t> arrives, reads, microbatches, repeats;
    for (size_t stage = 0; stage < stages; ++stage) {
      const TickWork now = t < table.size() ? table[t][stage] : TickWork{};
      const TickWork sent = t == 0 ? TickWork{} : table[t - 1][(stage + (forward ? stages - 1 : 1)) % stages];
      const bool comes = sent.kind != Kind::idle;
      LIGNUM_CHECK(!comes || stage == first || now.microbatch == sent.microbatch,
                   "microbatch {} waits before stage {}", sent.microbatch, stage);
      arrives.push_back(!comes ? -1 : stage == first ? sent.microbatch : 0);
      reads.push_back(now.kind == Kind::idle ? -1 : stage == first ? now.microbatch : 0);
      microbatches.push_back(now.microbatch);
      repeats.push_back(now.repeat);
    }
    if (t == table.size()) {
      loop.last = std::move(arrives);
      break;
    }
    loop.arrives.push_back(std::move(arrives));
    loop.reads.push_back(std::move(reads));
    loop.microbatches.push_back(std::move(microbatches));
    loop.repeats.push_back(std::move(repeats));
  }
  if (!forward)
    for (TickLoop::Rows* rows : {&loop.arrives, &loop.reads, &loop.microbatches, &loop.repeats})
      std::reverse(rows->begin(), rows->end());
  for (size_t stage = 0; stage < stages; ++stage) loop.holds_all.push_back(stage == first ? 0 : -1);
  return loop;
}

}  // namespace lignum::passes
