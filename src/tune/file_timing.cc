#include "tune/file_timing.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <ctime>

#include "exec/host_memory.h"
#include "hw/probe.h"
#include "tune/clock.h"

namespace lignum::tune {
namespace {

// A norm's row, a small matrix's, and one of several pieces.
constexpr std::array<int64_t, 3> kRowBytes = {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 23};
constexpr int64_t kFileBytes = int64_t{1} << 26;
constexpr size_t kLeastSamples = 5;

double thread_cpu_seconds() {
  std::timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

Result<std::vector<hw::HostFilePoint>> time_file(const std::string& folder, double seconds,
                                                 const std::string& when) {
  LIGNUM_ASSIGN_OR_RETURN(const auto file, exec::HostMemory::create("file:" + folder, kFileBytes));
  std::vector<std::byte> row(static_cast<size_t>(kRowBytes.back()));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i * 37 >> 4);
  // Blocks that were never written are written otherwise; a step writes each again and again.
  for (int64_t at = 0; at < kFileBytes; at += kRowBytes.back())
    LIGNUM_RETURN_IF_ERROR(file->write(at, row.data(), kRowBytes.back()));
  std::vector<hw::HostFilePoint> points;
  const double each = seconds / static_cast<double>(2 * kRowBytes.size());
  for (const int64_t bytes : kRowBytes) {
    for (const bool write : {true, false}) {
      std::vector<double> samples, cpu;
      const Clock::time_point start = Clock::now();
      for (int64_t at = 0; samples.size() < kLeastSamples || seconds_since(start) < each;
           at = (at + bytes) % kFileBytes) {
        const double cpu_before = thread_cpu_seconds();
        const Clock::time_point before = Clock::now();
        LIGNUM_RETURN_IF_ERROR(write ? file->write(at, row.data(), bytes)
                                     : file->read(at, row.data(), bytes));
        samples.push_back(seconds_since(before));
        cpu.push_back(thread_cpu_seconds() - cpu_before);
      }
      const hw::Measurement m = hw::summarize(samples, 1.0);
      points.push_back({.op = write ? "write" : "read",
                        .source = fmt::format("{}, {}", folder, when),
                        .bytes = bytes,
                        .cpu_seconds = hw::summarize(cpu, 1.0).seconds,
                        .seconds = m.seconds,
                        .spread = m.min > 0 ? m.median / m.min - 1 : 0});
    }
  }
  return points;
}

}  // namespace lignum::tune
