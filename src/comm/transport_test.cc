#include "comm/transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "comm/allocation_count.h"
#include "comm/test_world.h"

namespace lignum::comm {
namespace {

std::vector<int> all_of(int n) {
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class Worlds : public testing::TestWithParam<TestWorld*> {
 protected:
  static TestWorld& world() { return *GetParam(); }
  // Runs body on n ranks that all have group 0, everyone.
  static Status on_ranks(int n, FunctionRef<Status(Transport&)> body) {
    return world().run(n, [&](Transport& t) -> Status {
      LIGNUM_ASSIGN_OR_RETURN(const int group, t.add_group(all_of(n)));
      EXPECT_EQ(group, 0);
      EXPECT_EQ(t.group_size(0), n);
      EXPECT_EQ(t.group_rank(0), t.rank());
      return body(t);
    });
  }
};
class Moves : public Worlds {};
class InOneMemory : public Worlds {};  // ranks have common variables
class Allocations : public Worlds {};
class Mismatch : public Worlds {
 protected:
  static std::string run_mismatched(const Collective& usual, const Collective& other);
};
class Deadlock : public Worlds {};
class Abort : public Worlds {};

std::string name_of(const testing::TestParamInfo<TestWorld*>& info) { return info.param->name(); }
INSTANTIATE_TEST_SUITE_P(All, Moves, testing::ValuesIn(test_worlds()), name_of);
INSTANTIATE_TEST_SUITE_P(All, InOneMemory, testing::ValuesIn(test_worlds_where([](const TestWorld& w) {
                           return w.shares_memory();
                         })),
                         name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(InOneMemory);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Allocations);
INSTANTIATE_TEST_SUITE_P(All, Allocations, testing::ValuesIn(test_worlds_where([](const TestWorld& w) {
                           return w.counts_allocations();
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, Mismatch, testing::ValuesIn(test_worlds()), name_of);
INSTANTIATE_TEST_SUITE_P(All, Deadlock, testing::ValuesIn(test_worlds()), name_of);
INSTANTIATE_TEST_SUITE_P(All, Abort, testing::ValuesIn(test_worlds()), name_of);

// A value that tells rank and place apart, a small integer: exact in every dtype that sums.
double value(int rank, int64_t i) { return static_cast<double>((int64_t{31} * rank + i * 7) % 23 - 11); }

std::vector<std::byte> filled(DType t, int64_t n, int rank) {
  std::vector<std::byte> data(n * dtype_size(t));
  for (int64_t i = 0; i < n; ++i) store_from_double(t, data.data(), i, value(rank, i));
  return data;
}

struct Shape {
  int64_t outer, local_rows, row_elems;
};
const Shape kShapes[] = {{1, 4, 3},   {3, 2, 5},    {2, 3, 1}, {1, 1, 1},
                         {5, 1, 700}, {1, 1000, 3}, {0, 2, 3}, {2, 3, 0}};
const DType kSummed[] = {DType::f32, DType::bf16, DType::f64, DType::i32};

TEST_P(Moves, AllGatherDropsThePad) {
  for (const int n : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::f8e5m2}) {
      for (const Shape& s : kShapes) {
        const int64_t whole = n * s.local_rows;
        std::vector<std::vector<std::byte>> in;
        for (int r = 0; r < n; ++r) in.push_back(filled(dtype, s.outer * s.local_rows * s.row_elems, r));
        for (const int64_t logical : {int64_t{1}, (whole + 1) / 2, whole - whole / 5, whole}) {
          const int64_t row = s.row_elems * dtype_size(dtype);
          // One byte more: nothing may be written past the end.
          std::vector<std::byte> expected(s.outer * logical * row + 1, std::byte{0x55});
          for (int64_t o = 0; o < s.outer; ++o) {
            for (int64_t g = 0; g < logical && row > 0; ++g) {
              std::memcpy(&expected[(o * logical + g) * row],
                          &in[g / s.local_rows][(o * s.local_rows + g % s.local_rows) * row], row);
            }
          }
          const Status status = on_ranks(n, [&](Transport& t) {
            std::vector<std::byte> out(expected.size(), std::byte{0x55});
            LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::all_gather,
                                          .dtype = dtype,
                                          .in = in[t.rank()].data(),
                                          .out = out.data(),
                                          .outer = s.outer,
                                          .local_rows = s.local_rows,
                                          .row_elems = s.row_elems,
                                          .logical_rows = logical}));
            EXPECT_EQ(out, expected);
            return Status();
          });
          ASSERT_TRUE(status.ok()) << status.message();
        }
      }
    }
  }
}

TEST_P(Moves, ReduceScatterGivesZerosForMissingRows) {
  for (const int n : {1, 2, 3, 4}) {
    for (const DType dtype : kSummed) {
      for (const Shape& s : kShapes) {
        const int64_t whole = n * s.local_rows;
        for (const int64_t logical : {int64_t{1}, (whole + 1) / 2, whole}) {
          const Status status = on_ranks(n, [&](Transport& t) {
            const auto in = filled(dtype, s.outer * logical * s.row_elems, t.rank());
            const int64_t count = s.outer * s.local_rows * s.row_elems;
            std::vector<std::byte> out((count + 1) * dtype_size(dtype), std::byte{0x55});
            LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::reduce_scatter,
                                          .dtype = dtype,
                                          .in = in.data(),
                                          .out = out.data(),
                                          .outer = s.outer,
                                          .local_rows = s.local_rows,
                                          .row_elems = s.row_elems,
                                          .logical_rows = logical}));
            std::vector<std::byte> expected(out.size(), std::byte{0x55});
            for (int64_t o = 0; o < s.outer; ++o) {
              for (int64_t row = 0; row < s.local_rows; ++row) {
                for (int64_t e = 0; e < s.row_elems; ++e) {
                  const int64_t global = t.rank() * s.local_rows + row;
                  double sum = 0;
                  for (int r = 0; r < n && global < logical; ++r) {
                    sum += value(r, (o * logical + global) * s.row_elems + e);
                  }
                  store_from_double(dtype, expected.data(), (o * s.local_rows + row) * s.row_elems + e, sum);
                }
              }
            }
            EXPECT_EQ(out, expected);
            return Status();
          });
          ASSERT_TRUE(status.ok()) << status.message();
        }
      }
    }
  }
}

