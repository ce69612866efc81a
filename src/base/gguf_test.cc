#include "base/gguf.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/dtype.h"
#include "base/gguf_testing.h"

namespace lignum {
namespace {

using testing::GgufBuilder;

Result<GgufReader> parse(const std::string& file) {
  return GgufReader::parse(std::as_bytes(std::span(file)), "f");
}

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int v : values) bytes += static_cast<char>(v);
  return bytes;
}

std::vector<float> read(const GgufReader& file, std::string_view name) {
  const GgufTensor& t = *file.find(name);
  std::vector<float> out(static_cast<size_t>(t.elements));
  file.read_as_f32(t, out.data(), 0, t.elements);
  return out;
}

TEST(Gguf, ReadsValuesOfEveryKind) {
  GgufBuilder b;
  b.value("u8", 0, bytes_of({200}))
      .value("i8", 1, bytes_of({200}))
      .value("u64", 10, GgufBuilder::raw(int64_t{7}));
  b.f32("eps", 1e-5f).boolean("flag", true).string("text", "Ġa").strings("list", {"", "b"});
  b.integers("ids", {3, -1});
  const std::string bytes = b.build();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(**file->get<int64_t>("u8"), 200);
  EXPECT_EQ(**file->get<int64_t>("i8"), -56);
  EXPECT_EQ(**file->get<int64_t>("u64"), 7);
  EXPECT_EQ(**file->get<double>("eps"), 1e-5);
  EXPECT_EQ(**file->get<bool>("flag"), true);
  EXPECT_EQ(**file->get<std::string_view>("text"), "Ġa");
  EXPECT_EQ(**file->get<std::vector<std::string_view>>("list"), (std::vector<std::string_view>{"", "b"}));
  EXPECT_EQ(**file->get<std::vector<int64_t>>("ids"), (std::vector<int64_t>{3, -1}));
  EXPECT_FALSE(file->get<bool>("absent")->has_value());
  EXPECT_EQ(file->get<bool>("text").status().message(), "f: text is a string; a boolean is expected");
}

// Blocks by hand: a scale of 0.5 is the half 0x3800, a minimum of -1 is 0xbc00.
TEST(Gguf, DequantisesEveryType) {
  std::string q8 = bytes_of({0x00, 0x38}), q41 = bytes_of({0x00, 0x38, 0x00, 0xbc}),
              q40 = bytes_of({0x00, 0x38});
  for (int i = 0; i < 32; ++i) q8 += static_cast<char>(i - 16);
  for (int i = 0; i < 16; ++i) {
    q41 += static_cast<char>(i | (15 - i) << 4);
    q40 += static_cast<char>(i | (15 - i) << 4);
  }
  GgufBuilder b;
  b.tensor("f32", {1, 2}, 0, GgufBuilder::raw(1.5f) + GgufBuilder::raw(-3e-40f));
  b.tensor("f16", {3}, 1, bytes_of({0x00, 0x3c, 0x01, 0x00, 0xff, 0xfb}));
  b.tensor("bf16", {2}, 30, bytes_of({0x80, 0x3f, 0x00, 0xc0}));
  b.tensor("q8", {32}, 8, q8).tensor("q41", {32, 1}, 3, q41).tensor("q40", {32}, 2, q40);
  b.tensor("none", {32, 0}, 3, "");
  const std::string bytes = b.build();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->find("f32")->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(read(*file, "f32"), (std::vector<float>{1.5f, -3e-40f}));
  EXPECT_EQ(read(*file, "f16"), (std::vector<float>{1, 0x1p-24f, -65504}));
  EXPECT_EQ(read(*file, "bf16"), (std::vector<float>{1, -2}));
  const std::vector<float> v8 = read(*file, "q8"), v41 = read(*file, "q41"), v40 = read(*file, "q40");
  for (int i = 0; i < 32; ++i) {
    const auto k = static_cast<size_t>(i);
    const int q = i < 16 ? i : 31 - i;
    EXPECT_EQ(v8[k], 0.5f * static_cast<float>(i - 16));
    EXPECT_EQ(v41[k], 0.5f * static_cast<float>(q) - 1) << i;
    EXPECT_EQ(v40[k], 0.5f * static_cast<float>(q - 8)) << i;
  }
  EXPECT_EQ(file->find("none")->elements, 0);
}

std::string error_of(const std::string& bytes) {
  const auto file = parse(bytes);
  EXPECT_FALSE(file.ok()) << "accepted";
  if (file.ok()) return "";
  EXPECT_EQ(file.status().code(), Code::user_error);
  return file.status().message();
}

