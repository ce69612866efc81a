// The memory behind the device arena: RAM, or a file. What the plan puts there is read and written through
// the copy engine alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lignum::exec {

class HostMemory {
 public:
  // where: "ram", or "file:FOLDER", where a file without a name takes the blocks and goes with the process.
  // bytes: a multiple of the plan's alignment (passes::kHostAlign). RAM that the system has not, and room
  // that the folder's disk has not, are user errors that name host_memory. A file is read and written past
  // the page cache (O_DIRECT), or, where the file system cannot, with its pages dropped after each transfer:
  // so the memory that the budget saves is not taken again by the cache.
  static Result<std::unique_ptr<HostMemory>> create(const std::string& where, int64_t bytes);
  virtual ~HostMemory() = default;

  // offset: of a row, a multiple of passes::kHostAlign; what is read or written ends inside the memory. From
  // one thread at a time.
  virtual Status write(int64_t offset, const std::byte* from, int64_t bytes) = 0;
  virtual Status read(int64_t offset, std::byte* to, int64_t bytes) = 0;
  virtual std::string describe() const = 0;  // for logs
  int64_t bytes() const { return bytes_; }

 protected:
  explicit HostMemory(int64_t bytes) : bytes_(bytes) {}
  int64_t bytes_;
};

}  // namespace lignum::exec
