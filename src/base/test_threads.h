// Threads for tests and benches of rooms below exec, whose pool they cannot use.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace lignum {

// Made anew for each run, and take tasks as they come: no two runs hand them out alike. Downwards: the last
// task is not the last to end.
class TestThreads final : public Parallel {
 public:
  explicit TestThreads(int threads) : threads_(threads) {}
  int threads() const override { return threads_; }
  void run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) override {
    std::atomic<int64_t> next = tasks;
    std::vector<std::thread> team;
    for (int thread = 0; thread < threads_; ++thread) {
      team.emplace_back([&, thread] {
        for (int64_t task = --next; task >= 0; task = --next) fn(task, thread);
      });
    }
    for (std::thread& t : team) t.join();
  }

 private:
  int threads_;
};

}  // namespace lignum
