#include "exec/host_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "exec/arena.h"
#include "passes/memory.h"

namespace lignum::exec {
namespace {

constexpr std::string_view kFile = "file:";

class Ram final : public HostMemory {
 public:
  Ram(Arena arena, int64_t bytes) : HostMemory(bytes), arena_(std::move(arena)) {}
  Status write(int64_t offset, const std::byte* from, int64_t bytes) override {
    if (bytes > 0)
      std::memcpy(arena_.data() + offset, from, static_cast<size_t>(bytes));  // `from` may be null
    return {};
  }
  Status read(int64_t offset, std::byte* to, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, arena_.data() + offset, static_cast<size_t>(bytes));
    return {};
  }
  std::string describe() const override { return "RAM"; }

 private:
  Arena arena_;
};

// Blocks go through one buffer, aligned as O_DIRECT wants it, so that tensors need not be.
class File final : public HostMemory {
 public:
  static constexpr int64_t kPiece = int64_t{4} << 20;

  File(int fd, bool direct, std::string folder, Arena piece, int64_t bytes)
      : HostMemory(bytes), fd_(fd), direct_(direct), folder_(std::move(folder)), piece_(std::move(piece)) {}
  ~File() override { ::close(fd_); }

  Status write(int64_t offset, const std::byte* from, int64_t bytes) override {
    return pieces(offset, bytes, [&](int64_t at, int64_t count, int64_t whole) {
      std::memcpy(piece_.data(), from + at, static_cast<size_t>(count));
      return ::pwrite(fd_, piece_.data(), static_cast<size_t>(whole), offset + at);
    });
  }
  Status read(int64_t offset, std::byte* to, int64_t bytes) override {
    return pieces(offset, bytes, [&](int64_t at, int64_t count, int64_t whole) {
      const ssize_t done = ::pread(fd_, piece_.data(), static_cast<size_t>(whole), offset + at);
      if (done == whole) std::memcpy(to + at, piece_.data(), static_cast<size_t>(count));
      return done;
    });
  }
  std::string describe() const override {
    return folder_ +
           (direct_ ? ", past the page cache" : ", dropped from the page cache after each transfer");
  }

 private:
  // move(at, count, whole): bytes at .. at + count, in `whole` bytes of blocks.
  template <class Move>
  Status pieces(int64_t offset, int64_t bytes, const Move& move) {
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t count = std::min(kPiece, bytes - at);
      const int64_t whole = (count + passes::kHostAlign - 1) / passes::kHostAlign * passes::kHostAlign;
      ssize_t done = move(at, count, whole);
      while (done < 0 && errno == EINTR) done = move(at, count, whole);
      if (done != whole)
        return user_error("host_memory=file:{}: {} of {} bytes at {} ({})", folder_, done, whole, offset + at,
                          done < 0 ? std::strerror(errno) : "the file ends");
    }
    if (!direct_) {
      // Only clean pages can be dropped.
      ::fdatasync(fd_);
      ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_DONTNEED);
    }
    return {};
  }

  int fd_;
  bool direct_;
  std::string folder_;
  Arena piece_;
};

Result<std::unique_ptr<HostMemory>> open_file(const std::string& folder, int64_t bytes) {
  const auto refuse = [&](const std::string& why) {
    return user_error("host_memory=file:{}: {}; name a folder on a disk with room", folder, why);
  };
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) return refuse(std::strerror(errno));
  if (!S_ISDIR(status.st_mode)) return refuse("not a folder");
  struct statvfs disk{};
  if (::statvfs(folder.c_str(), &disk) == 0) {
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (free < bytes)
      return refuse(fmt::format("{} bytes are to be offloaded, its disk has {}", bytes, free));
  }
  bool direct = true;
  int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) {
    direct = false;
    fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  }
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = folder + "/lignum-host-XXXXXX";
    direct = false;
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) return refuse(std::strerror(errno));
  LIGNUM_ASSIGN_OR_RETURN(Arena piece, Arena::create(File::kPiece));
  auto file = std::make_unique<File>(fd, direct, folder, std::move(piece), bytes);
  if (const int error = ::posix_fallocate(fd, 0, std::max<int64_t>(1, bytes)); error != 0)
    return refuse(fmt::format("no {} bytes ({})", bytes, std::strerror(error)));
  return std::unique_ptr<HostMemory>(std::move(file));
}

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::create(const std::string& where, int64_t bytes) {
  if (where.starts_with(kFile)) return open_file(where.substr(kFile.size()), bytes);
  if (where != "ram") return user_error("host_memory={}: it is ram, or file:FOLDER", where);
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0 && bytes > pages * page)
    return user_error(
        "host_memory=ram: {} bytes are to be offloaded, this machine has {}; set host_memory=file:FOLDER, or "
        "offload less",
        bytes, pages * page);
  ArenaOptions options;
  options.name = "host arena";
  options.budget_key = "host_memory";
  LIGNUM_ASSIGN_OR_RETURN(Arena arena, Arena::create(bytes, 0, options));
  return std::unique_ptr<HostMemory>(std::make_unique<Ram>(std::move(arena), bytes));
}

}  // namespace lignum::exec
