// A thread with a queue: what the collective engine and the copy engine are made of.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "comm/spin.h"

namespace lignum::comm {

// When a job began and ended on this rank: steady_clock, nanoseconds since its epoch. Waiting for peers
// counts.
struct Timing {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// Names a submitted job of one queue: 1, 2, 3, ... in order.
using Ticket = uint64_t;

struct EngineOptions {
  // false: submit runs the job in the caller before it returns, and there is no thread. Same bits.
  bool overlap = true;
  int capacity = 256;      // 1..2^20: how many may be submitted and not yet done; submit waits for room
  std::vector<int> cores;  // the thread runs on these only; empty: anywhere
};

inline int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Runs jobs one after the other in the order of submission, by run(job) -> Status; after one has failed none
// runs. submit, wait, done and drain come from one thread: the rank's executor. None allocates.
template <class Job, class Run>
class WorkQueue {
 public:
  // what: whose thread it is, for errors ("collectives").
  WorkQueue(Run run, const EngineOptions& options, std::string_view what)
      : run_(std::move(run)), what_(what), overlap_(options.overlap), ring_(overlap_ ? options.capacity : 1) {
    LIGNUM_CHECK(options.capacity >= 1 && options.capacity <= 1 << 20, "capacity {}", options.capacity);
  }
  // Runs what was submitted to its end first.
  ~WorkQueue() {
    if (!thread_.joinable()) return;
    push({.stop = true});
    thread_.join();
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Once, before all else: the thread, where there is one.
  Status start(const std::vector<int>& cores) {
    if (!overlap_) return {};
    try {
      thread_ = std::thread([this] { loop(); });
    } catch (const std::system_error& e) {
      return user_error("the system gives no thread for {} ({}); use fewer ranks or threads", what_,
                        e.what());
    }
    if (cores.empty()) return {};
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) {
      if (core < 0 || core >= CPU_SETSIZE)
        return user_error("core {} for {}: must be in 0..{}", core, what_, CPU_SETSIZE - 1);
      CPU_SET(core, &set);
    }
    if (const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set); error != 0)
      return user_error("{} cannot be kept on the given cores ({}): name cores this process may use", what_,
                        std::strerror(error));
    return {};
  }

  // What the job names is the queue's until wait(ticket) has returned or done(ticket) is true, and so is
  // *timing, which it fills (if not null).
  Ticket submit(const Job& job, Timing* timing) {
    const Entry entry{.job = job, .timing = timing};
    if (overlap_) return push(entry);
    execute(entry, ++submitted_);
    return submitted_;
  }
  // Returns when the job is done: ok, or what it, or one before it, failed with. Any number of times.
  Status wait(Ticket ticket) {
    wait_completed(ticket);
    const Ticket failed_at = failed_at_.load(std::memory_order_acquire);
    return failed_at != 0 && failed_at <= ticket ? failure_ : Status();
  }
  // True once wait(ticket) would return at once.
  bool done(Ticket ticket) const {
    LIGNUM_CHECK(ticket >= 1 && ticket <= submitted_, "ticket {} of {}", ticket, submitted_);
    // One submitted a whole ring ago had to be done to make room; for the others 32 bits tell.
    if (submitted_ - ticket >= ring_.size()) return true;
    const uint32_t completed = completed_.load(std::memory_order_acquire);
    return static_cast<int32_t>(completed - static_cast<uint32_t>(ticket)) >= 0;
  }
  // Waits for everything submitted.
  Status drain() { return submitted_ == 0 ? Status() : wait(submitted_); }

 private:
  struct Entry {
    Job job;
    Timing* timing = nullptr;
    bool stop = false;
  };

  Ticket push(const Entry& entry) {
    const Ticket ticket = submitted_ + 1;
    // Its place was held by the entry `capacity` before it.
    if (ticket > ring_.size()) wait_completed(ticket - ring_.size());
    submitted_ = ticket;
    ring_[(ticket - 1) % ring_.size()] = entry;
    published_.store(static_cast<uint32_t>(ticket), std::memory_order_release);
    published_.notify_one();
    return ticket;
  }
  void loop() {
    for (Ticket ticket = 1;; ++ticket) {
      wait_while(published_, static_cast<uint32_t>(ticket - 1));
      const Entry entry = ring_[(ticket - 1) % ring_.size()];
      if (entry.stop) return;
      execute(entry, ticket);
    }
  }
  void execute(const Entry& entry, Ticket ticket) {
    if (failed_at_.load(std::memory_order_relaxed) == 0) {
      const int64_t start = steady_ns();
      Status status = run_(entry.job);
      if (entry.timing != nullptr) *entry.timing = {start, steady_ns()};
      if (!status.ok()) {
        failure_ = std::move(status);
        failed_at_.store(ticket, std::memory_order_release);
      }
    }
    completed_.store(static_cast<uint32_t>(ticket), std::memory_order_release);
    completed_.notify_one();
  }
  void wait_completed(Ticket ticket) const {
    while (true) {
      const uint32_t completed = completed_.load(std::memory_order_acquire);
      if (done(ticket)) return;
      wait_while(completed_, completed);
    }
  }

  Run run_;
  std::string_view what_;
  const bool overlap_;
  std::vector<Entry> ring_;
  Ticket submitted_ = 0;  // the submitter's own count
  // Low 32 bits of counts: the width a futex waits on. At most `capacity` lie between them, so none is
  // ambiguous.
  alignas(64) std::atomic<uint32_t> published_{0};
  alignas(64) std::atomic<uint32_t> completed_{0};
  std::atomic<Ticket> failed_at_{0};  // the first that failed; 0: none
  Status failure_;                    // written once, before failed_at_
  std::thread thread_;
};

}  // namespace lignum::comm
