#include "comm/engine.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <cstring>
#include <system_error>

#include "comm/spin.h"

namespace lignum::comm {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

CommEngine::CommEngine(Transport& transport, const EngineOptions& options)
    : transport_(transport), overlap_(options.overlap), ring_(options.overlap ? options.capacity : 1) {}

Result<std::unique_ptr<CommEngine>> CommEngine::create(Transport& transport, EngineOptions options) {
  LIGNUM_CHECK(options.capacity >= 1 && options.capacity <= 1 << 20, "capacity {}", options.capacity);
  std::unique_ptr<CommEngine> engine(new CommEngine(transport, options));
  if (options.overlap) LIGNUM_RETURN_IF_ERROR(engine->start(options.cores));
  return engine;
}

Status CommEngine::start(const std::vector<int>& cores) {
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& e) {
    return user_error("the system gives no thread for collectives ({}); use fewer ranks or threads",
                      e.what());
  }
  if (cores.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core < 0 || core >= CPU_SETSIZE) {
      return user_error("core {} for collectives: must be in 0..{}", core, CPU_SETSIZE - 1);
    }
    CPU_SET(core, &set);
  }
  if (const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set); error != 0) {
    return user_error("collectives cannot be kept on the given cores ({}): name cores this process may use",
                      std::strerror(error));
  }
  return {};
}

CommEngine::~CommEngine() {
  if (!thread_.joinable()) return;
  push({.stop = true});
  thread_.join();
}

Ticket CommEngine::submit(const Collective& collective, Timing* timing) {
  const Entry entry{.collective = collective, .timing = timing};
  if (overlap_) return push(entry);
  execute(entry, ++submitted_);
  return submitted_;
}

Ticket CommEngine::push(const Entry& entry) {
  const Ticket ticket = submitted_ + 1;
  // Its place was held by the entry `capacity` before it.
  if (ticket > ring_.size()) wait_completed(ticket - ring_.size());
  submitted_ = ticket;
  ring_[(ticket - 1) % ring_.size()] = entry;
  published_.store(static_cast<uint32_t>(ticket), std::memory_order_release);
  published_.notify_one();
  return ticket;
}

void CommEngine::loop() {
  for (Ticket ticket = 1;; ++ticket) {
    wait_while(published_, static_cast<uint32_t>(ticket - 1));
    const Entry entry = ring_[(ticket - 1) % ring_.size()];
    if (entry.stop) return;
    execute(entry, ticket);
  }
}

void CommEngine::execute(const Entry& entry, Ticket ticket) {
  if (failed_at_.load(std::memory_order_relaxed) == 0) {
    const int64_t start = now_ns();
    Status status = transport_.run(entry.collective);
    if (entry.timing != nullptr) *entry.timing = {start, now_ns()};
    if (!status.ok()) {
      failure_ = std::move(status);
      failed_at_.store(ticket, std::memory_order_release);
    }
  }
  completed_.store(static_cast<uint32_t>(ticket), std::memory_order_release);
  completed_.notify_one();
}

bool CommEngine::done(Ticket ticket) const {
  LIGNUM_CHECK(ticket >= 1 && ticket <= submitted_, "ticket {} of {}", ticket, submitted_);
  // One submitted a whole ring ago had to be done to make room; for the others 32 bits tell.
  if (submitted_ - ticket >= ring_.size()) return true;
  const uint32_t completed = completed_.load(std::memory_order_acquire);
  return static_cast<int32_t>(completed - static_cast<uint32_t>(ticket)) >= 0;
}

void CommEngine::wait_completed(Ticket ticket) const {
  while (true) {
    const uint32_t completed = completed_.load(std::memory_order_acquire);
    if (done(ticket)) return;
    wait_while(completed_, completed);
  }
}

Status CommEngine::wait(Ticket ticket) {
  wait_completed(ticket);
  const Ticket failed_at = failed_at_.load(std::memory_order_acquire);
  return failed_at != 0 && failed_at <= ticket ? failure_ : Status();
}

Status CommEngine::drain() { return submitted_ == 0 ? Status() : wait(submitted_); }

}  // namespace lignum::comm
