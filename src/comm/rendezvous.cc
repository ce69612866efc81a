#include "comm/rendezvous.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "comm/spin.h"

namespace lignum::comm {
namespace {
constexpr uint32_t kEnded = 1;
constexpr uint32_t kPhase = 2;
}  // namespace

Group::Group(std::span<const int> group_ranks)
    : ranks(group_ranks.begin(), group_ranks.end()), members(std::make_unique<Member[]>(group_ranks.size())) {
  for (size_t i = 0; i < ranks.size(); ++i) members[i].parts.resize(ranks.size());
}

Rendezvous::Rendezvous(int ranks) : waits_(ranks), left_(ranks), visited_(ranks) { path_.reserve(ranks + 1); }

Group& Rendezvous::group(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  auto& group = groups_[std::vector<int>(ranks.begin(), ranks.end())];
  if (!group) {
    group = std::make_unique<Group>(ranks);
    if (ended_) group->generation = kEnded;
  }
  return *group;
}

bool Rendezvous::arrive(Group& group, int position, const Collective& collective) {
  if (group.size() == 1) return !ended();
  const uint32_t seen = group.generation.load(std::memory_order_acquire);
  if ((seen & kEnded) != 0) return false;
  const uint64_t phase = group.members[position].arrived.fetch_add(1, std::memory_order_release) + 1;
  if (group.count.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(group.size())) {
    // The last to come: nobody else touches the count until the generation moves.
    group.count.store(0, std::memory_order_relaxed);
    const uint32_t before = group.generation.fetch_add(kPhase, std::memory_order_acq_rel);
    group.generation.notify_all();
    return (before & kEnded) == 0;
  }
  for (int i = 0; i < kSpins && group.generation.load(std::memory_order_acquire) == seen; ++i) cpu_relax();
  if (group.generation.load(std::memory_order_acquire) == seen) {
    {
      const std::lock_guard lock(mutex_);
      const int rank = group.ranks[position];
      waits_[rank] = {&group, seen, phase, collective};
      check_deadlock_locked(rank);
    }
    group.generation.wait(seen, std::memory_order_acquire);
  }
  return (group.generation.load(std::memory_order_acquire) & kEnded) == 0;
}

Status Rendezvous::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Rendezvous::end(const Status& error) {
  const std::lock_guard lock(mutex_);
  end_locked(error);
}

void Rendezvous::end_locked(const Status& error) {
  LIGNUM_CHECK(!error.ok(), "a world ends with an error");
  if (ended_) return;
  failure_ = error;
  ended_.store(true, std::memory_order_seq_cst);
  for (auto& [ranks, group] : groups_) {
    group->generation.fetch_or(kEnded, std::memory_order_acq_rel);
    group->generation.notify_all();
  }
}

void Rendezvous::leave(int rank) {
  const std::lock_guard lock(mutex_);
  left_[rank] = true;
  for (int waiter = 0; waiter < size(); ++waiter) check_deadlock_locked(waiter);
}

// Deadlock: a waits for b if b has yet to arrive at the phase a sleeps for. A rank that sleeps arrives
// nowhere, so a cycle of waits never ends, and neither does a wait for a rank that has left. The rank that
// closes the cycle finds it: it records its wait under the lock before it looks. And what it finds is true:
// the last wait of the path is for the rank that looks (or one that left), which does not move; so that wait
// stands, so its rank does not move either, and so on up the path. A wait whose phase is over is seen by its
// generation.
bool Rendezvous::live(const Wait& wait) const {
  return wait.group != nullptr && wait.group->generation.load(std::memory_order_acquire) == wait.generation;
}

void Rendezvous::check_deadlock_locked(int rank) {
  if (!live(waits_[rank])) return;
  std::fill(visited_.begin(), visited_.end(), false);
  path_.clear();
  if (find_cycle_locked(rank, rank)) end_locked(deadlock_locked());
}

bool Rendezvous::find_cycle_locked(int from, int target) {
  visited_[from] = true;
  path_.push_back(from);
  const Wait& wait = waits_[from];
  for (int i = 0; i < wait.group->size(); ++i) {
    const int next = wait.group->ranks[i];
    if (next == from || wait.group->members[i].arrived.load(std::memory_order_acquire) >= wait.phase)
      continue;
    if (next == target || left_[next]) {
      path_.push_back(next);
      return true;
    }
    if (!visited_[next] && live(waits_[next]) && find_cycle_locked(next, target)) return true;
  }
  path_.pop_back();
  return false;
}

Status Rendezvous::deadlock_locked() const {
  std::string text;
  for (size_t i = 0; i + 1 < path_.size(); ++i) {
    const Wait& wait = waits_[path_[i]];
    text += fmt::format("{}rank {} waits for rank {} in group [{}] with {}", i == 0 ? "" : "; ", path_[i],
                        path_[i + 1], fmt::join(wait.group->ranks, ", "), describe(wait.collective));
  }
  if (left_[path_.back()]) return internal_error("{}; rank {} has left", text, path_.back());
  return internal_error("ranks wait for each other: {}", text);
}

}  // namespace lignum::comm
