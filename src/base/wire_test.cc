#include "base/wire.h"

#include <gtest/gtest.h>

#include <limits>

namespace lignum::wire {
namespace {

TEST(Wire, RoundTripsEveryFieldType) {
  const std::vector<int64_t> values = {
      0, 1, 127, 128, -1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  Writer out;
  for (int64_t v : values) out.integer(1, v);
  out.boolean(2, true);
  out.fixed64(3, -0.125);
  out.fixed32(5, 1.5F);
  out.bytes(4, std::string_view("a\0b", 3));
  out.packed(5, values);
  out.varint(536870911, 7);  // the largest field number

  Reader reader(out.str());
  Field f;
  for (int64_t v : values) {
    ASSERT_TRUE(reader.next(f));
    EXPECT_EQ(f.number, 1);
    EXPECT_EQ(f.integer(), v);
  }
  ASSERT_TRUE(reader.next(f));
  EXPECT_EQ(f.value, 1u);
  ASSERT_TRUE(reader.next(f));
  EXPECT_EQ(f.type, Type::fixed64);
  EXPECT_EQ(f.real(), -0.125);
  ASSERT_TRUE(reader.next(f));
  EXPECT_EQ(f.type, Type::fixed32);
  EXPECT_EQ(f.single(), 1.5F);
  ASSERT_TRUE(reader.next(f));
  EXPECT_EQ(f.bytes, std::string_view("a\0b", 3));
  ASSERT_TRUE(reader.next(f));
  std::vector<int64_t> packed;
  ASSERT_TRUE(append_integers(f, packed).ok());
  EXPECT_EQ(packed, values);
  ASSERT_TRUE(reader.next(f));
  EXPECT_EQ(f.number, 536870911);
  EXPECT_FALSE(reader.next(f));
  EXPECT_TRUE(reader.status().ok());
}

// The examples of the format's own description: field 1 = 150 is 08 96 01; -1 takes ten bytes.
TEST(Wire, MatchesTheFormatsExamples) {
  Writer out;
  out.integer(1, 150);
  EXPECT_EQ(out.str(), "\x08\x96\x01");
  Writer negative;
  negative.integer(1, -1);
  EXPECT_EQ(negative.str(), "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  Writer packed;
  packed.packed(6, {3, 270, 86942});
  EXPECT_EQ(packed.str(), "\x32\x06\x03\x8e\x02\x9e\xa7\x05");
}

TEST(Wire, EveryCutIsAnErrorOrAWholePrefix) {
  Writer inner;
  inner.integer(1, 300);
  Writer out;
  out.bytes(2, inner.str());
  out.fixed64(3, 1.5);
  const std::string whole = out.str();
  const size_t first_end = 2 + inner.str().size();
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    Reader reader(std::string_view(whole).substr(0, cut));
    for (Field f; reader.next(f);) {
    }
    const bool clean = cut == 0 || cut == first_end || cut == whole.size();
    EXPECT_EQ(reader.status().ok(), clean) << cut << ": " << reader.status().message();
  }
}

TEST(Wire, RefusesMalformedInput) {
  const auto error_of = [](std::string_view bytes) {
    Reader reader(bytes);
    for (Field f; reader.next(f);) {
    }
    return reader.status().message();
  };
  EXPECT_NE(error_of(std::string_view("\x00\x01", 2)).find("field number"), std::string::npos);
  EXPECT_NE(error_of("\x0b").find("wire type"), std::string::npos);  // a group
  EXPECT_NE(error_of("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f").find("64 bits"), std::string::npos);
  EXPECT_NE(error_of("\x12\xff\xff\xff\xff\x0f").find("cut short"), std::string::npos);  // a length of 4 GiB
  Field packed;
  packed.number = 9;
  packed.type = Type::bytes;
  packed.bytes = "\x01\x80";
  std::vector<int64_t> values;
  EXPECT_FALSE(append_integers(packed, values).ok());
}

}  // namespace
}  // namespace lignum::wire
