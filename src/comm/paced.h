// A transport over a link that is slower than memory: what a collective would take on it passes in sleep
// before the bytes are moved, as if an engine outside the processor moved them. The link has a queue: it goes
// on to the next collective that is submitted whether or not this thread has been woken up by then.
#pragma once

#include <functional>

#include "comm/transport.h"

namespace lignum::comm {

class PacedTransport final : public Transport {
 public:
  // seconds(collective, ranks of its group): counted from when the last of them submits it (or runs it, where
  // no engine does), and the link is free. `inner` outlives this and has no other user but for abort() and
  // status().
  using Seconds = std::function<double(const Collective&, int group_size)>;
  PacedTransport(Transport& inner, Seconds seconds) : inner_(inner), seconds_(std::move(seconds)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<int> add_group(std::span<const int> ranks) override { return inner_.add_group(ranks); }
  int group_size(int group) const override { return inner_.group_size(group); }
  int group_rank(int group) const override { return inner_.group_rank(group); }
  // The buffers are free when it returns, as ever; the error of a world that ends meanwhile comes at once.
  Status run(const Collective& c) override;
  void abort(const Status& error) override { inner_.abort(error); }
  Status status() const override { return inner_.status(); }
  void leave() override { inner_.leave(); }

 private:
  Transport& inner_;
  const Seconds seconds_;
  int64_t free_ns_ = 0;  // when the link has done what came before
};

}  // namespace lignum::comm
