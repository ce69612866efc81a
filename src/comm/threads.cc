#include "comm/threads.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/rendezvous.h"

namespace lignum::comm {
namespace {

const std::byte* at(const void* p, int64_t offset) { return static_cast<const std::byte*>(p) + offset; }
std::byte* at(void* p, int64_t offset) { return static_cast<std::byte*>(p) + offset; }

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The sum of an all_reduce up to this size is made by every rank for itself, in the same order and so with
// the same bits, rather than by owners whose parts are then copied: that saves a phase, which costs more than
// the additions.
constexpr int64_t kSmallBytes = 4096;
// Parts of an owner are multiples of this many elements: no two owners write one cache line.
constexpr int64_t kPartElems = 64;

// One rank's place in the collective under way: its group, and its peers' buffers.
struct Call {
  const Collective& c;
  Rendezvous& rendezvous;
  Group& group;
  int position;
  uint64_t turn;  // which of the published two

  Member& self() const { return group.members[position]; }
  const Collective& peer(int i) const { return group.members[i].published[turn]; }
  bool arrive() const { return rendezvous.arrive(group, position, c); }

  int64_t elem_size() const { return dtype_size(c.dtype); }
  int64_t out_elem_size() const { return dtype_size(c.out_dtype.value_or(c.dtype)); }
  int64_t elems() const { return c.outer * c.local_rows * c.row_elems; }

  // out[begin..begin+n) = the sum of the ranks' in[begin..begin+n), elements; out points at the first.
  void sum(int64_t begin, void* out, int64_t n) const {
    if (n <= 0) return;
    std::vector<const void*>& parts = self().parts;
    for (int i = 0; i < group.size(); ++i) parts[i] = at(peer(i).in, begin * elem_size());
    combine(c, parts, out, n);
  }

  void all_gather() const {
    const int64_t row = c.row_elems * elem_size();
    // From this rank on, round the ring: not all ranks read the same memory at once.
    for (int k = 0; k < group.size(); ++k) {
      const int i = (position + k) % group.size();
      const Rows rows = rows_of(c, i);
      for (int64_t o = 0; o < c.outer; ++o) {
        copy_bytes(at(c.out, (o * c.logical_rows + rows.begin) * row), at(peer(i).in, o * c.local_rows * row),
                   (rows.end - rows.begin) * row);
      }
    }
  }

  void reduce_scatter() const {
    const Rows rows = rows_of(c, position);
    const int64_t real = (rows.end - rows.begin) * c.row_elems;
    const int64_t pad = c.local_rows * c.row_elems - real;
    for (int64_t o = 0; o < c.outer; ++o) {
      std::byte* out = at(c.out, o * c.local_rows * c.row_elems * out_elem_size());
      sum((o * c.logical_rows + rows.begin) * c.row_elems, out, real);
      if (pad > 0) std::memset(out + real * out_elem_size(), 0, static_cast<size_t>(pad * out_elem_size()));
    }
  }

  bool all_reduce() const {
    const int64_t n = elems();
    const int64_t part = ((n + group.size() - 1) / group.size() + kPartElems - 1) / kPartElems * kPartElems;
    const auto begin = [&](int i) { return std::min(n, i * part); };
    const int64_t mine = begin(position);
    sum(mine, at(c.out, mine * out_elem_size()), begin(position + 1) - mine);
    if (!arrive()) return false;
    for (int k = 1; k < group.size(); ++k) {
      const int i = (position + k) % group.size();
      const int64_t offset = begin(i) * out_elem_size();
      copy_bytes(at(c.out, offset), at(peer(i).out, offset), begin(i + 1) * out_elem_size() - offset);
    }
    return true;
  }

  void broadcast() const { copy_bytes(c.out, peer(c.root).in, elems() * elem_size()); }

  void permute() const {
    const int from = (position - c.shift + group.size()) % group.size();
    copy_bytes(c.out, peer(from).in, elems() * elem_size());
  }

  // Reads the peers' buffers; false if the world ended meanwhile.
  bool move(void* scratch) const {
    switch (c.kind) {
      case Kind::all_gather:
        all_gather();
        return true;
      case Kind::reduce_scatter:
        reduce_scatter();
        return true;
      case Kind::all_reduce:
        if (scratch == nullptr) return all_reduce();
        sum(0, scratch, elems());
        return true;
      case Kind::broadcast:
        broadcast();
        return true;
      case Kind::permute:
        permute();
        return true;
      case Kind::barrier:
        return true;
    }
    return true;
  }
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(Rendezvous& rendezvous, int rank) : rendezvous_(rendezvous), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_.size(); }

