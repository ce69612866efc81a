#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lignum {
namespace {

// The known-answer vectors that the authors publish with Random123.
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, NormalHasUnitMoments) {
  const Random r(1, "x");
  double sum = 0, squares = 0;
  constexpr int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double v = r.normal(i);
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / n, 0.0, 4.0 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1.0, 4.0 * std::sqrt(2.0 / n));
  EXPECT_NE(Random(1, "y").bits(0), r.bits(0));
  EXPECT_NE(Random(2, "x").bits(0), r.bits(0));
}

}  // namespace
}  // namespace lignum
