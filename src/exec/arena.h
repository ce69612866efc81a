// One region of address space that holds every planned buffer of a rank (device or host memory of the plan).
// It is reserved, not touched: what is resident is what the step has written, and so the kernel's own count
// checks the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lignum::exec {

struct ArenaOptions {
  // Transparent huge pages make what is resident a multiple of 2 MiB where it is touched, more than was
  // written: with them the count no longer checks the plan to the page. false asks the kernel for none in
  // this region.
  bool huge_pages = false;
  std::string name = "device arena";         // for errors
  std::string budget_key = "device_memory";  // the configuration key that sets the budget: for errors
};

class Arena {
 public:
  static constexpr int64_t kAlignment = int64_t{2} << 20;

  // Reserves bytes (>= 0, rounded up to kAlignment) at a multiple of kAlignment. budget_bytes 0: none; else
  // more than the budget is a user error that names both. The memory reads as zero until written.
  static Result<Arena> create(int64_t bytes, int64_t budget_bytes = 0, const ArenaOptions& options = {});
  // Whether create() would take that budget.
  static Status check_budget(int64_t bytes, int64_t budget_bytes, const ArenaOptions& options = {});
  Arena() = default;  // empty
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // as asked for

  // Bytes of physical memory behind the region now, from the kernel (Rss of the region's part of
  // /proc/self/smaps; what was swapped out counts as well). Pages are never given back before the arena's
  // end, so this is its high-water mark too. Allocates, reads a file: not inside a step.
  Result<int64_t> resident_bytes() const;

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t region_bytes_ = 0;     // bytes_, rounded up
  std::byte* mapped_ = nullptr;  // the region with its inaccessible borders
  int64_t mapped_bytes_ = 0;
};

// The sum of Rss and Swap, in bytes, of the mappings in an smaps text (proc(5)) that make up [begin, end).
// Errors: a mapping that reaches out of the region (the kernel has merged it with a neighbour), a part of the
// region that is not listed, a field that cannot be read.
Result<int64_t> smaps_resident(std::string_view smaps, uintptr_t begin, uintptr_t end);

}  // namespace lignum::exec
