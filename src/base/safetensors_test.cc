#include "base/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/test_folder.h"

namespace lignum {
namespace {

using testing::TestFolder;

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

// A file of that header, its length computed, and `data` bytes of zero.
std::string file_of(const std::string& header, size_t data) {
  return length_prefix(header.size()) + header + std::string(data, '\0');
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   uint64_t begin, uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin,
                     end);
}

Result<SafetensorsReader> parse(const std::string& file) {
  return SafetensorsReader::parse(std::as_bytes(std::span(file)), "f");
}

std::string error_of(const std::string& file) {
  const auto result = parse(file);
  EXPECT_FALSE(result.ok()) << "accepted";
  EXPECT_TRUE(result.ok() || result.status().code() == Code::user_error);
  return result.ok() ? "" : result.status().message();
}

int64_t peak_memory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// The hostile files, each with the whole message: file, tensor where there is one, reason.
struct Hostile {
  const char* label;
  std::string file;
  std::string error;
};

std::vector<Hostile> hostile_files() {
  const auto one = [](const std::string& t, size_t data) { return file_of("{" + t + "}", data); };
  const auto two = [](const std::string& a, const std::string& b, size_t data) {
    return file_of("{" + a + "," + b + "}", data);
  };
  return {
      {"seven bytes", std::string(7, 'x'),
       "f: 7 bytes are too few for a safetensors file, which begins with a length of 8"},
      {"length 2^63", length_prefix(uint64_t{1} << 63) + "{}",
       "f: header length 9223372036854775808 exceeds the format's limit of 100000000"},
      {"length 200 MB", length_prefix(200'000'000) + "{}",
       "f: header length 200000000 exceeds the format's limit of 100000000"},
      {"length 90 MB of a short file", length_prefix(90'000'000) + "{}",
       "f: header length 90000000 reaches beyond the file of 10 bytes"},
      {"a list", file_of("[]", 0), "f: the header does not begin with '{'"},
      {"an empty header", file_of("", 0), "f: the header does not begin with '{'"},
      {"offsets reversed", one(tensor("w", "F32", "[1]", 4, 0), 4),
       "f: tensor 'w': data_offsets [4, 0] run backwards"},
      {"offsets past the end", one(tensor("w", "F32", "[4]", 0, 16), 8),
       "f: tensor 'w': data_offsets [0, 16] end beyond the 8 bytes of data"},
      {"overlap", two(tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[2]", 4, 12), 12),
       "f: tensor 'b': overlaps tensor 'a' by 4 bytes"},
      {"the same range twice", two(tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[2]", 0, 8), 8),
       "f: tensor 'b': overlaps tensor 'a' by 8 bytes"},
      {"an empty tensor inside another",
       two(tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[0]", 4, 4), 8),
       "f: tensor 'b': overlaps tensor 'a' by 4 bytes"},
      {"gap", two(tensor("a", "F32", "[1]", 0, 4), tensor("b", "F32", "[1]", 8, 12), 12),
       "f: tensor 'b': begins at byte 8 of the data, leaving a gap of 4 bytes before it"},
      {"gap before the first", one(tensor("a", "F32", "[1]", 4, 8), 8),
       "f: tensor 'a': begins at byte 4 of the data, leaving a gap of 4 bytes before it"},
      {"trailing bytes", one(tensor("a", "F32", "[1]", 0, 4), 7),
       "f: 3 bytes of data follow the last tensor, 'a'"},
      {"bytes without tensors", file_of("{}", 5), "f: 5 bytes of data follow no tensor"},
      {"shape overflows", one(tensor("w", "F32", "[8589934592,8589934592]", 0, 4), 4),
       "f: tensor 'w': shape [8589934592, 8589934592] of F32 is not a whole number of bytes that fits 64 "
       "bits"},
      {"shape overflows behind a zero", one(tensor("w", "F32", "[0,8589934592,8589934592]", 0, 0), 0),
       "f: tensor 'w': shape [0, 8589934592, 8589934592] of F32 is not a whole number of bytes that fits 64 "
       "bits"},
      {"bytes overflow", one(tensor("w", "F64", "[4611686018427387904]", 0, 0), 0),
       "f: tensor 'w': shape [4611686018427387904] of F64 is not a whole number of bytes that fits 64 bits"},
      {"dim beyond 63 bits", one(tensor("w", "F32", "[9223372036854775808]", 0, 4), 4),
       "f: tensor 'w': dim 9223372036854775808 is too large"},
      {"negative dim", one(tensor("w", "F32", "[-1]", 0, 4), 4),
       "f: tensor 'w': shape holds a negative number"},
      {"dim beyond 64 bits", one(tensor("w", "F32", "[99999999999999999999]", 0, 4), 4),
       "f: tensor 'w': shape holds a number that is not a 64-bit integer"},
      {"fractional dim", one(tensor("w", "F32", "[1.0]", 0, 4), 4),
       "f: tensor 'w': shape holds a number that is not a 64-bit integer"},
      {"size differs", one(tensor("w", "F32", "[2,3]", 0, 20), 20),
       "f: tensor 'w': data_offsets [0, 20] hold 20 bytes, but shape [2, 3] of F32 needs 24"},
      {"half a byte", one(tensor("w", "F4", "[3]", 0, 1), 1),
       "f: tensor 'w': shape [3] of F4 is not a whole number of bytes that fits 64 bits"},
      {"duplicate name", two(tensor("w", "F32", "[1]", 0, 4), tensor("w", "F32", "[1]", 4, 8), 8),
       "f: tensor 'w': appears twice"},
      {"duplicate field",
       file_of(R"({"w":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4),
       "f: tensor 'w': field 'dtype' appears twice"},
      {"duplicate metadata", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "f: __metadata__ appears twice"},
      {"duplicate in metadata", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
       "f: __metadata__: field 'a' appears twice"},
      {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})", 0),
       "f: __metadata__: 'a' is a number, not a string"},
      {"metadata is null", file_of(R"({"__metadata__":null})", 0), "f: __metadata__ is null, not an object"},
      {"missing field", file_of(R"({"w":{"dtype":"F32","shape":[1]}})", 0),
       "f: tensor 'w': field 'data_offsets' is missing"},
      {"unknown field", file_of(R"({"w":{"dtype":"F32","size":[1]}})", 0),
       "f: tensor 'w': unknown field 'size'; known: dtype, shape, data_offsets"},
      {"one offset", file_of(R"({"w":{"data_offsets":[0]}})", 0),
       "f: tensor 'w': data_offsets needs two numbers"},
      {"three offsets", file_of(R"({"w":{"data_offsets":[0,4,8]}})", 0),
       "f: tensor 'w': data_offsets has more than two numbers"},
      {"a tensor that is a list", file_of(R"({"w":[]})", 0),
       "f: tensor 'w': described by a list, not by an object"},
      {"a tensor that is a number", file_of(R"({"w":3})", 0),
       "f: tensor 'w': described by a number, not by an object"},
      {"shape is a string", file_of(R"({"w":{"shape":"1"}})", 0), "f: tensor 'w': field 'shape' is a string"},
      {"nested shape", file_of(R"({"w":{"shape":[[1]]}})", 0), "f: tensor 'w': shape holds a list"},
  };
}

TEST(Safetensors, RefusesHostileFilesByFileTensorAndReason) {
  for (const Hostile& hostile : hostile_files()) {
    EXPECT_EQ(error_of(hostile.file), hostile.error) << hostile.label;
  }
}

TEST(Safetensors, RefusesUnknownAndEmptyDtype) {
  EXPECT_NE(error_of(file_of("{" + tensor("w", "F33", "[1]", 0, 4) + "}", 4))
                .find("f: tensor 'w': unknown dtype 'F33'; known: BOOL, "),
            std::string::npos);
  EXPECT_NE(
      error_of(file_of("{" + tensor("w", "", "[1]", 0, 4) + "}", 4)).find("tensor 'w': unknown dtype ''"),
      std::string::npos);
}

TEST(Safetensors, RefusesCutJsonAtEveryByte) {
  const std::string header = "{" + tensor("w", "F32", "[1]", 0, 4) + "}";
  for (size_t n = 1; n < header.size(); ++n) {
    EXPECT_NE(error_of(file_of(header.substr(0, n), 4)).find("f: the header is not JSON: "),
              std::string::npos)
        << n;
  }
  EXPECT_NE(error_of(file_of(header + "x", 4)).find("not JSON"), std::string::npos);
  EXPECT_NE(error_of(file_of("{\"\xff\":1}", 0)).find("not JSON"), std::string::npos);
}

TEST(Safetensors, HostileFilesCostNoMemoryAndNoTime) {
  std::vector<Hostile> files = hostile_files();
  // A million open brackets, nested objects, a name of a megabyte: no recursion, and a short message.
  files.push_back({"deep lists", file_of("{\"w\":" + std::string(1'000'000, '['), 0),
                   "f: tensor 'w': described by a list, not by an object"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  files.push_back({"deep objects", file_of(objects, 0),
                   "f: tensor 'a': unknown field 'a'; known: dtype, shape, data_offsets"});
  const std::string name(1'000'000, 'n');
  files.push_back({"a long name", file_of("{\"" + name + "\":1}", 0),
                   "f: tensor '" + name.substr(0, 200) + "...': described by a number, not by an object"});
  files.push_back({"a long name, cut", file_of("{\"" + name, 0), ""});
  const int64_t before = peak_memory();
  for (const Hostile& hostile : files) {
    const std::clock_t start = std::clock();  // of this process: the machine may be busy
    const std::string error = error_of(hostile.file);
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC) << hostile.label;
    EXPECT_LT(error.size(), 400) << hostile.label;
    if (!hostile.error.empty()) {
      EXPECT_EQ(error, hostile.error) << hostile.label;
    }
  }
  EXPECT_LT(peak_memory() - before, int64_t{64} << 20);
}

TEST(Safetensors, TakesMetadataWithoutTensors) {
  const std::string file = file_of(R"({"__metadata__":{"format":"pt","x":""}})", 0);
  const auto reader = parse(file);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_TRUE(reader->tensors().empty());
  EXPECT_EQ(reader->metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"x", ""}}));
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
}

TEST(Safetensors, TakesEmptyTensorsWhereverTheyStand) {
  const std::string file =
      file_of("{" + tensor("a", "F32", "[1]", 0, 4) + "," + tensor("z", "F32", "[0,4]", 4, 4) + "," +
                  tensor("b", "F32", "[1]", 4, 8) + "," + tensor("e", "BF16", "[0]", 8, 8) + "}",
              8);
  const auto reader = parse(file);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const TensorInfo* z = reader->find("z");
  ASSERT_NE(z, nullptr);
  EXPECT_EQ(z->elements, 0);
  EXPECT_EQ(z->shape, (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(reader->data(*z).empty());
  EXPECT_TRUE(reader->read_as_f32("z", nullptr, 0, 0).ok());
  std::vector<std::string> order;
  for (const TensorInfo& t : reader->tensors()) order.push_back(t.name);
  EXPECT_EQ(order, (std::vector<std::string>{"a", "z", "b", "e"}));
  EXPECT_TRUE(parse(file_of("{" + tensor("only", "F32", "[0,4]", 0, 0) + "}", 0)).ok());
}

TEST(Safetensors, TakesAHeaderPaddedWithSpaces) {
  std::string header = "{" + tensor("w", "F32", "[]", 0, 4) + "}";
  header.resize(4096, ' ');
  const auto reader = parse(file_of(header, 4));
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->find("w")->elements, 1);  // a scalar
}

TEST(Safetensors, OrderIsThatOfTheBytes) {
  const auto reader = parse(
      file_of("{" + tensor("second", "U8", "[3]", 2, 5) + "," + tensor("first", "I8", "[2]", 0, 2) + "}", 5));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->tensors()[0].name, "first");
  EXPECT_EQ(reader->tensors()[0].dtype, std::nullopt);
  EXPECT_EQ(reader->tensors()[1].dtype, DType::u8);
}

TEST(Safetensors, ConvertsToFloat) {
  // F16: 1, -2, largest, smallest subnormal, -0, infinity, NaN.
  const std::vector<uint16_t> half = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x7c00, 0x7e00};
  const std::vector<uint16_t> brain = {0x3f80, 0xc040};
  const std::vector<double> wide = {1.0 + 0x1p-30, -1e300};
  // One byte in front leaves everything after it misaligned.
  std::string file =
      file_of("{" + tensor("pad", "U8", "[1]", 0, 1) + "," + tensor("h", "F16", "[7]", 1, 15) + "," +
                  tensor("b", "BF16", "[2]", 15, 19) + "," + tensor("d", "F64", "[2]", 19, 35) + "}",
              35);
  char* data = file.data() + file.size() - 35;
  std::memcpy(data + 1, half.data(), 14);
  std::memcpy(data + 15, brain.data(), 4);
  std::memcpy(data + 19, wide.data(), 16);
  const auto reader = parse(file);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  float out[7];
  ASSERT_TRUE(reader->read_as_f32("h", out, 0, 7).ok());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  EXPECT_EQ(out[2], 65504.0f);
  EXPECT_EQ(out[3], 0x1p-24f);
  EXPECT_TRUE(out[4] == 0.0f && std::signbit(out[4]));
  EXPECT_EQ(out[5], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(out[6]));
  ASSERT_TRUE(reader->read_as_f32("h", out, 2, 1).ok());
  EXPECT_EQ(out[0], 65504.0f);
  ASSERT_TRUE(reader->read_as_f32("b", out, 0, 2).ok());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -3.0f);
  ASSERT_TRUE(reader->read_as_f32("d", out, 0, 2).ok());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(reader->read_as_f32("pad", out, 0, 1).message(),
            "f: tensor 'pad' of U8 is not read as float; F64, F32, F16 and BF16 are");
  EXPECT_EQ(reader->require("hh").status().message(), "f: no tensor 'hh' among 4");
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TestFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<float> s = {7};
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"note", "ü \"quoted\""}};
  ASSERT_TRUE(write_safetensors(path,
                                {{{"z.first", DType::f32, {2, 3}}, bytes_of(a)},
                                 {{"empty", DType::bf16, {0, 5}}, {}},
                                 {{"a.scalar", DType::f32, {}}, bytes_of(s)}},
                                metadata)
                  .ok());
  const auto reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->metadata(), metadata);
  ASSERT_EQ(reader->tensors().size(), 3);
  EXPECT_EQ(reader->tensors()[0].name, "z.first");  // the order given
  EXPECT_EQ(reader->find("a.scalar")->shape, std::vector<int64_t>{});
  std::vector<float> back(6);
  ASSERT_TRUE(reader->read_as_f32("z.first", back.data(), 0, 6).ok());
  EXPECT_EQ(back, a);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(reader->data(reader->tensors()[0]).data()) % 8, 0);
  EXPECT_EQ(*list_directory(folder.path()), std::vector<std::string>{"m.safetensors"});
}

