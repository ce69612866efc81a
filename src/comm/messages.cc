#include "comm/messages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace lignum::comm {
namespace {

const std::byte* at(const void* p, int64_t offset) { return static_cast<const std::byte*>(p) + offset; }
std::byte* at(void* p, int64_t offset) { return static_cast<std::byte*>(p) + offset; }

// What travels with a meeting: sums and broadcasts up to this size need no further message.
constexpr int64_t kSmallBytes = 4096;
// Parts of an owner are multiples of this many elements, as where ranks are threads.
constexpr int64_t kPartElems = 64;

// What a rank tells the others of a group when it comes to a collective.
struct Header {
  Collective collective;  // without pointers, which mean nothing to others
  uint64_t number = 0;    // collectives of the group before it
  uint64_t group = 0;     // of its ranks
};
static_assert(std::is_trivially_copyable_v<Header>);

struct Packet {
  Header header;
  std::byte small[kSmallBytes];
};

uint64_t hash_of(std::span<const int> ranks) {
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const int r : ranks) hash = (hash ^ static_cast<uint64_t>(r)) * 1099511628211ULL;
  return hash;
}

int64_t small_bytes(const Collective& c) {
  if (c.kind != Kind::all_reduce && c.kind != Kind::broadcast) return 0;
  const int64_t bytes = c.outer * c.local_rows * c.row_elems * dtype_size(c.dtype);
  return bytes <= kSmallBytes ? bytes : 0;
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

// A part of a tensor, elements in order: `count` strips of `length` elements whose beginnings lie `stride`
// apart.
struct MessageTransport::Strips {
  int64_t begin = 0, length = 0, stride = 0, count = 0;

  int64_t size() const { return length * count; }
  bool whole() const { return count <= 1; }
  int64_t place(int64_t element) const { return begin + element / length * stride + element % length; }

  // Calls fn(place, done, n) for the strips, or parts of strips, that hold elements [from, from + total) of
  // the part: n elements from `place` of the tensor on, `done` of them before.
  template <class F>
  void each(int64_t from, int64_t total, F&& fn) const {
    for (int64_t done = 0; done < total;) {
      const int64_t strip = (from + done) / length, inside = (from + done) % length;
      const int64_t n = std::min(length - inside, total - done);
      fn(begin + strip * stride + inside, done, n);
      done += n;
    }
  }
};

struct MessageTransport::Group {
  std::vector<int> ranks;
  int position = 0;
  uint64_t hash = 0;
  uint64_t collectives = 0;     // run so far
  int64_t piece_bytes = 0;      // of this group's exchanges
  std::vector<Packet> packets;  // by position; this rank's own is what it sends
  // By position; an exchange has two pieces under way.
  std::array<std::vector<LignumMpiRequest>, 2> receives, sends;
  std::vector<const void*> parts;  // a sum's addends

  int size() const { return static_cast<int>(ranks.size()); }
  Packet& own() { return packets[static_cast<size_t>(position)]; }
};

// Every rank's part of `from` goes to it, and what comes from rank i is put into `to`; or, where `sum` is
// given, what comes is added up with this rank's own part of `from` and put at its own place in `to`.
struct MessageTransport::Exchange {
  int64_t elem_size = 0;
  bool contiguous = false;  // all parts, on all ranks: they go as they lie
  const void* from = nullptr;
  FunctionRef<Strips(int)> outgoing;  // by position
  void* to = nullptr;
  FunctionRef<Strips(int)> incoming;
  const Collective* sum = nullptr;

  int64_t piece_elems = 0;      // of a message
  std::byte* pieces = nullptr;  // [2][in, out][group][piece]
  int64_t piece_bytes = 0;

  int64_t begin(int64_t k) const { return k * piece_elems; }
  int64_t elems(const Strips& part, int64_t k) const {
    return std::clamp<int64_t>(part.size() - begin(k), 0, piece_elems);
  }
  std::byte* room(int64_t k, bool out, int group, int i) const {
    return pieces + (((k % 2) * 2 + (out ? 1 : 0)) * group + i) * piece_bytes;
  }
};

MessageTransport::MessageTransport(const LignumMpi& mpi, int rank, int size, MessageOptions options)
    : options_(options), mailbox_(mpi, rank, size, options.channel) {}
MessageTransport::~MessageTransport() = default;

Result<int> MessageTransport::add_group(std::span<const int> ranks) {
  LIGNUM_ASSIGN_OR_RETURN(const int position, position_in_group(ranks, rank(), size()));
  auto group = std::make_unique<Group>();
  const size_t n = ranks.size();
  group->ranks.assign(ranks.begin(), ranks.end());
  group->position = position;
  group->hash = hash_of(ranks);
  // The more peers, the smaller the pieces: what lies in the cache at a time stays the same.
  constexpr int64_t kLeastBytes = 4096;
  group->piece_bytes = std::max(std::min(options_.piece_bytes, kLeastBytes),
                                options_.piece_bytes / std::max<int64_t>(1, static_cast<int64_t>(n) - 1));
  group->packets.resize(n);
  for (auto& requests : group->receives) requests.resize(n);
  for (auto& requests : group->sends) requests.resize(n);
  group->parts.resize(n);
  pieces_.resize(std::max(pieces_.size(), 4 * n * static_cast<size_t>(group->piece_bytes)));
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

int MessageTransport::group_size(int group) const { return at_index(group).size(); }
int MessageTransport::group_rank(int group) const { return at_index(group).position; }

MessageTransport::Group& MessageTransport::at_index(int group) const {
  LIGNUM_CHECK(group >= 0 && group < static_cast<int>(groups_.size()), "group {} of {} on rank {}", group,
               groups_.size(), rank());
  return *groups_[static_cast<size_t>(group)];
}

void MessageTransport::abort(const Status& error) {
  mailbox_.record(error);  // a run under way sees it, and gives way
  const auto held = mailbox_.lock();
  mailbox_.announce(options_.names_ranks);
}

void MessageTransport::leave() {
  const auto held = mailbox_.lock();
  mailbox_.leave();
}

Status MessageTransport::run(const Collective& c) {
  const auto held = mailbox_.lock();
  // One that has ended meanwhile may have given up what it sent: nothing of it is taken any more.
  if (!mailbox_.ended()) mailbox_.poll();
  if (mailbox_.ended()) {
    mailbox_.announce(false);
    return mailbox_.status();
  }
  Group& group = at_index(c.group);
  if (const Status here = check_on_rank(c, group.size(), group.position); !here.ok()) {
    mailbox_.record(here.with_context(fmt::format("rank {}", rank())));
  } else if (meet(c, group) && move(c, group)) {
    return {};
  }
  mailbox_.announce(false);
  // The caller may free its buffers once this returns.
  for (int slot = 0; slot < 2; ++slot) quiet_ = mailbox_.cancel(group.receives[slot]) && quiet_;
  for (int slot = 0; slot < 2; ++slot) clean_ = mailbox_.drop(group.sends[slot], group.ranks) && clean_;
  return mailbox_.status();
}

bool MessageTransport::meet(const Collective& c, Group& group) {
  Packet& own = group.own();
  own.header.collective = c;
  own.header.collective.in = nullptr;
  own.header.collective.out = nullptr;
  own.header.number = group.collectives++;
  own.header.group = group.hash;
  const int64_t small = small_bytes(c);
  const bool brings = c.kind == Kind::all_reduce || group.position == c.root;
  if (small > 0 && brings) std::memcpy(own.small, c.in, static_cast<size_t>(small));
  const int64_t bytes = static_cast<int64_t>(offsetof(Packet, small)) + (brings ? small : 0);
  for (int i = 0; i < group.size(); ++i) {
    if (i == group.position) continue;
    if (!mailbox_.receive(&group.packets[i], sizeof(Packet), group.ranks[i], Tag::header,
                          group.receives[0][i]) ||
        !mailbox_.send_header(&own, bytes, group.ranks[i], group.sends[0][i])) {
      return false;
    }
  }
  const Meeting meeting{group.ranks, group.position, &c, group.receives[0]};
  if (!mailbox_.wait(group.receives[0], &meeting) || !mailbox_.wait(group.sends[0])) return false;
  const Header& first = group.packets[0].header;
  for (int i = 0; i < group.size(); ++i) {
    const Header& other = group.packets[i].header;
    if (other.group != group.hash) {
      mailbox_.record(internal_error(
          "ranks wait for each other: rank {} runs {} in group [{}], rank {} runs {} in another one", rank(),
          describe(c), fmt::join(group.ranks, ", "), group.ranks[i], describe(other.collective)));
      return false;
    }
    if (same_call(first.collective, other.collective)) continue;
    mailbox_.record(ranks_differ(own.header.number, group.ranks, 0, first.collective, i, other.collective));
    return false;
  }
  return true;
}

bool MessageTransport::post(const Exchange& e, Group& group, int64_t k) {
  const auto slot = static_cast<size_t>(k % 2);
  for (int i = 0; i < group.size(); ++i) {
    if (i == group.position) continue;
    const Strips in = e.incoming(i);
    if (const int64_t n = e.elems(in, k); n > 0) {
      void* const to = e.contiguous && e.sum == nullptr ? at(e.to, (in.begin + e.begin(k)) * e.elem_size)
                                                        : e.room(k, false, group.size(), i);
      if (!mailbox_.receive(to, n * e.elem_size, group.ranks[i], Tag::data, group.receives[slot][i]))
        return false;
    }
  }
  for (int i = 0; i < group.size(); ++i) {
    if (i == group.position) continue;
    const Strips out = e.outgoing(i);
    if (const int64_t n = e.elems(out, k); n > 0) {
      const void* from = at(e.from, (out.begin + e.begin(k)) * e.elem_size);
      if (!out.whole()) {
        std::byte* const room = e.room(k, true, group.size(), i);
        out.each(e.begin(k), n, [&](int64_t place, int64_t done, int64_t count) {
          std::memcpy(room + done * e.elem_size, at(e.from, place * e.elem_size),
                      static_cast<size_t>(count * e.elem_size));
        });
        from = room;
      }
      if (!mailbox_.send(from, n * e.elem_size, group.ranks[i], Tag::data, group.sends[slot][i]))
        return false;
    }
  }
  return true;
}

bool MessageTransport::exchange(Exchange e, Group& group) {
  e.pieces = pieces_.data();
  e.piece_bytes = group.piece_bytes;
  e.piece_elems = std::max<int64_t>(
      1, (e.contiguous && e.sum == nullptr ? options_.message_bytes : group.piece_bytes) / e.elem_size);
  const auto pieces_of = [&](const Strips& part) {
    return (part.size() + e.piece_elems - 1) / e.piece_elems;
  };
  const Strips own_in = e.outgoing(group.position), own_out = e.incoming(group.position);
  int64_t pieces = e.sum != nullptr ? pieces_of(own_in) : 0;
  for (int i = 0; i < group.size(); ++i) {
    if (i != group.position) pieces = std::max({pieces, pieces_of(e.outgoing(i)), pieces_of(e.incoming(i))});
  }
  const auto add_up = [&](int64_t k) {
    const DType out_dtype = e.sum->out_dtype.value_or(e.sum->dtype);
    own_in.each(e.begin(k), e.elems(own_in, k), [&](int64_t place, int64_t done, int64_t n) {
      for (int i = 0; i < group.size(); ++i) {
        group.parts[i] = i == group.position ? at(e.from, place * e.elem_size)
                                             : e.room(k, false, group.size(), i) + done * e.elem_size;
      }
      combine(*e.sum, group.parts, at(e.to, own_out.place(e.begin(k) + done) * dtype_size(out_dtype)), n);
    });
  };
  const auto put = [&](int64_t k) {
    for (int i = 0; i < group.size(); ++i) {
      const Strips in = e.incoming(i);
      if (i == group.position) continue;
      in.each(e.begin(k), e.elems(in, k), [&](int64_t place, int64_t done, int64_t n) {
        std::memcpy(at(e.to, place * e.elem_size), e.room(k, false, group.size(), i) + done * e.elem_size,
                    static_cast<size_t>(n * e.elem_size));
      });
    }
  };
  if (pieces > 0 && !post(e, group, 0)) return false;
  for (int64_t k = 0; k < pieces; ++k) {
    if (k + 1 < pieces && !post(e, group, k + 1)) return false;
    const auto slot = static_cast<size_t>(k % 2);
    if (!mailbox_.wait(group.receives[slot]) || !mailbox_.wait(group.sends[slot])) return false;
    if (e.sum != nullptr) {
      add_up(k);
    } else if (!e.contiguous) {
      put(k);
    }
  }
  return true;
}

bool MessageTransport::move(const Collective& c, Group& group) {
  const int64_t elem = dtype_size(c.dtype), out_elem = dtype_size(c.out_dtype.value_or(c.dtype));
  const int64_t total = c.outer * c.local_rows * c.row_elems;
  // Of the whole tensor [outer, logical_rows, row_elems], and of a rank's shard.
  const auto in_whole = [&](int i) {
    const Rows rows = rows_of(c, i);
    return Strips{rows.begin * c.row_elems, (rows.end - rows.begin) * c.row_elems,
                  c.logical_rows * c.row_elems, c.outer};
  };
  const auto in_shard = [&](int i) {
    const Rows rows = rows_of(c, i);
    return Strips{0, (rows.end - rows.begin) * c.row_elems, c.local_rows * c.row_elems, c.outer};
  };
  const auto mine_in_shard = [&](int) { return in_shard(group.position); };
  switch (c.kind) {
    case Kind::barrier:
      return true;

    case Kind::all_gather: {
      const Strips shard = in_shard(group.position), whole = in_whole(group.position);
      shard.each(0, shard.size(), [&](int64_t place, int64_t done, int64_t n) {
        copy_bytes(at(c.out, whole.place(done) * elem), at(c.in, place * elem), n * elem);
      });
      return exchange(Exchange{elem, c.outer <= 1, c.in, mine_in_shard, c.out, in_whole}, group);
    }

    case Kind::reduce_scatter: {
      const int64_t real = in_shard(group.position).length, shard = c.local_rows * c.row_elems;
      if (!exchange(Exchange{elem, c.outer <= 1, c.in, in_whole, c.out, mine_in_shard, &c}, group))
        return false;
      for (int64_t o = 0; o < c.outer && real < shard; ++o)
        std::memset(at(c.out, (o * shard + real) * out_elem), 0,
                    static_cast<size_t>((shard - real) * out_elem));
      return true;
    }

    case Kind::all_reduce: {
      if (small_bytes(c) > 0) {
        for (int i = 0; i < group.size(); ++i) group.parts[i] = group.packets[i].small;
        combine(c, group.parts, c.out, total);
        return true;
      }
      const int64_t part =
          ((total + group.size() - 1) / group.size() + kPartElems - 1) / kPartElems * kPartElems;
      const auto part_of = [&](int i) {
        const int64_t begin = std::min(total, i * part);
        return Strips{begin, std::min(total, begin + part) - begin, 0, 1};
      };
      const auto mine = [&](int) { return part_of(group.position); };
      return exchange(Exchange{elem, true, c.in, part_of, c.out, mine, &c}, group) &&
             exchange(Exchange{out_elem, true, c.out, mine, c.out, part_of}, group);
    }

    case Kind::broadcast: {
      if (small_bytes(c) > 0) {
        copy_bytes(c.out, group.packets[c.root].small, total * elem);
        return true;
      }
      const bool is_root = group.position == c.root;
      if (is_root) copy_bytes(c.out, c.in, total * elem);
      const Strips all{0, total, 0, 1};
      const auto to = [&](int) { return is_root ? all : Strips{}; };
      const auto from = [&](int i) { return i == c.root && !is_root ? all : Strips{}; };
      return exchange(Exchange{elem, true, c.in, to, c.out, from}, group);
    }

    case Kind::permute: {
      const int target = (group.position + c.shift) % group.size();
      const int source = (group.position - c.shift + group.size()) % group.size();
      if (c.shift == 0) copy_bytes(c.out, c.in, total * elem);
      const Strips all{0, total, 0, 1};
      const auto to = [&](int i) { return i == target ? all : Strips{}; };
      const auto from = [&](int i) { return i == source ? all : Strips{}; };
      return exchange(Exchange{elem, true, c.in, to, c.out, from}, group);
    }
  }
  return true;
}

}  // namespace lignum::comm
