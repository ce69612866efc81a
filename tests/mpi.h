// Runs whose ranks are processes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "process.h"
#include "runs.h"
#include "train/checkpoint.h"

namespace lignum::testing {

inline const std::string kMpiexec = LIGNUM_TEST_MPIEXEC;

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    // An MPI keeps memory until the process ends.
    const char* sanitizer = std::getenv("ASAN_OPTIONS");
    ::setenv("ASAN_OPTIONS", (std::string(sanitizer == nullptr ? "" : sanitizer) + ":detect_leaks=0").c_str(),
             1);
    if (kMpiexec.empty()) GTEST_SKIP() << "this build has no MPI: run scripts/setup-mpi and build again";
  }
  Ended mpi(std::vector<std::string> words) const {
    words.insert(words.begin() + 1, f / "tiny.yml");
    words.insert(words.end(), {"ranks=2", "comm=mpi"});
    return run(f, std::move(words));
  }
  // Two ranks of `lignum train tiny.yml run_name=a` with words of their own; each in a folder, where given.
  Ended launch(std::vector<std::string> first, std::vector<std::string> second,
               const std::vector<std::string>& folders = {}) const {
    std::vector<std::string> words;
    for (std::vector<std::string>* own : {&first, &second}) {
      if (!words.empty()) words.emplace_back(":");
      words.insert(words.end(), {"-n", "1"});
      if (!folders.empty()) words.insert(words.end(), {"-wdir", folders[own == &second ? 1 : 0]});
      words.insert(words.end(), {LIGNUM_BINARY, "train", f / "tiny.yml", "run_name=a"});
      words.insert(words.end(), own->begin(), own->end());
    }
    return Process(f, words, kMpiexec).wait();
  }
  // One message, from whichever rank, and the code that one process would have ended with.
  static void expect_mistake(const Ended& e, const std::string& message) {
    EXPECT_EQ(e.code, 2) << e.err;
    EXPECT_EQ(e.err.substr(0, message.size()), message);
    EXPECT_EQ(std::count(e.err.begin(), e.err.end(), '\n'), 1) << e.err;
  }
  int64_t newest(const std::string& name) const {
    const auto steps = train::list_checkpoints(f.run(name));
    return steps.ok() && !steps->empty() ? steps->back() : -1;
  }
  void same_run(const std::string& a, const std::string& b, int64_t step) const {
    EXPECT_EQ(f.steps(a), f.steps(b)) << a << " " << b;
    EXPECT_EQ(f.tensors(a, step), f.tensors(b, step)) << a << " " << b;
  }
  RunFolder f;
};

// The process of a rank: of the two that have it in their environment, the one that the other has started.
inline pid_t process_of_rank(pid_t launcher, int rank) {
  const std::function<pid_t(pid_t, bool)> find = [&](pid_t parent, bool in_guard) -> pid_t {
    std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", parent));
    for (pid_t child = 0; children >> child;) {
      std::ifstream variables(fmt::format("/proc/{}/environ", child));
      bool same = false;
      for (std::string v; std::getline(variables, v, '\0');)
        same = same || v == fmt::format("PMI_RANK={}", rank);
      if (const pid_t deeper = find(child, same); deeper > 0) return deeper;
      if (same && in_guard) return child;
    }
    return -1;
  };
  return find(launcher, false);
}

inline bool alive(pid_t pid) { return ::kill(pid, 0) == 0; }

template <class Condition>
bool within_a_minute(Condition condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace lignum::testing
