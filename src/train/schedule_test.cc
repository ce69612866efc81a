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

TEST(Schedule, WarmsUpIsStableAndDecays) {
  std::vector<std::string> words = {"steps=120", "learning_rate_schedule_steps=100", "learning_rate=1",
                                    "lr_schedule_type=wsd", "wsd_decay_steps_fraction=0.21"};
  const auto linear = of(words);
  words.emplace_back("wsd_decay_style=cosine");
  const auto cosine = of(words);
  for (const auto& s : {linear, cosine}) {
    EXPECT_EQ(s.at(0), 0);
    EXPECT_DOUBLE_EQ(s.at(9), 0.9);
    for (int k = 10; k <= 79; ++k) EXPECT_EQ(s.at(k), 1) << k;  // 79 is the first of 21 steps that decay
    EXPECT_DOUBLE_EQ(s.at(99), 0.1);
    EXPECT_EQ(s.at(100), 0);
    EXPECT_DOUBLE_EQ(s.at(89), 0.55);  // half way
  }
  EXPECT_DOUBLE_EQ(linear.at(84), 1 - 0.9 * 5 / 20);
  EXPECT_DOUBLE_EQ(cosine.at(84), 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * 5 / 20)));
}

TEST(Schedule, WarmUpAndDecayAreAtMostAll) {
  std::vector<std::string> words = {"lr_schedule_type=wsd", "warmup_steps_fraction=0.5",
                                    "wsd_decay_steps_fraction=0.5"};
  EXPECT_TRUE(config::Config::parse("", "", words).ok());
  words.back() = "wsd_decay_steps_fraction=0.6";
  const auto more = config::Config::parse("", "", words);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().message(),
            "warmup_steps_fraction=0.5 and wsd_decay_steps_fraction=0.6: together at most 1");
  words.front() = "lr_schedule_type=cosine";
  EXPECT_TRUE(config::Config::parse("", "", words).ok());
}

TEST(Schedule, Edges) {
  // No decay, and a decay of one step, which is at its end.
  const std::vector<std::string> wsd = {"steps=10", "learning_rate=1", "lr_schedule_type=wsd"};
  EXPECT_DOUBLE_EQ(of({wsd[0], wsd[1], wsd[2], "wsd_decay_steps_fraction=0"}).at(9), 1);
  EXPECT_DOUBLE_EQ(of(wsd).at(8), 1);
  EXPECT_DOUBLE_EQ(of(wsd).at(9), 0.1);
  EXPECT_DOUBLE_EQ(of({wsd[0], wsd[1], wsd[2], "wsd_decay_steps_fraction=0.9"}).at(1), 1);

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