TEST(SafetensorsWriter, EveryDtypeHasAName) {
  const TestFolder folder;
  std::vector<TensorPlan> plans;
  for (const DType d : {DType::f32, DType::f64, DType::bf16, DType::f8e4m3fn, DType::f8e5m2, DType::i32,
                        DType::u32, DType::i64, DType::u8, DType::pred}) {
    plans.push_back({std::string(dtype_name(d)), d, {3}});
  }
  const auto layout = SafetensorsLayout::plan(plans);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->header().size() % 8, 0);
  const std::string file =
      layout->header() + std::string(layout->file_size() - layout->header().size(), '\0');
  const auto reader = parse(file);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  for (const TensorPlan& plan : plans) EXPECT_EQ(reader->find(plan.name)->dtype, plan.dtype) << plan.name;
}

TEST(SafetensorsWriter, RanksWriteTheirSlices) {
  const TestFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::vector<TensorPlan> plans = {{"w", DType::f32, {4, 2}}, {"v", DType::f32, {4}}};
  auto creator = SafetensorsWriter::create(*SafetensorsLayout::plan(plans), path);
  ASSERT_TRUE(creator.ok()) << creator.status().message();
  auto other = SafetensorsWriter::attach(*SafetensorsLayout::plan(plans), path);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_FALSE(path_exists(path));
  const auto rank = [](const SafetensorsWriter& writer, int r) {
    const auto base = static_cast<float>(10 * r);
    const std::vector<float> w = {base, base + 1, base + 2, base + 3};
    const std::vector<float> v = {base + 4, base + 5};
    EXPECT_TRUE(writer.write("w", 16 * static_cast<uint64_t>(r), bytes_of(w)).ok());
    EXPECT_TRUE(writer.write("v", 8 * static_cast<uint64_t>(r), bytes_of(v)).ok());
    EXPECT_TRUE(writer.sync().ok());
  };
  std::thread thread(rank, std::cref(*other), 1);
  rank(*creator, 0);
  thread.join();
  ASSERT_TRUE(creator->finish().ok());
  const auto reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  std::vector<float> w(8), v(4);
  ASSERT_TRUE(reader->read_as_f32("w", w.data(), 0, 8).ok());
  ASSERT_TRUE(reader->read_as_f32("v", v.data(), 0, 4).ok());
  EXPECT_EQ(w, (std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13}));
  EXPECT_EQ(v, (std::vector<float>{4, 5, 14, 15}));
}

