#include "exec/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

namespace lignum::exec {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// The hexadecimal number at the front of text, which it takes off.
std::optional<uintptr_t> take_hex(std::string_view& text) {
  uintptr_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(end - text.data());
  return value;
}

// "7f12a000-7f12b000 rw-p ..." begins a mapping.
std::optional<std::pair<uintptr_t, uintptr_t>> mapping_header(std::string_view line) {
  const auto begin = take_hex(line);
  if (!begin || line.empty() || line.front() != '-') return std::nullopt;
  line.remove_prefix(1);
  const auto end = take_hex(line);
  if (!end || line.empty() || line.front() != ' ') return std::nullopt;
  return std::pair(*begin, *end);
}

// "Rss:       12 kB" with the given key, in bytes.
Result<std::optional<int64_t>> field(std::string_view line, std::string_view key) {
  if (!line.starts_with(key)) return std::optional<int64_t>();
  const std::string_view whole = line;
  line.remove_prefix(key.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  int64_t kib = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), kib);
  if (error != std::errc() || std::string_view(end, line.data() + line.size() - end) != " kB") {
    return internal_error("smaps: cannot read \"{}\"", whole);
  }
  return std::optional<int64_t>(kib * 1024);
}

}  // namespace

Result<int64_t> smaps_resident(std::string_view smaps, uintptr_t begin, uintptr_t end) {
  int64_t total = 0;
  uintptr_t covered = 0;
  bool inside = false;
  bool counted = true;
  while (!smaps.empty()) {
    const size_t line_end = std::min(smaps.find('\n'), smaps.size());
    const std::string_view line = smaps.substr(0, line_end);
    smaps.remove_prefix(std::min(line_end + 1, smaps.size()));
    if (const auto range = mapping_header(line)) {
      if (!counted) return internal_error("smaps: a mapping has no Rss");
      const auto [from, to] = *range;
      inside = from < end && to > begin;
      if (!inside) continue;
      if (from < begin || to > end) {
        return internal_error("smaps: mapping {:x}-{:x} reaches out of the region {:x}-{:x}", from, to, begin,
                              end);
      }
      covered += to - from;
      counted = false;
      continue;
    }
    if (!inside) continue;
    LIGNUM_ASSIGN_OR_RETURN(const std::optional<int64_t> rss, field(line, "Rss:"));
    LIGNUM_ASSIGN_OR_RETURN(const std::optional<int64_t> swap, field(line, "Swap:"));
    if (rss) counted = true;
    total += rss.value_or(0) + swap.value_or(0);
  }
  if (!counted) return internal_error("smaps: a mapping has no Rss");
  if (covered != end - begin) {
    return internal_error("smaps: {} of the {} bytes of the region {:x}-{:x} are listed", covered,
                          end - begin, begin, end);
  }
  return total;
}

Status Arena::check_budget(int64_t bytes, int64_t budget_bytes, const ArenaOptions& options) {
  LIGNUM_CHECK(bytes >= 0 && budget_bytes >= 0, "bytes {} budget {}", bytes, budget_bytes);
  if (budget_bytes == 0 || bytes <= budget_bytes) return {};
  return user_error(
      "{}={}: the {} needs {} bytes ({:.3f} GiB), {} more than that; raise the budget, or lower what the "
      "step keeps (per_device_batch_size, remat_policy, more ranks)",
      options.budget_key, budget_bytes, options.name, bytes, static_cast<double>(bytes) / kGiB,
      bytes - budget_bytes);
}

Result<Arena> Arena::create(int64_t bytes, int64_t budget_bytes, const ArenaOptions& options) {
  LIGNUM_RETURN_IF_ERROR(check_budget(bytes, budget_bytes, options));
  Arena arena;
  arena.bytes_ = bytes;
  if (bytes == 0) return arena;
  // One page at least stays inaccessible on either side: an overrun faults, and the kernel merges the region
  // with no neighbour, so its count is of this region alone.
  arena.region_bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  arena.mapped_bytes_ = arena.region_bytes_ + 2 * kAlignment;
  void* mapped =
      mmap(nullptr, arena.mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return user_error("{}: the system gives no {} bytes of address space ({})", options.name,
                      arena.mapped_bytes_, std::strerror(errno));
  }
  arena.mapped_ = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (address / kAlignment + 1) * kAlignment;
  arena.data_ = arena.mapped_ + (aligned - address);
  if (mprotect(arena.data_, arena.region_bytes_, PROT_READ | PROT_WRITE) != 0) {
    return user_error("{}: the system refuses {} bytes ({})", options.name, arena.region_bytes_,
                      std::strerror(errno));
  }
  // A kernel without huge pages answers EINVAL: there is then nothing to refuse, and nothing to ask for.
  if (madvise(arena.data_, arena.region_bytes_, options.huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0 &&
      (options.huge_pages || errno != EINVAL)) {
    return user_error("{}: the kernel takes no huge-page advice ({}){}", options.name, std::strerror(errno),
                      options.huge_pages ? "; leave huge pages off" : "");
  }
  return arena;
}

Arena::~Arena() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      region_bytes_(std::exchange(other.region_bytes_, 0)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(region_bytes_, other.region_bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

Result<int64_t> Arena::resident_bytes() const {
  if (data_ == nullptr) return 0;
  std::ifstream file("/proc/self/smaps", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad() || text.empty()) return internal_error("cannot read /proc/self/smaps");
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  return smaps_resident(text, begin, begin + region_bytes_);
}

}  // namespace lignum::exec
