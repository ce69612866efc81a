// The collective engine of a rank: a thread of its own that runs collectives while the rank computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/transport.h"

namespace lignum::comm {

// When a collective began and ended on this rank: steady_clock, nanoseconds since its epoch. Waiting for
// peers counts.
struct Timing {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// Names a submitted collective of one engine: 1, 2, 3, ... in order.
using Ticket = uint64_t;

struct EngineOptions {
  // false: submit runs the collective in the caller before it returns, and there is no thread. Same bits.
  bool overlap = true;
  int capacity = 256;      // 1..2^20: how many may be submitted and not yet done; submit waits for room
  std::vector<int> cores;  // the thread runs on these only; empty: anywhere
};

// submit, wait, done and drain come from one thread: the rank's executor. None allocates unless the world has
// failed.
class CommEngine {
 public:
  // The transport outlives the engine and is used by nobody else meanwhile (abort and status apart).
  static Result<std::unique_ptr<CommEngine>> create(Transport& transport, EngineOptions options = {});
  // Runs what was submitted to its end first. An executor that gives up calls abort() before.
  ~CommEngine();
  CommEngine(const CommEngine&) = delete;
  CommEngine& operator=(const CommEngine&) = delete;

  // Queues the collective: they run one after the other in the order of submission. Its buffers are the
  // engine's until wait(ticket) has returned or done(ticket) is true, and so is *timing, which the engine
  // fills (if not null).
  Ticket submit(const Collective& collective, Timing* timing = nullptr);
  // Returns when the collective is done: ok, or what it, or one before it, failed with. Any number of times.
  Status wait(Ticket ticket);
  // True once wait(ticket) would return at once.
  bool done(Ticket ticket) const;
  // Waits for everything submitted.
  Status drain();

  void abort(const Status& error) { transport_.abort(error); }
  Transport& transport() { return transport_; }

 private:
  struct Entry {
    Collective collective;
    Timing* timing = nullptr;
    bool stop = false;
  };

  CommEngine(Transport& transport, const EngineOptions& options);
  Status start(const std::vector<int>& cores);
  void loop();
  Ticket push(const Entry& entry);
  void execute(const Entry& entry, Ticket ticket);
  void wait_completed(Ticket ticket) const;

  Transport& transport_;
  const bool overlap_;
  std::vector<Entry> ring_;
  Ticket submitted_ = 0;  // the executor's own count
  // Low 32 bits of counts: the width a futex waits on. At most `capacity` lie between them, so none is
  // ambiguous.
  alignas(64) std::atomic<uint32_t> published_{0};
  alignas(64) std::atomic<uint32_t> completed_{0};
  std::atomic<Ticket> failed_at_{0};  // the first that failed; 0: none
  Status failure_;                    // written once, before failed_at_
  std::thread thread_;
};

}  // namespace lignum::comm
