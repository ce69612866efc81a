// A lock that one process at a time holds, by a file (flock(2)). It ends with the object or the process,
// however that ends.
#pragma once

#include <string>

#include "base/status.h"

namespace lignum {

class FileLock {
 public:
  // Makes the file where it is missing. Held by somebody else: a user error that names the path.
  static Result<FileLock> acquire(const std::string& path);

  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace lignum
