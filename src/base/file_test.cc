#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/test_folder.h"

namespace lignum {
namespace {

using testing::TestFolder;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(File, WritesAtomicallyAndMaps) {
  const TestFolder folder;
  const std::string path = folder / "a.txt";
  ASSERT_TRUE(write_file_atomic(path, "old content").ok());
  Result<MappedFile> old = MappedFile::open(path);
  ASSERT_TRUE(old.ok()) << old.status().message();
  ASSERT_TRUE(write_file_atomic(path, "new").ok());
  EXPECT_EQ(text_of(*old), "old content");  // the mapping keeps the file it opened
  EXPECT_EQ(*read_text(path), "new");
  EXPECT_EQ(*list_directory(folder.path()), std::vector<std::string>{"a.txt"});  // no temporary is left
}

TEST(File, EmptyFileMapsToNothing) {
  const TestFolder folder;
  ASSERT_TRUE(write_file_atomic(folder / "empty", "").ok());
  Result<MappedFile> file = MappedFile::open(folder / "empty");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  MappedFile moved = std::move(*file);
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(FileDeathTest, AFileShortenedWhileItIsReadIsNamed) {
  const TestFolder folder;
  const std::string path = folder / "short.txt";
  ASSERT_TRUE(write_file_atomic(path, std::string(1 << 16, 'x')).ok());
  const auto read_after_truncation = [&] {
    const Result<MappedFile> other = MappedFile::open(path);
    Result<MappedFile> file = MappedFile::open(path);
    {
      const MappedFile closed = MappedFile::open(path).value();
    }
    std::filesystem::resize_file(path, 0);
    volatile std::byte last = file->bytes()[60000];
    static_cast<void>(last);
  };
  EXPECT_EXIT(read_after_truncation(), ::testing::ExitedWithCode(2), "short.txt: another process shortened");
}

TEST(File, ErrorsNamePathAndCause) {
  const TestFolder folder;
  const auto missing = MappedFile::open(folder / "none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::user_error);
  EXPECT_EQ(missing.status().message(), (folder / "none") + ": cannot open: No such file or directory");
  EXPECT_EQ(MappedFile::open(folder.path()).status().message(), folder.path() + ": not a regular file");
  EXPECT_NE(write_file_atomic(folder / "no/such/file", "x").message().find("cannot create"),
            std::string::npos);
  EXPECT_NE(list_directory(folder / "none").status().message().find("No such file"), std::string::npos);
  ASSERT_TRUE(write_file_atomic(folder / "file", "x").ok());
  EXPECT_FALSE(make_directories(folder / "file").ok());
  EXPECT_FALSE(make_directories(folder / "file/below").ok());
}

TEST(File, AFifoDoesNotBlock) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_text(folder / "fifo").status().message(), (folder / "fifo") + ": not a regular file");
}

TEST(File, ReadTextRefusesMoreThanAsked) {
  const TestFolder folder;
  ASSERT_TRUE(write_file_atomic(folder / "t", "12345").ok());
  EXPECT_EQ(read_text(folder / "t", 4).status().message(),
            (folder / "t") + ": 5 bytes, at most 4 are read here");
  EXPECT_EQ(*read_text(folder / "t", 5), "12345");
}

TEST(File, SeveralWritersMeetInOneFile) {
  const TestFolder folder;
  const std::string path = folder / "shared";
  Result<OutputFile> file = OutputFile::create(path, 4000);
  ASSERT_TRUE(file.ok());
  Result<OutputFile> second = OutputFile::attach(path);
  ASSERT_TRUE(second.ok());
  const auto fill = [](const OutputFile& out, int from, int to) {
    for (int i = from; i < to; ++i) {
      const std::string block(1000, static_cast<char>('a' + i));
      EXPECT_TRUE(out.write_at(1000 * static_cast<uint64_t>(i), std::as_bytes(std::span(block))).ok());
    }
  };
  std::thread thread(fill, std::cref(*second), 2, 4);
  fill(*file, 0, 2);
  thread.join();
  ASSERT_TRUE(file->sync().ok());
  EXPECT_EQ(*read_text(path), std::string(1000, 'a') + std::string(1000, 'b') + std::string(1000, 'c') +
                                  std::string(1000, 'd'));
}

TEST(File, Folders) {
  const TestFolder folder;
  ASSERT_TRUE(make_directories(folder / "x/y/z").ok());
  ASSERT_TRUE(make_directories(folder / "x/y/z").ok());
  ASSERT_TRUE(write_file_atomic(folder / "x/b", "").ok());
  ASSERT_TRUE(write_file_atomic(folder / "x/a", "").ok());
  EXPECT_EQ(*list_directory(folder / "x"), (std::vector<std::string>{"a", "b", "y"}));
  ASSERT_TRUE(rename_durably(folder / "x/y", folder / "moved").ok());
  EXPECT_TRUE(path_exists(folder / "moved/z"));
  EXPECT_NE(rename_durably(folder / "gone", folder / "to").message().find("cannot rename"),
            std::string::npos);
  ASSERT_TRUE(remove_tree(folder / "moved").ok());
  ASSERT_TRUE(remove_tree(folder / "moved").ok());
  EXPECT_FALSE(path_exists(folder / "moved"));
  EXPECT_EQ(parent_path("file"), ".");
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(join_path("a", "b"), "a/b");
}

TEST(Json, RefusesDuplicateKeysAndDepth) {
  EXPECT_EQ((*parse_json(R"({"a": {"x": 1}, "b": {"x": 2}})", "f"))["b"]["x"], 2);
  EXPECT_EQ(parse_json(R"({"a": 1, "b": [{"c": 1, "c": 2}]})", "f").status().message(),
            "f: key 'c' appears twice in one object");
  const std::string deep(1000000, '[');
  EXPECT_EQ(parse_json(deep, "f").status().message(), "f: nested deeper than 64 levels");
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "f").ok());
  EXPECT_FALSE(parse_json(std::string(65, '[') + std::string(65, ']'), "f").ok());
  for (const char* bad : {"", "{", "{\"a\":}", "[1] x", "\"\xff\"", "nul", "1e999"}) {
    const auto result = parse_json(bad, "f");
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.status().message().substr(0, 13), "f: not JSON: ") << result.status().message();
    EXPECT_EQ(result.status().message().find("exception"), std::string::npos) << result.status().message();
  }
}

}  // namespace
}  // namespace lignum