  Result<int> add_group(std::span<const int> ranks) override {
    LIGNUM_ASSIGN_OR_RETURN(const int position, position_in_group(ranks, rank_, size()));
    groups_.push_back({&rendezvous_.group(ranks), position});
    return static_cast<int>(groups_.size()) - 1;
  }
  int group_size(int group) const override { return at_index(group).group->size(); }
  int group_rank(int group) const override { return at_index(group).position; }

  Status run(const Collective& c) override {
    if (rendezvous_.ended()) return rendezvous_.status();
    const Place place = at_index(c.group);
    Group& group = *place.group;
    if (Status valid = check_on_rank(c, group.size(), place.position); !valid.ok()) {
      rendezvous_.end(valid.with_context(fmt::format("rank {}", rank_)));
      return rendezvous_.status();
    }
    Member& self = group.members[place.position];
    const uint64_t number = self.collectives++;
    const Call call{c, rendezvous_, group, place.position, number % 2};
    self.published[call.turn] = c;
    if (!call.arrive()) return failed(group);
    if (Status same = agree(call, number); !same.ok()) {
      rendezvous_.end(same);
      return failed(group);
    }
    if (c.kind == Kind::barrier) return {};

    // Either a rank that fails sees the flag and waits for this one, or this one sees that the world has
    // ended.
    self.reading.store(1, std::memory_order_seq_cst);
    alignas(64) std::array<std::byte, kSmallBytes> scratch;
    const bool small = c.kind == Kind::all_reduce && call.elems() * call.out_elem_size() <= kSmallBytes;
    const bool moved = !rendezvous_.ended() && call.move(small ? scratch.data() : nullptr);
    self.reading.store(0, std::memory_order_release);
    if (!moved || !call.arrive()) return failed(group);
    if (small) copy_bytes(c.out, scratch.data(), call.elems() * call.out_elem_size());
    return {};
  }

  void abort(const Status& error) override { rendezvous_.end(error); }
  Status status() const override { return rendezvous_.status(); }
  void leave() override { rendezvous_.leave(rank_); }

 private:
  struct Place {
    Group* group;
    int position;
  };

  const Place& at_index(int group) const {
    LIGNUM_CHECK(group >= 0 && group < static_cast<int>(groups_.size()), "group {} of {} on rank {}", group,
                 groups_.size(), rank_);
    return groups_[group];
  }

  static Status agree(const Call& call, uint64_t number) {
    for (int i = 1; i < call.group.size(); ++i) {
      if (same_call(call.peer(0), call.peer(i))) continue;
      return ranks_differ(number, call.group.ranks, 0, call.peer(0), i, call.peer(i));
    }
    return {};
  }

  // The world has ended. The caller may free its buffers once this returns: no peer reads them any more.
  Status failed(const Group& group) const {
    for (int i = 0; i < group.size(); ++i) {
      while (group.members[i].reading.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
    }
    return rendezvous_.status();
  }

  Rendezvous& rendezvous_;
  const int rank_;
  std::vector<Place> groups_;
};

}  // namespace

struct ThreadWorld::State {
  explicit State(int ranks) : rendezvous(ranks) {
    for (int r = 0; r < ranks; ++r) transports.push_back(std::make_unique<ThreadTransport>(rendezvous, r));
  }
  Rendezvous rendezvous;
  std::vector<std::unique_ptr<ThreadTransport>> transports;
  bool ran = false;
};

ThreadWorld::ThreadWorld(int ranks) {
  LIGNUM_CHECK(ranks >= 1 && ranks <= kMaxRanks, "{} ranks", ranks);
  state_ = std::make_unique<State>(ranks);
}
ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return state_->rendezvous.size(); }

Transport& ThreadWorld::transport(int rank) {
  LIGNUM_CHECK(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
  return *state_->transports[rank];
}

Status ThreadWorld::run(FunctionRef<Status(Transport&)> body) {
  LIGNUM_CHECK(!state_->ran, "a world runs once");
  state_->ran = true;
  const auto run_rank = [&](int rank) {
    Transport& own = transport(rank);
    if (const Status result = body(own); !result.ok()) own.abort(result);
    own.leave();
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size(); ++rank) {
    try {
      threads.emplace_back(run_rank, rank);
    } catch (const std::system_error& e) {
      transport(0).abort(user_error("ranks={}: the system gives no thread for rank {} ({}); use fewer ranks",
                                    size(), rank, e.what()));
      break;
    }
  }
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  return state_->rendezvous.status();
}

}  // namespace lignum::comm
