// One rank's view of all ranks of a run, for what is decided or done together between steps.
#pragma once

#include "comm/transport.h"

namespace lignum::train {

// Used while the rank's executors are idle: they share the transport, which takes one caller at a time.
class Ranks {
 public:
  static Result<Ranks> join(comm::Transport& transport);

  int64_t rank() const { return transport_->rank(); }
  int64_t size() const { return transport_->size(); }
  bool is_first() const { return rank() == 0; }
  comm::Transport* transport() const { return size() > 1 ? transport_ : nullptr; }  // null: one rank

  Status barrier() const { return size() > 1 ? transport_->barrier(group_) : Status(); }
  // Rank `root`'s value, on every rank. T: plain bytes.
  template <class T>
  Status share(T& value, int64_t root = 0) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return size() > 1 ? transport_->broadcast_bytes(group_, &value, sizeof(T), static_cast<int>(root))
                      : Status();
  }
  // Ends the run on every rank: for a rank that gives up while others may wait for it.
  Status give_up(const Status& status) const {
    transport_->abort(status);
    return status;
  }

 private:
  explicit Ranks(comm::Transport& transport) : transport_(&transport) {}
  comm::Transport* transport_;
  int group_ = -1;
};

}  // namespace lignum::train
