#include "comm/paced.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

#include "comm/threads.h"
#include "comm/work_queue.h"

namespace lignum::comm {
namespace {

constexpr double kSeconds = 0.05;
double of_data(const Collective&, int group) { return group == 2 ? kSeconds : 0; }

TEST(Paced, ACollectiveTakesItsTimeAndMovesTheSame) {
  const Status ended = ThreadWorld(2).run([](Transport& inner) -> Status {
    PacedTransport paced(inner, of_data);
    LIGNUM_ASSIGN_OR_RETURN(const int group, paced.add_group(std::array{0, 1}));
    const float own = static_cast<float>(paced.rank()) + 1;
    float sum = 0;
    const auto begin = std::chrono::steady_clock::now();
    LIGNUM_RETURN_IF_ERROR(paced.run({.kind = Kind::all_reduce, .in = &own, .out = &sum, .group = group}));
    EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), kSeconds);
    EXPECT_EQ(sum, 3);
    return {};
  });
  EXPECT_TRUE(ended.ok()) << ended.message();
}

// Three sums of 20 s each, submitted 100 s ago to an engine that comes to them now: the link has done them
// all.
TEST(Paced, TheLinkDoesNotWaitForTheThread) {
  const Status ended = ThreadWorld(2).run([](Transport& inner) -> Status {
    PacedTransport paced(inner, [](const Collective&, int) { return 20.0; });
    LIGNUM_ASSIGN_OR_RETURN(const int group, paced.add_group(std::array{0, 1}));
    float value = 1;
    const int64_t begin = steady_ns();
    for (int i = 0; i < 3; ++i)
      LIGNUM_RETURN_IF_ERROR(paced.run({.kind = Kind::all_reduce,
                                        .in = &value,
                                        .out = &value,
                                        .group = group,
                                        .submitted_ns = begin - 100'000'000'000}));
    EXPECT_LT(steady_ns() - begin, 20'000'000'000);
    EXPECT_EQ(value, 8);
    return {};
  });
  EXPECT_TRUE(ended.ok()) << ended.message();
}

TEST(Paced, AnEndOfTheWorldIsNotSleptThrough) {
  const Status ended = ThreadWorld(2).run([](Transport& inner) -> Status {
    PacedTransport paced(inner, [](const Collective&, int) { return 1e6; });
    LIGNUM_ASSIGN_OR_RETURN(const int group, paced.add_group(std::array{0, 1}));
    if (paced.rank() == 1) return user_error("gives up");
    float value = 0;
    return paced.run({.kind = Kind::all_reduce, .in = &value, .out = &value, .group = group});
  });
  EXPECT_EQ(ended.message(), "gives up");
}

TEST(Paced, RanksThatDifferAreToldAsEver) {
  const Status ended = ThreadWorld(2).run([](Transport& inner) -> Status {
    PacedTransport paced(inner, of_data);
    LIGNUM_ASSIGN_OR_RETURN(const int group, paced.add_group(std::array{0, 1}));
    std::array<float, 2> value{};
    return paced.run({.kind = Kind::all_reduce,
                      .in = value.data(),
                      .out = value.data(),
                      .row_elems = 1 + paced.rank(),
                      .group = group});
  });
  EXPECT_NE(ended.message().find("row_elems 2"), std::string::npos) << ended.message();
}

}  // namespace
}  // namespace lignum::comm
