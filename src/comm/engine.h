// The collective engine of a rank: a thread of its own that runs collectives while the rank computes.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/transport.h"
#include "comm/work_queue.h"

namespace lignum::comm {

// submit, wait, done and drain come from one thread: the rank's executor. None allocates unless the world has
// failed.
class CommEngine {
 public:
  // The transport outlives the engine and is used by nobody else meanwhile (abort and status apart).
  // Destruction runs what was submitted to its end first. An executor that gives up calls abort() before.
  static Result<std::unique_ptr<CommEngine>> create(Transport& transport, const EngineOptions& options = {});
  CommEngine(const CommEngine&) = delete;
  CommEngine& operator=(const CommEngine&) = delete;

  // As WorkQueue's: collectives run one after the other in the order of submission; their buffers are the
  // engine's until the wait.
  Ticket submit(Collective collective, Timing* timing = nullptr) {
    collective.submitted_ns = steady_ns();
    return queue_.submit(collective, timing);
  }
  Status wait(Ticket ticket) { return queue_.wait(ticket); }
  bool done(Ticket ticket) const { return queue_.done(ticket); }
  Status drain() { return queue_.drain(); }

  void abort(const Status& error) { transport_.abort(error); }
  Transport& transport() { return transport_; }

 private:
  struct Run {
    Transport& transport;
    Status operator()(const Collective& c) const { return transport.run(c); }
  };
  CommEngine(Transport& transport, const EngineOptions& options)
      : transport_(transport), queue_({transport}, options, "collectives") {}

  Transport& transport_;
  WorkQueue<Collective, Run> queue_;
};

}  // namespace lignum::comm
