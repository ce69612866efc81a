#include "base/text.h"

#include <gtest/gtest.h>

#include <cmath>

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
  EXPECT_EQ(shown("\xc3\xbc"), "\xc3\xbc");
  EXPECT_EQ(shown("a\xff\xc3\xbc"), "a???");
  EXPECT_EQ(shown(std::string(199, 'x') + "\xc3\xbc"), std::string(199, 'x') + "...");
  EXPECT_EQ(shown(std::string(300, '\x80')).size(), 3);  // no character begins anywhere
}

TEST(Text, Utf8) {
  for (const char* good : {"", "plain", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  // A lone continuation, a cut sequence, overlong forms, a surrogate, above the last code point, Latin-1.
  for (const char* bad : {"\x80", "a\xc3", "\xe2\x82", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xfc\x6d"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

TEST(Text, DurationsHaveTwoUnits) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(59.6), "1 min 00 s");
  EXPECT_EQ(duration_text(192), "3 min 12 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
  EXPECT_EQ(duration_text(100 * 3600), "4 d 04 h");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(NAN), "?");
}

}  // namespace
}  // namespace lignum
