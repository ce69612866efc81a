#include "pjrt/wire.h"

#include <gtest/gtest.h>

#include <limits>

#include "pjrt/options.h"

namespace lignum::pjrt {
namespace {

using wire::Field;
using wire::Reader;
using wire::Type;
using wire::Writer;

TEST(Wire, RoundTripsEveryFieldType) {
  const std::vector<int64_t> values = {
      0, 1, 127, 128, -1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  Writer out;
  for (int64_t v : values) out.integer(1, v);
  out.boolean(2, true);
  out.fixed64(3, -0.125);
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
  EXPECT_EQ(f.bytes, std::string_view("a\0b", 3));
  ASSERT_TRUE(reader.next(f));
  std::vector<int64_t> packed;
  ASSERT_TRUE(wire::append_integers(f, packed).ok());
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
  EXPECT_FALSE(wire::append_integers(packed, values).ok());
}

// Decodes what CompileOptions wrote, by field numbers of compile_options.proto.
TEST(CompileOptions, WritesTheMessage) {
  CompileOptions options;
  options.num_replicas = 2;
  options.num_partitions = 2;
  options.device_ids = {0, 1, 2, 3};
  options.use_shardy = true;
  options.overrides = {{"a", "text"}, {"b", true}, {"c", int64_t{65472}}, {"d", 0.5}};
  auto bytes = options.serialize();
  ASSERT_TRUE(bytes.ok());

  std::map<int, std::vector<std::string_view>> top;
  Reader reader(*bytes);
  for (Field f; reader.next(f);) top[f.number].push_back(f.bytes);
  ASSERT_TRUE(reader.status().ok());
  ASSERT_EQ(top[3].size(), 1u);
  ASSERT_EQ(top[7].size(), 4u);

  std::map<int, Field> build;
  Reader build_reader(top[3][0]);
  for (Field f; build_reader.next(f);) build[f.number] = f;
  EXPECT_EQ(build[1].integer(), -1);
  EXPECT_EQ(build[4].integer(), 2);
  EXPECT_EQ(build[5].integer(), 2);
  EXPECT_EQ(build[6].value, 0u);
  EXPECT_EQ(build[19].value, 1u);
  std::vector<std::vector<int64_t>> computations;  // one a partition: the devices of its replicas
  Reader assignment(build[9].bytes);
  for (Field f; assignment.next(f);) {
    if (f.number != 3) continue;
    Reader devices(f.bytes);
    Field ids;
    ASSERT_TRUE(devices.next(ids));
    ASSERT_TRUE(wire::append_integers(ids, computations.emplace_back()).ok());
  }
  EXPECT_EQ(computations, (std::vector<std::vector<int64_t>>{{0, 2}, {1, 3}}));

  std::map<std::string, Field> overrides;
  for (std::string_view entry : top[7]) {
    Field key;
    Field value;
    Field inner;
    Reader r(entry);
    ASSERT_TRUE(r.next(key) && r.next(value));
    Reader v(value.bytes);
    ASSERT_TRUE(v.next(inner));
    overrides[std::string(key.bytes)] = inner;
  }
  EXPECT_EQ(overrides["a"].number, 1);
  EXPECT_EQ(overrides["a"].bytes, "text");
  EXPECT_EQ(overrides["b"].number, 2);
  EXPECT_EQ(overrides["c"].number, 3);
  EXPECT_EQ(overrides["c"].integer(), 65472);
  EXPECT_EQ(overrides["d"].number, 4);
  EXPECT_EQ(overrides["d"].real(), 0.5);
}

TEST(CompileOptions, RefusesWhatCannotBe) {
  CompileOptions options;
  options.num_replicas = 0;
  EXPECT_EQ(options.serialize().status().code(), Code::user_error);
  options.num_replicas = 4;
  options.device_ids = {0, 1, 2};
  EXPECT_NE(options.serialize().status().message().find("needs 4"), std::string::npos);
  options.device_ids = {0, 1, 2, 1};
  EXPECT_NE(options.serialize().status().message().find("device 1 twice"), std::string::npos);
}

}  // namespace
}  // namespace lignum::pjrt
