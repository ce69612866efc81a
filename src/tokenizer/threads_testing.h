// Threads for tests: task t runs on thread t modulo 3.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace lignum::tokenizer {

class Threads final : public Parallel {
 public:
  int threads() const override { return 3; }
  void run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) override {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&, i] {
        for (int64_t task = i; task < tasks; task += 3) fn(task, i);
      });
    for (std::thread& t : threads) t.join();
  }
};

}  // namespace lignum::tokenizer
