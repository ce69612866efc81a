#include "exec/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace lignum::exec {
namespace {

std::unique_ptr<ThreadPool> pool_of(int threads, std::span<const int> cores = {}) {
  auto pool = ThreadPool::create(threads, cores);
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(pool).value();
}

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const auto pool = pool_of(threads);
    EXPECT_EQ(pool->threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 7, 100, 5003}) {
      std::vector<int> times(tasks);  // plain: a task that ran twice at once would be a race
      std::vector<std::atomic<int>> inside(threads);
      std::atomic<int> wrong{0};
      pool->run(tasks, [&](int64_t task, int thread) {
        if (thread < 0 || thread >= threads || inside[thread].fetch_add(1) != 0) ++wrong;
        ++times[task];
        inside[thread].fetch_sub(1);
      });
      EXPECT_EQ(wrong, 0);
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), tasks);
    }
  }
}

// What one run wrote is visible to the next, on whichever thread: no synchronisation but the pool's.
TEST(ThreadPool, ManyRunsInSequence) {
  const auto pool = pool_of(4);
  std::vector<int64_t> a(64, 1);
  std::vector<int64_t> b(64);
  for (int round = 0; round < 5000; ++round) {
    pool->run(64, [&](int64_t i, int) { b[i] = a[63 - i] + 1; });
    std::swap(a, b);
  }
  EXPECT_EQ(a, std::vector<int64_t>(64, 5001));
}

// Both tasks wait for each other: they end only if two threads run at once.
TEST(ThreadPool, ThreadsRunAtTheSameTime) {
  const auto pool = pool_of(2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> here{0};
    pool->run(2, [&](int64_t, int) {
      here.fetch_add(1);
      here.notify_all();
      for (int n = here.load(); n < 2; n = here.load()) here.wait(n);
    });
    EXPECT_EQ(here, 2);
  }
}

// Workers sleep by the time of the next run.
TEST(ThreadPool, WakesAfterAPause) {
  const auto pool = pool_of(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> here{0};
    pool->run(3, [&](int64_t, int) {
      here.fetch_add(1);
      here.notify_all();
      for (int n = here.load(); n < 3; n = here.load()) here.wait(n);
    });
    EXPECT_EQ(here, 3);
  }
}

TEST(ThreadPool, PinsAndGivesTheCallerItsCoresBack) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  std::vector<int> cores;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &before)) cores.push_back(c);
  }
  {
    const auto pool = pool_of(2, cores);
    std::vector<int> on(2, -1);
    std::atomic<int> here{0};
    pool->run(2, [&](int64_t, int thread) {
      here.fetch_add(1);
      here.notify_all();
      for (int n = here.load(); n < 2; n = here.load()) here.wait(n);
      on[thread] = sched_getcpu();
    });
    EXPECT_EQ(on[0], cores[0]);
    EXPECT_EQ(on[1], cores[1 % cores.size()]);
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPool, RefusesWhatItCannotDo) {
  for (const int threads : {0, -1, ThreadPool::kMaxThreads + 1}) {
    const Status status = ThreadPool::create(threads).status();
    EXPECT_EQ(status.code(), Code::user_error);
    EXPECT_NE(status.message().find(fmt::format("threads={}", threads)), std::string::npos);
  }
  const std::vector<int> bad{CPU_SETSIZE};
  for (const int threads : {1, 2}) {
    const Status status = ThreadPool::create(threads, bad).status();
    EXPECT_EQ(status.code(), Code::user_error);
    EXPECT_NE(status.message().find("core 1024"), std::string::npos) << status.message();
  }
}

TEST(ThreadPoolDeathTest, ARunInsideARunAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto pool = pool_of(2);
        pool->run(4, [&](int64_t, int) { pool->run(3, [](int64_t, int) {}); });
      },
      "a run of 3 tasks inside another run");
}

}  // namespace
}  // namespace lignum::exec