// Below and above the size from which owners sum; in place and not.
TEST_P(Moves, AllReduce) {
  for (const int n : {1, 2, 3, 4}) {
    for (const DType dtype : kSummed) {
      for (const int64_t count : {0, 1, 63, 512, 2049, 5000}) {
        for (const bool in_place : {false, true}) {
          const Status status = on_ranks(n, [&](Transport& t) {
            auto in = filled(dtype, count, t.rank());
            std::vector<std::byte> apart(in.size());
            std::vector<std::byte>& out = in_place ? in : apart;
            LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::all_reduce,
                                          .dtype = dtype,
                                          .in = in.data(),
                                          .out = out.data(),
                                          .row_elems = count}));
            std::vector<std::byte> expected(in.size());
            for (int64_t i = 0; i < count; ++i) {
              double sum = 0;
              for (int r = 0; r < n; ++r) sum += value(r, i);
              store_from_double(dtype, expected.data(), i, sum);
            }
            EXPECT_EQ(out, expected);
            return Status();
          });
          ASSERT_TRUE(status.ok()) << status.message();
        }
      }
    }
  }
}

// The order of the ranks decides these bits, by hand: 2^24 + 1 is lost in fp32. Both paths, and the scatter.
TEST_P(Moves, SumsInRankOrderOnEveryRank) {
  const float by_rank[3][3] = {
      {0x1p24f, 1.0f, 0x1p24f}, {1.0f, 0x1p24f, -0x1p24f}, {-0x1p24f, -0x1p24f, 1.0f}};
  const float expected[3] = {0.0f, 0.0f, 1.0f};
  for (const int64_t repeats : {1, 3000}) {
    const Status status = on_ranks(3, [&](Transport& t) {
      std::vector<float> in;
      for (int64_t i = 0; i < repeats * 3; ++i) in.push_back(by_rank[t.rank()][i % 3]);
      std::vector<float> out(in.size(), 5.0f);
      const auto count = static_cast<int64_t>(in.size());
      LIGNUM_RETURN_IF_ERROR(
          t.run({.kind = Kind::all_reduce, .in = in.data(), .out = out.data(), .row_elems = count}));
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(out[i], expected[i % 3]) << i;
      std::vector<float> part(repeats, 5.0f);
      LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::reduce_scatter,
                                    .in = in.data(),
                                    .out = part.data(),
                                    .local_rows = repeats,
                                    .logical_rows = count}));
      for (int64_t i = 0; i < repeats; ++i) EXPECT_EQ(part[i], expected[(t.rank() * repeats + i) % 3]) << i;
      return Status();
    });
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(Moves, Bf16WireUnderF32Accumulator) {
  for (const int64_t count : {1, 9000}) {
    const Status status = on_ranks(2, [&](Transport& t) {
      const std::vector<uint16_t> in(count, t.rank() == 0 ? 0x3f80 : 0x3b80);  // 1, 2^-8
      std::vector<float> out(count);
      LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::all_reduce,
                                    .dtype = DType::bf16,
                                    .out_dtype = DType::f32,
                                    .in = in.data(),
                                    .out = out.data(),
                                    .row_elems = count}));
      EXPECT_EQ(out, std::vector<float>(count, 1.0f + 0x1p-8f));
      return Status();
    });
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(Moves, InPlaceGatherAndScatter) {
  const Status status = on_ranks(3, [](Transport& t) {
    std::vector<float> whole(6, -1.0f);
    whole[size_t{2} * t.rank()] = static_cast<float>(t.rank());
    whole[2 * t.rank() + 1] = static_cast<float>(10 * t.rank());
    LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::all_gather,
                                  .in = whole.data() + ptrdiff_t{2} * t.rank(),
                                  .out = whole.data(),
                                  .local_rows = 2,
                                  .logical_rows = 6}));
    EXPECT_EQ(whole, (std::vector<float>{0, 0, 1, 10, 2, 20}));
    float* mine = whole.data() + ptrdiff_t{2} * t.rank();
    LIGNUM_RETURN_IF_ERROR(t.run(
        {.kind = Kind::reduce_scatter, .in = whole.data(), .out = mine, .local_rows = 2, .logical_rows = 6}));
    EXPECT_EQ(mine[0], 3.0f * static_cast<float>(t.rank()));
    EXPECT_EQ(mine[1], 30.0f * static_cast<float>(t.rank()));
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(Moves, BroadcastFromEachRoot) {
  const Status status = on_ranks(3, [](Transport& t) {
    for (int root = 0; root < 3; ++root) {
      std::string text = t.rank() == root ? fmt::format("from {}", root) : "......";
      LIGNUM_RETURN_IF_ERROR(t.broadcast_bytes(0, text.data(), static_cast<int64_t>(text.size()), root));
      EXPECT_EQ(text, fmt::format("from {}", root));
    }
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(Moves, MeshTwoByTwoAlongBothAxes) {
  const Status status = world().run(4, [](Transport& t) -> Status {
    const std::vector<int> mesh{2, 2};
    for (const int axis : {0, 1}) {
      LIGNUM_ASSIGN_OR_RETURN(const int group,
                              t.add_group(axis_group(mesh, std::vector<int>{axis}, t.rank())));
      EXPECT_EQ(group, axis);
    }
    constexpr int32_t kDigit[] = {1, 10, 100, 1000};
    const int32_t own = kDigit[t.rank()];
    int32_t sum[2] = {};
    for (const int axis : {0, 1}) {
      LIGNUM_RETURN_IF_ERROR(t.run(
          {.kind = Kind::all_reduce, .dtype = DType::i32, .in = &own, .out = &sum[axis], .group = axis}));
    }
    EXPECT_EQ(sum[0], t.rank() % 2 == 0 ? 101 : 1010);
    EXPECT_EQ(sum[1], t.rank() < 2 ? 11 : 1100);
    int32_t both[2] = {};
    LIGNUM_RETURN_IF_ERROR(t.run({.kind = Kind::all_gather,
                                  .dtype = DType::i32,
                                  .in = &sum[0],
                                  .out = both,
                                  .logical_rows = 2,
                                  .group = 1}));
    EXPECT_EQ(both[0], 101);
    EXPECT_EQ(both[1], 1010);
    return {};
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(InOneMemory, BarrierHoldsUntilTheLastCame) {
  std::atomic<int> came{0};
  const Status status = on_ranks(4, [&](Transport& t) {
    for (int round = 1; round <= 200; ++round) {
      came.fetch_add(1);
      LIGNUM_RETURN_IF_ERROR(t.barrier(0));
      EXPECT_GE(came.load(), 4 * round);
      LIGNUM_RETURN_IF_ERROR(t.barrier(0));
    }
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(Moves, AGroupMustListThisRankInOrder) {
  const Status status = world().run(3, [](Transport& t) {
    if (t.rank() != 1) return Status();
    for (const std::vector<int>& bad : {std::vector<int>{}, {0, 2}, {1, 0}, {1, 1}, {1, 3}, {-1, 1}}) {
      EXPECT_EQ(t.add_group(bad).status().code(), Code::internal);
    }
    EXPECT_EQ(t.add_group(std::vector<int>{1, 2}).value(), 0);
    EXPECT_EQ(t.add_group(std::vector<int>{1}).value(), 1);
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

// A random sequence of collectives, the same on all ranks, over groups of a 2x2 mesh.
TEST_P(Moves, ManyIterations) {
  const Status status = world().run(4, [](Transport& t) -> Status {
    const std::vector<int> mesh{2, 2};
    for (const std::vector<int>& axes : {std::vector<int>{0}, {1}, {0, 1}}) {
      LIGNUM_RETURN_IF_ERROR(t.add_group(axis_group(mesh, axes, t.rank())).status());
    }
    const std::vector<std::vector<int>> groups{axis_group(mesh, std::vector<int>{0}, t.rank()),
                                               axis_group(mesh, std::vector<int>{1}, t.rank()), all_of(4)};
    const Random random(7, "collectives");
    std::vector<int32_t> in(4096);
    std::vector<int32_t> out(16384);
    for (int64_t k = 0; k < 3000; ++k) {
      const auto kind = static_cast<Kind>(random.below(4 * k, 6));
      const auto group = static_cast<int>(random.below(4 * k + 1, 3));
      const auto count = static_cast<int64_t>(random.below(4 * k + 2, k % 50 == 0 ? 4000 : 60)) + 1;
      const std::vector<int>& ranks = groups[group];
      const auto size = static_cast<int64_t>(ranks.size());
      const int64_t rows = kind == Kind::reduce_scatter ? (count + size - 1) / size : count;
      const int64_t logical = kind == Kind::reduce_scatter ? count : count * size;
      for (int64_t i = 0; i < count; ++i)
        in[i] = static_cast<int32_t>(int64_t{1000003} * t.rank() + i * 17 + k);
      LIGNUM_RETURN_IF_ERROR(t.run({.kind = kind,
                                    .dtype = DType::i32,
                                    .in = in.data(),
                                    .out = out.data(),
                                    .local_rows = rows,
                                    .logical_rows = logical,
                                    .group = group,
                                    .shift = kind == Kind::permute ? static_cast<int>(k % size) : 0,
                                    .id = k}));
      const auto sent = [&](int rank, int64_t i) {
        return static_cast<int32_t>(int64_t{1000003} * rank + i * 17 + k);
      };
      const auto sum = [&](int64_t i) {
        int32_t total = 0;
        for (const int r : ranks) total += sent(r, i);
        return total;
      };
      const int64_t first = t.group_rank(group) * rows;
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) {
        switch (kind) {
          case Kind::all_gather:
            for (int64_t r = 0; r < size; ++r) wrong += out[r * count + i] != sent(ranks[r], i) ? 1 : 0;
            break;
          case Kind::reduce_scatter:
            if (i < rows) wrong += out[i] != (first + i < count ? sum(first + i) : 0) ? 1 : 0;
            break;
          case Kind::all_reduce:
            wrong += out[i] != sum(i) ? 1 : 0;
            break;
          case Kind::broadcast:
            wrong += out[i] != sent(ranks[0], i) ? 1 : 0;
            break;
          case Kind::permute: {
            const auto source = static_cast<size_t>((t.group_rank(group) + size - k % size) % size);
            wrong += out[i] != sent(ranks[source], i) ? 1 : 0;
            break;
          }
          case Kind::barrier:
            break;
        }
      }
      EXPECT_EQ(wrong, 0) << kind_name(kind) << " at " << k;
    }
    return {};
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(Allocations, SteadyStateAllocatesNothing) {
  const Status status = on_ranks(3, [](Transport& t) {
    std::vector<float> in(9000, 1.0f);
    std::vector<float> out(27000);
    int64_t before = 0;
    for (int k = 0; k < 40; ++k) {
      if (k == 2) before = allocations_of_this_thread();
      for (const Kind kind : {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::broadcast,
                              Kind::permute, Kind::barrier}) {
        for (const int64_t rows : {1, 3000}) {
          LIGNUM_RETURN_IF_ERROR(t.run({.kind = kind,
                                        .in = in.data(),
                                        .out = out.data(),
                                        .local_rows = rows,
                                        .logical_rows = 3 * rows}));
        }
      }
    }
    EXPECT_EQ(allocations_of_this_thread(), before);
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

bool contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

// Rank 1 of 3 runs `other`, the rest `usual`: all must end with one error that names both.
std::string Mismatch::run_mismatched(const Collective& usual, const Collective& other) {
  std::vector<Status> seen(3);
  const Status status = on_ranks(3, [&](Transport& t) {
    std::vector<float> in(100);
    std::vector<float> out(300);
    Collective c = t.rank() == 1 ? other : usual;
    c.in = in.data();
    c.out = out.data();
    LIGNUM_RETURN_IF_ERROR(t.barrier(0));
    seen[t.rank()] = t.run(c);
    return seen[t.rank()];
  });
  for (const Status& s : seen) {
    if (world().shares_memory() || !s.ok()) {
      EXPECT_EQ(s.message(), status.message());
    }
  }
  EXPECT_EQ(status.code(), Code::internal);
  EXPECT_TRUE(contains(status, "ranks differ at collective 1 of group [0, 1, 2]")) << status.message();
  EXPECT_TRUE(contains(status, "rank 0 runs " + describe(usual))) << status.message();
  EXPECT_TRUE(contains(status, "rank 1 runs " + describe(other))) << status.message();
  return status.message();
}

TEST_P(Mismatch, OfAnyFieldEndsEveryRank) {
  const Collective usual{
      .kind = Kind::all_gather, .outer = 2, .local_rows = 4, .row_elems = 5, .logical_rows = 12, .id = 40};
  Collective other = usual;
  other.kind = Kind::all_reduce;
  run_mismatched(usual, other);
  other = usual;
  other.row_elems = 6;
  EXPECT_NE(run_mismatched(usual, other).find("row_elems 6"), std::string::npos);
  other = usual;
  other.logical_rows = 11;
  EXPECT_NE(run_mismatched(usual, other).find("logical_rows 11"), std::string::npos);
  other = usual;
  other.dtype = DType::i32;
  EXPECT_NE(run_mismatched(usual, other).find("i32"), std::string::npos);
  other = usual;
  other.id = 41;  // two gathers of equal sizes, in another order
  EXPECT_NE(run_mismatched(usual, other).find("id 41"), std::string::npos);
}

TEST_P(Mismatch, AnInvalidCollectiveEndsEveryRank) {
  const Status status = on_ranks(2, [](Transport& t) {
    const float x = 0;
    float y = 0;
    return t.run({.kind = Kind::all_reduce, .in = &x, .out = t.rank() == 1 ? nullptr : &y});
  });
  EXPECT_TRUE(contains(status, "rank 1: all_reduce id 0")) << status.message();
  EXPECT_TRUE(contains(status, "null")) << status.message();
}

TEST_P(Deadlock, ACycleOfGroupsIsFound) {
  const Status status = world().run(3, [](Transport& t) -> Status {
    const std::vector<std::vector<int>> first{{0, 1}, {1, 2}, {0, 2}};
    const std::vector<std::vector<int>> second{{0, 2}, {0, 1}, {1, 2}};
    LIGNUM_RETURN_IF_ERROR(t.add_group(first[t.rank()]).status());
    LIGNUM_RETURN_IF_ERROR(t.add_group(second[t.rank()]).status());
    LIGNUM_RETURN_IF_ERROR(t.barrier(0, 70 + t.rank()));
    return t.barrier(1);
  });
  EXPECT_EQ(status.code(), Code::internal);
  EXPECT_TRUE(contains(status, "ranks wait for each other")) << status.message();
  EXPECT_TRUE(contains(status, "rank 0 waits for rank 1 in group [0, 1] with barrier id 70"))
      << status.message();
  EXPECT_TRUE(contains(status, "rank 1 waits for rank 2 in group [1, 2] with barrier id 71"))
      << status.message();
  EXPECT_TRUE(contains(status, "rank 2 waits for rank 0 in group [0, 2] with barrier id 72"))
      << status.message();
}

TEST_P(Deadlock, ARankThatHasLeftIsNotWaitedFor) {
  for (const bool late : {false, true}) {
    const Status status = on_ranks(3, [&](Transport& t) {
      LIGNUM_RETURN_IF_ERROR(t.barrier(0));
      if (t.rank() == 2) {
        if (late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return Status();
      }
      return t.barrier(0, 9);
    });
    EXPECT_EQ(status.code(), Code::internal);
    EXPECT_TRUE(contains(status, "waits for rank 2 in group [0, 1, 2] with barrier id 9"))
        << status.message();
    EXPECT_TRUE(contains(status, "rank 2 has left")) << status.message();
  }
}

TEST_P(Abort, WakesEveryWaiterAndStays) {
  const Status status = on_ranks(4, [](Transport& t) {
    if (t.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others sleep by now
      return user_error("disk full");
    }
    const Status first = t.barrier(0);
    EXPECT_EQ(first.message(), "disk full");
    t.abort(internal_error("a later error"));
    const Status second = t.barrier(0);
    EXPECT_EQ(second.message(), "disk full");
    EXPECT_EQ(second.code(), Code::user_error);
    return second;
  });
  EXPECT_EQ(status.code(), Code::user_error);
  EXPECT_EQ(status.message(), "disk full");
}

// The world ends while ranks are in the middle of their copies: those whose call returns first free their
// buffers.
TEST_P(Abort, BuffersMayBeFreedWhenACallReturns) {
  const Random random(3, "aborts");
  for (uint64_t round = 0; round < 40; ++round) {
    const auto stop = static_cast<int64_t>(random.below(2 * round, 12)) + 1;
    const auto who = static_cast<int>(random.below(2 * round + 1, 3));
    const auto kind = static_cast<Kind>(round % 3);
    const Status status = world().run(3, [&](Transport& t) -> Status {
      LIGNUM_RETURN_IF_ERROR(t.add_group(all_of(3)).status());
      std::atomic<int64_t> started{0};
      std::thread outside;
      if (t.rank() == who) {
        outside = std::thread([&] {
          while (started.load() < stop) std::this_thread::yield();
          t.abort(check_failed("stop"));
        });
      }
      Status ended;
      for (int64_t k = 0; ended.ok(); ++k) {
        std::vector<float> in(30000, 1.0f);
        std::vector<float> out(90000);
        started = k;
        ended = t.run(
            {.kind = kind, .in = in.data(), .out = out.data(), .local_rows = 10000, .logical_rows = 30000});
      }
      if (outside.joinable()) outside.join();
      return ended;
    });
    EXPECT_EQ(status.message(), "stop");
  }
}

TEST_P(Abort, FromOutside) {
  const Status status = world().run(2, [](Transport& t) -> Status {
    LIGNUM_RETURN_IF_ERROR(t.add_group(all_of(2)).status());
    std::atomic<bool> inside{false};
    std::thread outside;
    if (t.rank() == 0) {
      outside = std::thread([&] {
        inside.wait(false);
        t.abort(check_failed("interrupted"));
      });
    }
    Status ended;
    while (ended.ok()) {
      ended = t.barrier(0);
      inside = true;
      inside.notify_all();
    }
    if (outside.joinable()) outside.join();
    return ended;
  });
  EXPECT_EQ(status.code(), Code::check_failed);
  EXPECT_EQ(status.message(), "interrupted");
}

}  // namespace
}  // namespace lignum::comm
