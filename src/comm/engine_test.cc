#include "comm/engine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/allocation_count.h"
#include "comm/threads.h"

namespace lignum::comm {
namespace {

Status with_engines(int n, const EngineOptions& options, FunctionRef<Status(CommEngine&, int rank)> body) {
  ThreadWorld world(n);
  return world.run([&](Transport& t) -> Status {
    std::vector<int> ranks;
    for (int r = 0; r < n; ++r) ranks.push_back(r);
    LIGNUM_RETURN_IF_ERROR(t.add_group(ranks).status());
    LIGNUM_ASSIGN_OR_RETURN(const std::unique_ptr<CommEngine> engine, CommEngine::create(t, options));
    Status status = body(*engine, t.rank());
    if (!status.ok()) engine->abort(status);
    return status;
  });
}

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

class Engine : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Overlap, Engine, testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

// Each collective reads what the one before it wrote: only the order of submission gives these values.
TEST_P(Engine, RunsInOrderOfSubmission) {
  const Status status =
      with_engines(3, {.overlap = GetParam(), .capacity = 4}, [](CommEngine& engine, int rank) {
        std::vector<int32_t> values(64);
        std::vector<Timing> timings(63);
        std::vector<Ticket> tickets;
        values[0] = rank;
        for (int k = 0; k < 63; ++k) {
          if (k == 20)
            values[20] = 1;  // not reached yet by any submitted one: 20 is overwritten by ticket 20
          tickets.push_back(engine.submit({.kind = Kind::all_reduce,
                                           .dtype = DType::i32,
                                           .in = &values[k],
                                           .out = &values[k + 1],
                                           .id = k},
                                          &timings[k]));
          EXPECT_EQ(tickets.back(), static_cast<Ticket>(k + 1));
          if (k == 19) LIGNUM_RETURN_IF_ERROR(engine.wait(tickets.back()));
        }
        LIGNUM_RETURN_IF_ERROR(engine.drain());
        // From 1 on every rank: tripled 43 times, modulo 2^32.
        uint32_t power = 1;
        for (int k = 20; k < 63; ++k) power *= 3;
        EXPECT_EQ(static_cast<uint32_t>(values[63]), power);
        EXPECT_EQ(values[1], 3);
        for (size_t k = 0; k < tickets.size(); ++k) {
          EXPECT_TRUE(engine.done(tickets[k]));
          LIGNUM_RETURN_IF_ERROR(engine.wait(tickets[k]));
          EXPECT_LE(timings[k].start_ns, timings[k].end_ns);
          if (k > 0) {
            EXPECT_LE(timings[k - 1].end_ns, timings[k].start_ns);
          }
        }
        return Status();
      });
  ASSERT_TRUE(status.ok()) << status.message();
}

// Rank 1 submits once rank 0 computes, and rank 0 computes until it sees the collective done: it ends only if
// the collective ran meanwhile.
TEST(EngineOverlap, ACollectiveRunsWhileTheRankComputes) {
  std::atomic<bool> computing{false};
  const Status status = with_engines(2, {}, [&](CommEngine& engine, int rank) {
    const float in = static_cast<float>(rank + 1);
    float out = 0;
    Timing timing;
    if (rank == 1) computing.wait(false);
    const int64_t submitted = now_ns();
    const Ticket ticket = engine.submit({.kind = Kind::all_reduce, .in = &in, .out = &out}, &timing);
    if (rank == 0) {
      EXPECT_FALSE(engine.done(ticket));
      const int64_t compute_start = now_ns();
      computing = true;
      computing.notify_all();
      volatile double work = 1;
      while (!engine.done(ticket)) work = work * 1.0000001;
      const int64_t compute_end = now_ns();
      EXPECT_LT(compute_start, timing.end_ns);
      EXPECT_LT(timing.end_ns, compute_end);
    }
    LIGNUM_RETURN_IF_ERROR(engine.wait(ticket));
    EXPECT_EQ(out, 3.0f);
    EXPECT_GE(timing.start_ns, submitted);
    EXPECT_GE(timing.end_ns, timing.start_ns);
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(EngineOverlap, OffRunsInsideSubmit) {
  const Status status = with_engines(2, {.overlap = false}, [](CommEngine& engine, int rank) {
    const float in = static_cast<float>(rank + 1);
    float out = 0;
    const Ticket ticket = engine.submit({.kind = Kind::all_reduce, .in = &in, .out = &out});
    EXPECT_EQ(out, 3.0f);
    EXPECT_TRUE(engine.done(ticket));
    return engine.wait(ticket);
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(Engine, AFailureReachesItsWaitAndAllLaterOnes) {
  std::atomic<int> seen{0};
  const Status status = with_engines(2, {.overlap = GetParam()}, [&](CommEngine& engine, int rank) {
    std::array<float, 4> in{};
    std::array<float, 4> out{};
    const Ticket good = engine.submit({.kind = Kind::all_reduce, .in = in.data(), .out = out.data()});
    LIGNUM_RETURN_IF_ERROR(engine.wait(good));
    const Ticket bad = engine.submit(
        {.kind = Kind::all_reduce, .in = in.data(), .out = out.data(), .row_elems = rank + 2, .id = 5});
    const Ticket after = engine.submit({.kind = Kind::barrier});
    EXPECT_NE(engine.wait(after).message().find("row_elems 3"), std::string::npos);
    EXPECT_NE(engine.wait(bad).message().find("row_elems 3"), std::string::npos);
    EXPECT_TRUE(engine.wait(good).ok());
    EXPECT_EQ(engine.drain().code(), Code::internal);
    ++seen;
    return engine.wait(bad);
  });
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(status.code(), Code::internal);
}

TEST(EngineAbort, WakesAnExecutorThatWaits) {
  const Status status = with_engines(2, {}, [](CommEngine& engine, int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return check_failed("loss is not a number");
    }
    const Status ended = engine.wait(engine.submit({.kind = Kind::barrier}));
    EXPECT_EQ(ended.message(), "loss is not a number");
    return ended;
  });
  EXPECT_EQ(status.code(), Code::check_failed);
}

TEST_P(Engine, TheDestructorRunsWhatWasSubmitted) {
  std::array<std::array<int32_t, 100>, 2> out{};
  const Status status =
      with_engines(2, {.overlap = GetParam(), .capacity = 128}, [&](CommEngine& engine, int rank) {
        static const int32_t one = 1;
        for (int32_t& o : out[rank]) {
          engine.submit({.kind = Kind::all_reduce, .dtype = DType::i32, .in = &one, .out = &o});
        }
        return Status();
      });
  ASSERT_TRUE(status.ok()) << status.message();
  for (const auto& rank : out) {
    for (const int32_t o : rank) EXPECT_EQ(o, 2);
  }
}

TEST_P(Engine, SubmitAndWaitAllocateNothing) {
  std::atomic<int64_t> before{0};
  const Status status =
      with_engines(2, {.overlap = GetParam(), .capacity = 8}, [&](CommEngine& engine, int rank) {
        std::vector<float> in(5000, 1.0f);
        std::vector<float> out(5000);
        const auto rounds = [&](int n) -> Status {
          for (int k = 0; k < n; ++k) {
            Ticket ticket = 0;
            for (int i = 0; i < 20; ++i) {
              ticket = engine.submit(
                  {.kind = Kind::all_reduce, .in = in.data(), .out = out.data(), .row_elems = 5000});
            }
            LIGNUM_RETURN_IF_ERROR(engine.wait(ticket));
          }
          return Status();
        };
        LIGNUM_RETURN_IF_ERROR(rounds(2));
        if (rank == 0) before = allocations_of_all_threads();
        LIGNUM_RETURN_IF_ERROR(engine.wait(engine.submit({.kind = Kind::barrier})));
        LIGNUM_RETURN_IF_ERROR(rounds(20));
        LIGNUM_RETURN_IF_ERROR(engine.wait(engine.submit({.kind = Kind::barrier})));
        if (rank == 0) {
          EXPECT_EQ(allocations_of_all_threads(), before);
        }
        return engine.wait(engine.submit({.kind = Kind::barrier}));
      });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(EngineCores, KeptOnTheGivenOnesAndRefusedOnOthers) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  ThreadWorld world(1);
  Transport& t = world.transport(0);
  ASSERT_TRUE(t.add_group(std::vector<int>{0}).ok());
  {
    const auto engine = CommEngine::create(t, {.cores = {core}});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_TRUE(engine.value()->wait(engine.value()->submit({.kind = Kind::barrier})).ok());
  }
  for (const int bad : {-1, CPU_SETSIZE}) {
    const auto engine = CommEngine::create(t, {.cores = {bad}});
    EXPECT_EQ(engine.status().code(), Code::user_error);
    EXPECT_NE(engine.status().message().find(std::to_string(bad)), std::string::npos);
  }
}

}  // namespace
}  // namespace lignum::comm
