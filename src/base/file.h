// Files: read-only mappings, atomic whole-file writes, positional writes for several writers, folders.
// Every error names the path and what the system said. Durability: data is synced before the rename that
// publishes it, the folder after it, so a crash leaves the old file or the new one and never a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum {

// The same bytes as characters.
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A whole file mapped read-only. The bytes live as long as the object. Reading one that another process has
// shortened meanwhile ends the process with its name (base/mapped_fault.h): publish files by rename.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);  // refuses what is not a regular file

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size);
  void unmap();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A new file of a known size, written at offsets. write_at may run on several threads at once.
class OutputFile {
 public:
  // create truncates what is there and reserves `size` bytes (a full disk is reported here, not at the last
  // write); attach opens a file that create made, for the writers of other processes.
  static Result<OutputFile> create(const std::string& path, uint64_t size);
  static Result<OutputFile> attach(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // closes; syncs nothing

  Status write_at(uint64_t offset, std::span<const std::byte> bytes) const;
  Status sync() const;
  const std::string& path() const { return path_; }

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

// Readers of text refuse more than max_bytes before they allocate anything.
Result<std::string> read_text(const std::string& path, uint64_t max_bytes = uint64_t{64} << 20);
// Readers see the old content or the new one, never a part.
Status write_file_atomic(const std::string& path, std::span<const std::byte> bytes);
Status write_file_atomic(const std::string& path, std::string_view text);

Status make_directories(const std::string& path);  // with parents; an existing folder is fine
Status sync_directory(const std::string& path);    // makes the names in it durable
Status rename_durably(const std::string& from,
                      const std::string& to);  // same folder or file system; syncs to's folder
Status remove_tree(const std::string& path);   // a missing path is fine
Result<std::vector<std::string>> list_directory(const std::string& path);  // names without . and .., sorted
bool path_exists(const std::string& path);
std::string join_path(std::string_view folder, std::string_view name);
std::string parent_path(const std::string& path);  // "." where there is none

}  // namespace lignum
