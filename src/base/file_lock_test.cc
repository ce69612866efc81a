#include "base/file_lock.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/test_folder.h"

namespace lignum {
namespace {

TEST(FileLock, OneHolderAtATime) {
  const testing::TestFolder folder;
  const std::string path = folder / "lock";
  std::optional<FileLock> first(FileLock::acquire(path).value());
  const Result<FileLock> second = FileLock::acquire(path);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::user_error);
  EXPECT_NE(second.status().message().find(path), std::string::npos);
  first.reset();
  EXPECT_TRUE(FileLock::acquire(path).ok());
}

TEST(FileLock, NamesAFolderThatIsMissing) {
  const Result<FileLock> lock = FileLock::acquire("/nonexistent/lock");
  ASSERT_FALSE(lock.ok());
  EXPECT_NE(lock.status().message().find("/nonexistent/lock"), std::string::npos);
}

}  // namespace
}  // namespace lignum
