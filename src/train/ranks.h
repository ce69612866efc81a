// One rank's view of all ranks of a run, for what is decided or done together between steps.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/transport.h"

namespace lignum::train {

// Where a run's ranks live: all of them as threads of this process, or each as a process of its own.
struct Processes {
  comm::Transport* transport = nullptr;  // this process's rank; null: all are threads here
  int64_t here = 0;                      // ranks on this machine, if transport is not null
};

// Used while the rank's executors are idle: they share the transport, which takes one caller at a time.
class Ranks {
 public:
  static Result<Ranks> join(comm::Transport& transport);
  // The processes of a run; one, where ranks are threads.
  static Result<Ranks> join(const Processes& processes);

  int64_t rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }
  int64_t size() const { return transport_ == nullptr ? 1 : transport_->size(); }
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
  // The first rank's text, on every rank.
  Status share_text(std::string& text) const;
  // How many ranks say so.
  Result<int32_t> count(bool here) const;
  // An error names the first of these facts (an object) that is another one here than on the first rank, and
  // a fix.
  Status agree(const nlohmann::json& facts) const;
  // Ends the run on every rank: for a rank that gives up while others may wait for it.
  Status give_up(const Status& status) const {
    if (transport_ != nullptr) transport_->abort(status);
    return status;
  }

 private:
  explicit Ranks(comm::Transport* transport) : transport_(transport) {}
  comm::Transport* transport_;  // null: one rank
  int group_ = -1;
};

}  // namespace lignum::train
