// The compute engine of a rank: its thread pool.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"

namespace lignum::exec {

// Threads, the caller of run() among them (it is thread 0), take tasks one at a time from a shared counter.
// Between two runs the workers spin for a moment, then sleep: an idle pool costs nothing.
class ThreadPool final : public Parallel {
 public:
  static constexpr int kMaxThreads = 1024;

  // threads in 1..kMaxThreads. cores empty: the system places them; else thread i stays on cores[i %
  // cores.size()], thread 0 (the thread that calls create) from now until the pool's end, which gives it back
  // its earlier set.
  static Result<std::unique_ptr<ThreadPool>> create(int threads, std::span<const int> cores = {});
  ~ThreadPool() override;  // on the thread that called create, if pinned
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const override { return threads_; }
  // From one thread at a time. A run inside a run aborts, and so does one from a second thread meanwhile.
  void run(int64_t tasks, FunctionRef<void(int64_t task, int thread)> fn) override;

 private:
  explicit ThreadPool(int threads) : threads_(threads) {}
  Status start(std::span<const int> cores);
  void work(int thread);
  bool join_job();
  void leave_job();
  void take_tasks(int thread);

  const int threads_;
  std::vector<std::thread> workers_;
  bool pinned_ = false;
  cpu_set_t earlier_{};  // thread 0's set before it was pinned

  // The job: written by the caller while the gate is shut and nobody is inside.
  const FunctionRef<void(int64_t, int)>* job_ = nullptr;
  int64_t tasks_ = 0;
  int64_t chunk_ = 1;
  std::atomic<bool> running_{false};
  std::atomic<bool> stop_{false};

  alignas(64) std::atomic<int64_t> next_{0};         // the next task to be taken
  alignas(64) std::atomic<uint32_t> generation_{0};  // moves with each job: what idle workers wait for
  // Bit 0: open, a worker may join the job. The rest: twice the number of workers inside. A worker that wakes
  // too late finds the gate shut, so a job ends when its tasks have ended, not when the last worker got a
  // core.
  alignas(64) std::atomic<uint32_t> gate_{0};
};

}  // namespace lignum::exec
