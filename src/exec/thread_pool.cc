#include "exec/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "comm/spin.h"

namespace lignum::exec {
namespace {

constexpr uint32_t kOpen = 1;
constexpr uint32_t kWorker = 2;

// Tasks are taken in chunks when there are very many: at least this many chunks a thread, so that one which
// loses its core for a while leaves the rest to the others.
constexpr int64_t kChunksPerThread = 64;

Status pin(pthread_t thread, int core) {
  if (core < 0 || core >= CPU_SETSIZE) {
    return user_error("core {} for a compute thread: must be in 0..{}", core, CPU_SETSIZE - 1);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (const int error = pthread_setaffinity_np(thread, sizeof set, &set); error != 0) {
    return user_error("a compute thread cannot be kept on core {} ({}): name cores this process may use",
                      core, std::strerror(error));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(int threads, std::span<const int> cores) {
  if (threads < 1 || threads > kMaxThreads) {
    return user_error("threads={}: must be in 1..{}", threads, kMaxThreads);
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads));
  LIGNUM_RETURN_IF_ERROR(pool->start(cores));
  return pool;
}

Status ThreadPool::start(std::span<const int> cores) {
  workers_.reserve(threads_ - 1);
  for (int thread = 1; thread < threads_; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error& e) {
      return user_error("threads={}: the system gives no thread {} ({}); use fewer", threads_, thread,
                        e.what());
    }
  }
  if (cores.empty()) return {};
  for (int thread = 1; thread < threads_; ++thread) {
    LIGNUM_RETURN_IF_ERROR(pin(workers_[thread - 1].native_handle(), cores[thread % cores.size()]));
  }
  if (const int error = pthread_getaffinity_np(pthread_self(), sizeof earlier_, &earlier_); error != 0) {
    return internal_error("pthread_getaffinity_np: {}", std::strerror(error));
  }
  LIGNUM_RETURN_IF_ERROR(pin(pthread_self(), cores[0]));
  pinned_ = true;
  return {};
}

ThreadPool::~ThreadPool() {
  LIGNUM_CHECK(!running_.load(), "a pool ends inside its own run");
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof earlier_, &earlier_);
}

void ThreadPool::run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) {
  LIGNUM_CHECK(!running_.exchange(true, std::memory_order_acquire), "a run of {} tasks inside another run",
               tasks);
  if (threads_ == 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    running_.store(false, std::memory_order_release);
    return;
  }
  job_ = &fn;
  tasks_ = tasks;
  chunk_ = std::max<int64_t>(1, tasks / (threads_ * kChunksPerThread));
  next_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_tasks(0);
  // Every task is taken: what is left is those that workers are inside of.
  uint32_t inside = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while (inside != 0) {
    comm::wait_while(gate_, inside);
    inside = gate_.load(std::memory_order_acquire);
  }
  running_.store(false, std::memory_order_release);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    comm::wait_while(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!join_job()) continue;
    take_tasks(thread);
    leave_job();
  }
}

bool ThreadPool::join_job() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + kWorker, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::leave_job() {
  // The last to leave after the gate was shut wakes the caller.
  if (gate_.fetch_sub(kWorker, std::memory_order_release) == kWorker) gate_.notify_one();
}

void ThreadPool::take_tasks(int thread) {
  while (true) {
    const int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= tasks_) return;
    const int64_t end = std::min(begin + chunk_, tasks_);
    for (int64_t task = begin; task < end; ++task) (*job_)(task, thread);
  }
}

}  // namespace lignum::exec