TEST(SafetensorsWriter, AbandonedWriterLeavesNothing) {
  const TestFolder folder;
  {
    auto writer = SafetensorsWriter::create(*SafetensorsLayout::plan({{"w", DType::f32, {4}}}), folder / "m");
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(list_directory(folder.path())->size(), 1);
  }
  EXPECT_TRUE(list_directory(folder.path())->empty());
}

TEST(SafetensorsWriter, PlanRefusesWhatNoReaderTakes) {
  const auto error = [](const std::vector<TensorPlan>& plans) {
    const auto layout = SafetensorsLayout::plan(plans);
    return layout.ok() ? "" : layout.status().message();
  };
  EXPECT_EQ(error({{"w", DType::f32, {1}}, {"w", DType::f32, {1}}}), "tensor 'w' is listed twice");
  EXPECT_EQ(error({{"__metadata__", DType::f32, {1}}}),
            "a tensor cannot have the reserved name __metadata__");
  EXPECT_EQ(error({{"w", DType::f32, {int64_t{1} << 40, int64_t{1} << 40}}}),
            "tensor 'w': shape [1099511627776, 1099511627776] does not fit 64 bits");
  EXPECT_EQ(error({{"w", DType::f32, {-1}}}), "tensor 'w': shape [-1] does not fit 64 bits");
  EXPECT_NE(error({{"\xff", DType::f32, {1}}}).find("cannot be written"), std::string::npos);
}

