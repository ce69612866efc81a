#include "hw/cpu_spec_builder.h"

#include <fmt/chrono.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace lignum::hw {
namespace {

namespace fs = std::filesystem;

Quantity measured(Dimension dimension, double value, const char* note) {
  Quantity q;
  q.value = value;
  q.dimension = dimension;
  q.evidence = Evidence::measured;
  q.source = "lignum calibrate";
  q.note = note;
  return q;
}

// The cgroup's memory limit of either version; 0 when there is none.
double cgroup_limit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(path);
    double bytes = 0;
    if (in >> bytes && bytes > 0) return bytes;  // "max" does not read as a number
  }
  return 0;
}

}  // namespace

CpuSpecBuilder::CpuSpecBuilder(std::string name, CpuMachine machine)
    : name_(std::move(name)), machine_(std::move(machine)) {}

CpuSpecBuilder& CpuSpecBuilder::memory(double device_bytes, double fast_bytes) {
  device_bytes_ = device_bytes;
  fast_bytes_ = fast_bytes;
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::copy_bandwidth(double bytes_per_second) {
  copy_bandwidth_ = bytes_per_second;
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::gemm(DType dtype, int threads, int64_t m, int64_t n, int64_t k,
                                     const Measurement& r, std::string_view way) {
  curves_.gemm.push_back({dtype, threads, m, n, k, r.seconds, r.spread, std::string(way)});
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::stream(int threads, int64_t bytes, const Measurement& r) {
  curves_.stream.push_back({threads, bytes, r.seconds, r.spread});
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::rows(const std::string& op, DType dtype, int threads, int64_t elements,
                                     const Measurement& r) {
  curves_.rows.push_back({op, dtype, threads, elements, r.seconds, r.spread});
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::attention(AttentionPass pass, DType dtype, int threads, int64_t sequences,
                                          int64_t heads, int64_t seq, int64_t head_dim, const Measurement& r,
                                          std::string_view way, int64_t group) {
  curves_.attention.push_back(
      {pass, dtype, threads, sequences, heads, seq, head_dim, r.seconds, r.spread, std::string(way), group});
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::collective(Collective op, int ranks, int64_t bytes, const Measurement& r) {
  curves_.collectives.push_back({op, ranks, bytes, r.seconds, r.spread});
  return *this;
}
CpuSpecBuilder& CpuSpecBuilder::dispatch(int threads, const Measurement& r) {
  curves_.dispatch.push_back({threads, r.seconds, r.spread});
  return *this;
}

CpuSpecBuilder& CpuSpecBuilder::host_file(std::vector<HostFilePoint> points) {
  curves_.host_file = std::move(points);
  return *this;
}

Result<std::string> CpuSpecBuilder::build() const {
  nlohmann::ordered_json json;
  json["schema"] = 1;
  json["name"] = name_;
  json["kind"] = "cpu";
  json["machine"] = {{"cpu", machine_.cpu},
                     {"cores", machine_.cores},
                     {"isa", machine_.isa},
                     {"date", machine_.date},
                     {"commit", machine_.commit}};
  json["device"]["memory"] =
      to_json(measured(Dimension::bytes, device_bytes_, "RAM of the machine, for all ranks"));
  json["device"]["fast_memory"] = to_json(measured(Dimension::bytes, fast_bytes_, "L2 of one core"));
  json["device"]["host_bandwidth"] =
      to_json(measured(Dimension::byte_rate, copy_bandwidth_, "one way, device arena to host arena"));
  json["curves"] = curves_.to_json();
  const std::string text = json.dump(1) + "\n";
  LIGNUM_RETURN_IF_ERROR(Spec::parse(text, name_).status());
  return text;
}

Status CpuSpecBuilder::write(const std::string& path) const {
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, build());
  const fs::path target(path);
  std::error_code error;
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
  if (error) return user_error("{}: cannot make its folder: {}; choose another path", path, error.message());
  // A reader sees the old file or the new one, never a part; two writers do not share a temporary.
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) {
      fs::remove(temporary, error);
      return user_error("{}: cannot be written; choose another path", temporary);
    }
  }
  fs::rename(temporary, target, error);
  if (error) return user_error("{}: cannot be written: {}; choose another path", path, error.message());
  return {};
}

CpuMachine this_machine(std::string isa, std::string commit) {
  CpuMachine machine;
  machine.isa = std::move(isa);
  machine.commit = std::move(commit);
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      machine.cpu = line.substr(colon + 2);
      break;
    }
  }
  if (machine.cpu.empty()) machine.cpu = "unknown CPU";
  cpu_set_t set;
  CPU_ZERO(&set);
  machine.cores = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  machine.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  return machine;
}

double this_machine_memory() {
  const auto bytes =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  const double limit = cgroup_limit();
  return limit > 0 ? std::min(limit, bytes) : bytes;
}

}  // namespace lignum::hw
