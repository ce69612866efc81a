#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lignum::train {
namespace {

LearningRateSchedule of(const std::vector<std::string>& words) {
  const auto config = config::Config::parse("", "", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return LearningRateSchedule::from(*config);
}

TEST(Schedule, WarmsUpThenFollowsACosineThenIsZero) {
  const auto s = of({"steps=150", "learning_rate_schedule_steps=100", "learning_rate=1e-3",
                     "warmup_steps_fraction=0.1", "learning_rate_final_fraction=0.1"});
  EXPECT_EQ(s.warmup_steps, 10);
  EXPECT_EQ(s.at(0), 0);
  EXPECT_DOUBLE_EQ(s.at(1), 1e-4);
  EXPECT_DOUBLE_EQ(s.at(9), 9e-4);
  EXPECT_DOUBLE_EQ(s.at(10), 1e-3);
  // 89 intervals from step 10 to 99: step 40 is 30 of them in.
  EXPECT_NEAR(s.at(40), 1e-3 * (0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * 30 / 89))), 1e-18);
  EXPECT_DOUBLE_EQ(s.at(99), 1e-4);
  EXPECT_EQ(s.at(100), 0);
  EXPECT_EQ(s.at(149), 0);
  for (int k = 11; k < 100; ++k) EXPECT_LT(s.at(k), s.at(k - 1)) << k;
}

TEST(Schedule, Edges) {
  EXPECT_DOUBLE_EQ(of({"steps=10", "warmup_steps_fraction=0", "learning_rate=1"}).at(0), 1);
  const auto all_warmup = of({"steps=4", "warmup_steps_fraction=1", "learning_rate=1"});
  EXPECT_DOUBLE_EQ(all_warmup.at(3), 0.75);
  EXPECT_EQ(all_warmup.at(4), 0);
  // A cosine of one step is at its end.
  EXPECT_DOUBLE_EQ(of({"steps=1", "learning_rate=1"}).at(0), 0.1);
  EXPECT_EQ(of({"steps=19"}).warmup_steps, 1);  // int(1.9)
}

}  // namespace
}  // namespace lignum::train
