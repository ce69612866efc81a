// Where ranks that share an address space meet: groups, phases, and what keeps a failure from becoming a
// hang. What ThreadWorld is made of.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/collective.h"

namespace lignum::comm {

// A rank's part in a group.
struct alignas(64) Member {
  // What the rank runs, published before it arrives. Two, by turns: a rank may be in its next collective
  // while a slower one still reads this one, but not in the one after.
  Collective published[2];
  uint64_t collectives = 0;          // run so far; the rank's own
  std::atomic<uint64_t> arrived{0};  // phases the rank has arrived at
  std::atomic<uint32_t> reading{0};  // 1 while the rank may touch its peers' buffers
  std::vector<const void*> parts;    // room for a sum's addends; the rank's own
};

struct Group {
  explicit Group(std::span<const int> group_ranks);
  int size() const { return static_cast<int>(ranks.size()); }

  const std::vector<int> ranks;
  const std::unique_ptr<Member[]> members;  // by position
  alignas(64) std::atomic<uint32_t> count{0};
  // Moves by 2 when all have arrived at a phase. Bit 0: the world has ended.
  alignas(64) std::atomic<uint32_t> generation{0};
};

class Rendezvous {
 public:
  explicit Rendezvous(int ranks);

  int size() const { return static_cast<int>(waits_.size()); }
  // The group of these ranks; made when the first of them asks.
  Group& group(std::span<const int> ranks);

  // One phase: returns true when every member has arrived, false when the world has ended. What a member
  // wrote before it arrived is visible to all after.
  bool arrive(Group& group, int position, const Collective& collective);

  bool ended() const { return ended_.load(std::memory_order_seq_cst); }
  Status status() const;
  void end(const Status& error);
  // The rank arrives nowhere any more.
  void leave(int rank);

 private:
  // The phase that a rank sleeps for, or once slept for: live while the group's generation is the one it saw.
  struct Wait {
    Group* group = nullptr;
    uint32_t generation = 0;
    uint64_t phase = 0;  // members whose `arrived` is below have yet to come
    Collective collective;
  };

  bool live(const Wait& wait) const;
  void end_locked(const Status& error);
  void check_deadlock_locked(int rank);
  bool find_cycle_locked(int from, int target);
  Status deadlock_locked() const;

  mutable std::mutex mutex_;
  std::atomic<bool> ended_{false};
  Status failure_;
  std::map<std::vector<int>, std::unique_ptr<Group>> groups_;
  std::vector<Wait> waits_;  // by rank
  std::vector<bool> left_;
  // Scratch of the search; sized once, so that waiting allocates nothing.
  std::vector<bool> visited_;
  std::vector<int> path_;
};

}  // namespace lignum::comm
