#include "base/text.h"

#include <gtest/gtest.h>

namespace lignum {
namespace {

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("steps", "setps"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Text, NearestNames) {
  const std::vector<std::string_view> names = {"learning_rate", "learning_rate_schedule_steps", "steps",
                                               "remat_policy"};
  EXPECT_EQ(nearest_names("learning_rat", names),
            (std::vector<std::string_view>{"learning_rate", "learning_rate_schedule_steps"}));
  EXPECT_EQ(nearest_names("remat", names), std::vector<std::string_view>{"remat_policy"});
  EXPECT_TRUE(nearest_names("zzz", names).empty());
  EXPECT_TRUE(nearest_names("", names).empty());
  EXPECT_TRUE(nearest_names(std::string(100000, 'a'), names).empty());
  EXPECT_EQ(nearest_hint("stesp", names), "; nearest: 'steps'");
  EXPECT_EQ(nearest_hint("zzz", names), "");
}

TEST(Text, ShownFitsALine) {
  EXPECT_EQ(shown("a\nb\x1b[31m"), "a?b?[31m");
  EXPECT_EQ(shown(std::string(1000, 'x')), std::string(200, 'x') + "...");
}

}  // namespace
}  // namespace lignum
