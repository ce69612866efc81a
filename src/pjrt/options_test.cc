#include "pjrt/options.h"

#include <gtest/gtest.h>

#include <map>

#include "base/wire.h"

namespace lignum::pjrt {
namespace {

using wire::Field;
using wire::Reader;

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

TEST(Flags, AreReadAsACommandLineHasThem) {
  const auto flags = parse_flags("  --xla_a=1 xla_b=x=y\n--xla_c ");
  ASSERT_TRUE(flags.ok()) << flags.status().message();
  EXPECT_EQ(*flags,
            (std::map<std::string, OptionValue>{{"xla_a", "1"}, {"xla_b", "x=y"}, {"xla_c", "true"}}));
  EXPECT_TRUE(parse_flags("")->empty());
  EXPECT_EQ(parse_flags("--a=1").status().message().find("compile_xla_flags: '--a=1' is no flag"), 0u);
  EXPECT_EQ(parse_flags("--xla_a=1 --xla_a=2").status().message(), "compile_xla_flags: xla_a is given twice");
}

}  // namespace
}  // namespace lignum::pjrt
