#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/mapped_fault.h"

namespace lignum {
namespace {

Status system_error_of(std::string_view action, const std::string& path, int error) {
  return user_error("{}: cannot {}: {}", path, action, std::generic_category().message(error));
}

// Owns a descriptor for the length of a function.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Result<uint64_t> regular_file_size(int fd, const std::string& path) {
  struct stat st = {};
  if (::fstat(fd, &st) != 0) return system_error_of("read its size", path, errno);
  if (!S_ISREG(st.st_mode)) return user_error("{}: not a regular file", path);
  return static_cast<uint64_t>(st.st_size);
}

Status write_all(int fd, uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return system_error_of("write", path, errno);
    }
    if (n == 0) return system_error_of("write", path, EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Status sync_fd(int fd, const std::string& path) {
  if (::fsync(fd) != 0) return system_error_of("sync", path, errno);
  return {};
}

}  // namespace

MappedFile::MappedFile(std::string path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer; it has no effect on regular files.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return system_error_of("open", path, errno);
  LIGNUM_ASSIGN_OR_RETURN(const uint64_t size, regular_file_size(fd.get(), path));
  if (size == 0) return MappedFile(path, nullptr, 0);  // mmap takes no empty range
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return system_error_of("map", path, errno);
  name_mapping(data, size, path);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<OutputFile> OutputFile::create(const std::string& path, uint64_t size) {
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return system_error_of("create", path, errno);
  if (size > 0) {
    const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size));
    if (error != 0) {
      const Status status = system_error_of(fmt::format("reserve {} bytes", size), path, error);
      ::unlink(path.c_str());
      return status;
    }
  }
  return OutputFile(path, fd.release());
}

Result<OutputFile> OutputFile::attach(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return system_error_of("open for writing", path, errno);
  return OutputFile(path, fd);
}

Status OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
  return write_all(fd_, offset, bytes, path_);
}

Status OutputFile::sync() const { return sync_fd(fd_, path_); }

Result<std::string> read_text(const std::string& path, uint64_t max_bytes) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return system_error_of("open", path, errno);
  LIGNUM_ASSIGN_OR_RETURN(const uint64_t size, regular_file_size(fd.get(), path));
  if (size > max_bytes) return user_error("{}: {} bytes, at most {} are read here", path, size, max_bytes);
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd.get(), text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error_of("read", path, errno);
    if (n == 0) break;  // became shorter meanwhile
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Status write_file_atomic(const std::string& path, std::span<const std::byte> bytes) {
  // Unique by process and call: writers of the same path do not meet in the temporary file; the last rename
  // wins.
  static std::atomic<uint64_t> calls{0};
  const std::string temporary = fmt::format("{}.tmp.{}.{}", path, ::getpid(), calls.fetch_add(1));
  const auto write = [&]() -> Status {
    LIGNUM_ASSIGN_OR_RETURN(const OutputFile file, OutputFile::create(temporary, bytes.size()));
    LIGNUM_RETURN_IF_ERROR(file.write_at(0, bytes));
    LIGNUM_RETURN_IF_ERROR(file.sync());
    return rename_durably(temporary, path);
  };
  const Status status = write();
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Status write_file_atomic(const std::string& path, std::string_view text) {
  return write_file_atomic(path, std::as_bytes(std::span(text)));
}

Status make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return user_error("{}: cannot create the folder: {}", path, error.message());
  if (!std::filesystem::is_directory(path, error)) return user_error("{}: exists and is not a folder", path);
  return {};
}

Status sync_directory(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return system_error_of("open the folder", path, errno);
  return sync_fd(fd.get(), path);
}

Status rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return system_error_of(fmt::format("rename to {}", to), from, errno);
  }
  return sync_directory(parent_path(to));
}

Status remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return user_error("{}: cannot remove: {}", path, error.message());
  return {};
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator it(path, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return user_error("{}: cannot list the folder: {}", path, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool path_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string join_path(std::string_view folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

std::string parent_path(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace lignum