class ModelFolder : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::vector<std::string>& names) {
    std::vector<TensorData> tensors;
    for (const std::string& name : names) tensors.push_back({{name, DType::f32, {1}}, bytes_of(value_)});
    ASSERT_TRUE(write_safetensors(folder_ / file, tensors).ok());
  }
  void index(const std::string& weight_map) {
    ASSERT_TRUE(write_file_atomic(folder_ / "model.safetensors.index.json",
                                  R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}")
                    .ok());
  }
  std::string error() {
    const auto files = ModelFiles::open(folder_.path());
    return files.ok() ? "" : files.status().message();
  }
  std::string index_path() { return folder_ / "model.safetensors.index.json"; }

  TestFolder folder_;
  std::vector<float> value_ = {42};
};

TEST_F(ModelFolder, OneFile) {
  write("model.safetensors", {"a", "b"});
  const auto files = ModelFiles::open(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->tensors().size(), 2);
  float out = 0;
  ASSERT_TRUE(files->read_as_f32("b", &out, 0, 1).ok());
  EXPECT_EQ(out, 42);
  EXPECT_EQ(files->data("a")->size(), 4);
  EXPECT_EQ(files->require("model.c").status().message(), folder_.path() + ": no tensor 'model.c' among 2");
}

TEST_F(ModelFolder, Shards) {
  write("s-1.safetensors", {"layer.0.w", "layer.1.w"});
  write("s-2.safetensors", {"head.w"});
  index(R"({"head.w":"s-2.safetensors","layer.0.w":"s-1.safetensors","layer.1.w":"s-1.safetensors"})");
  const auto files = ModelFiles::open(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->tensors().size(), 3);
  EXPECT_NE(files->find("head.w"), nullptr);
  EXPECT_EQ(files->find("nothing"), nullptr);
  EXPECT_EQ(files->require("layer.2.w").status().message(),
            folder_.path() + ": no tensor 'layer.2.w' among 3; nearest: 'layer.0.w', 'layer.1.w'");
}