TEST(Gguf, HostileFilesAreRefusedByName) {
  using B = GgufBuilder;
  const auto header = [](uint64_t tensors, uint64_t keys) {
    return "GGUF" + B::raw<uint32_t>(3) + B::raw(tensors) + B::raw(keys);
  };
  const uint64_t huge = uint64_t{1} << 63;
  const std::pair<std::string, const char*> cases[] = {
      {"GGU", "f: the file does not begin with \"GGUF\""},
      {"GGUF" + bytes_of({3, 0, 0}), "f: the file ends at byte 3, inside the version"},
      {"GGUF" + B::raw<uint32_t>(0x03000000), "f: version 50331648; 2 and 3 are read, little-endian"},
      {header(0, huge), "f: the file ends at byte 20, inside a key"},
      {header(huge, 0), "f: the file ends at byte 20, inside a tensor's name"},
      {header(0, 1) + B::raw(huge), "f: a key of 9223372036854775808 bytes at byte 28: at most 65535 are"},
      {header(0, 1) + B::raw<uint64_t>(9) + "short", "f: a key at byte 28 has 9 bytes, which reach beyond"},
      {B().value("k", 99, "").build(), "f: key 'k': type 99 is none of the format's"},
      {B().value("k", 7, bytes_of({2})).build(), "f: key 'k': a boolean is 2; 0 and 1 are allowed"},
      {B().value("k", 9, B::raw<uint32_t>(4) + B::raw(huge)).build(),
       "f: key 'k': a list of 9223372036854775808 values at byte"},
      {B().value("k", 9, B::raw<uint32_t>(9) + B::raw<uint64_t>(1)).build(),
       "f: key 'k': a list of lists is not implemented"},
      {B().value("k", 9, B::raw<uint32_t>(77) + B::raw(huge)).build(), "f: key 'k': type 77 is none of the"},
      {B().value("k", 8, B::raw(huge)).build(), "f: key 'k': a string at byte"},
      {B().value("k", 10, B::raw(huge)).build(), "f: key 'k': 9223372036854775808 is more than 2^63 - 1"},
      {B().u32("k", 1).u32("k", 1).build(), "f: key 'k' stands twice"},
      {B().u32("\xff", 1).build(), "f: key '"},
      {B().u32("general.alignment", 12).build(), "f: general.alignment is 12; multiples of 8 up to 2^20 are"},
      {B().string("general.alignment", "").build(), "f: general.alignment is a string; an integer is"},
      {B().described("t", {}, 0, 0).build(), "f: tensor 't': 0 dims; 1 to 4 are allowed"},
      {B().described("t", {1, 1, 1, 1, 1}, 0, 0).build(), "f: tensor 't': 5 dims; 1 to 4 are allowed"},
      {B().described("t", {uint64_t{1} << 33, uint64_t{1} << 33}, 0, 0).build(),
       "f: tensor 't': the shape is of more than 1125899906842624 elements"},
      {B().described("t", {0, huge}, 0, 0).build(), "f: tensor 't': the shape is of more than"},
      {B().described("t", {256}, 14, 0).build(),
       "f: tensor 't': type 14 (Q6_K) is not implemented; F32, F16"},
      {B().described("t", {256}, 99, 0).build(), "f: tensor 't': type 99 (unknown) is not implemented; F32"},
      {B().described("t", {33}, 8, 0).build(),
       "f: tensor 't': rows of 33 elements are not whole blocks of 32"},
      {B().described("t", {8}, 0, 8).data(40).build(), "f: tensor 't': offset 8 is not a multiple of the"},
      {B().described("t", {8}, 0, UINT64_MAX - 7).build(),
       "f: tensor 't': offset 18446744073709551608 is past"},
      {B().described("t", {9}, 0, 0).data(32).build(), "f: tensor 't': bytes 0 to 36 reach beyond the data"},
      {B().described("a", {16}, 0, 0).described("b", {8}, 0, 32).data(64).build(),
       "f: tensor 'b': overlaps tensor 'a' by 32 bytes"},
      {B().described("a", {8}, 0, 0).described("b", {8}, 0, 64).data(96).build(),
       "f: tensor 'b': a gap of 32 bytes before it"},
      {B().described("a", {8}, 0, 0).described("a", {8}, 0, 32).data(64).build(),
       "f: tensor 'a': a second one of that name"},
      {B().described("a", {8}, 0, 0).data(64).build(), "f: 32 bytes of data follow the last tensor"},
      {B().described(std::string(65, 'n'), {8}, 0, 0).build(), "f: a tensor's name of 65 bytes at byte"},
  };
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  for (const auto& [bytes, expected] : cases) {
    const std::string error = error_of(bytes);
    EXPECT_TRUE(error.starts_with(expected)) << error << "\n" << expected;
  }
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10);  // KB
}

TEST(Gguf, EveryCutIsRefused) {
  GgufBuilder b;
  b.u32("n", 1).strings("list", {"a", "bc"}).tensor("t", {4, 2}, 0, std::string(32, 'x'));
  const std::string whole = b.build();
  ASSERT_TRUE(parse(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) error_of(whole.substr(0, n));
}

}  // namespace
}  // namespace lignum