TEST_F(ModelFolder, NothingThere) {
  EXPECT_EQ(error(), folder_.path() +
                         ": neither model.safetensors nor model.safetensors.index.json is in this folder");
}

TEST_F(ModelFolder, ShardsOutsideTheFolderAreRefused) {
  for (const char* shard : {"../s.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "s\\u0000"}) {
    index(fmt::format(R"({{"w":"{}"}})", std::string(shard) == "a\\b" ? "a\\\\b" : shard));
    EXPECT_NE(error().find("tensor 'w': shard '"), std::string::npos) << shard << ": " << error();
    EXPECT_NE(error().find("is not the name of a file in this folder"), std::string::npos) << shard;
  }
  index(R"({"w":1})");
  EXPECT_NE(error().find("tensor 'w': shard '' is not"), std::string::npos);
}

TEST_F(ModelFolder, MissingShardAndTensorAreNamed) {
  index(R"({"w":"gone.safetensors"})");
  EXPECT_EQ(error(), index_path() + ": tensor 'w' is in shard 'gone.safetensors', which is missing");
  write("s.safetensors", {"a"});
  index(R"({"a":"s.safetensors","w":"s.safetensors"})");
  EXPECT_EQ(error(),
            index_path() + ": tensor 'w' is not in shard 's.safetensors', which the index names for it");
}

TEST_F(ModelFolder, IndexAndShardsAgreeOrAreRefused) {
  write("s.safetensors", {"a", "b"});
  index(R"({"a":"s.safetensors"})");
  EXPECT_EQ(error(),
            (folder_ / "s.safetensors") + ": holds tensor 'b', which the index does not place there");
  write("t.safetensors", {"a"});
  index(R"({"a":"t.safetensors","b":"s.safetensors"})");  // s has an 'a' too
  EXPECT_EQ(error(),
            (folder_ / "s.safetensors") + ": holds tensor 'a', which the index does not place there");
  index(R"({"a":"s.safetensors","a":"t.safetensors"})");
  EXPECT_EQ(error(), index_path() + ": key 'a' appears twice in one object");
  index("[]");
  EXPECT_EQ(error(), index_path() + ": has no object 'weight_map'");
  write("model.safetensors", {"a"});
  EXPECT_NE(error().find("remove the stale one"), std::string::npos);
}

}  // namespace
}  // namespace lignum
