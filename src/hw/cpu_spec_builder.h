// Writes a CPU specification from measured points; who measures (kernels, ranks) calls this, since hw knows
// no kernel.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "hw/cpu_curves.h"
#include "hw/probe.h"
#include "hw/spec.h"

namespace lignum::hw {

class CpuSpecBuilder {
 public:
  CpuSpecBuilder(std::string name, CpuMachine machine);

  // Memory a program may use on the machine, and the L2 bytes of one core that tiles may use.
  CpuSpecBuilder& memory(double device_bytes, double fast_bytes);
  CpuSpecBuilder& copy_bandwidth(
      double bytes_per_second);  // between the device arena and the host arena, one way

  // way: GemmPoint::way.
  CpuSpecBuilder& gemm(DType, int threads, int64_t m, int64_t n, int64_t k, const Measurement&,
                       std::string_view way = "fma");
  CpuSpecBuilder& stream(int threads, int64_t bytes, const Measurement&);
  CpuSpecBuilder& rows(const std::string& op, DType, int threads, int64_t elements, const Measurement&);
  CpuSpecBuilder& attention(AttentionPass, DType, int threads, int64_t sequences, int64_t heads, int64_t seq,
                            int64_t head_dim, const Measurement&, std::string_view way = "fma",
                            int64_t group = 1);
  CpuSpecBuilder& collective(Collective, int ranks, int64_t bytes, const Measurement&);
  CpuSpecBuilder& dispatch(int threads, const Measurement&);
  CpuSpecBuilder& host_file(std::vector<HostFilePoint> points);

  // The JSON text, read back through Spec::parse before it is returned: what is missing is refused here, by
  // key.
  Result<std::string> build() const;
  // Writes it to `path` by a temporary file and rename; makes the folder.
  Status write(const std::string& path) const;

 private:
  std::string name_;
  CpuMachine machine_;
  double device_bytes_ = 0, fast_bytes_ = 0, copy_bandwidth_ = 0;
  CpuCurves curves_;
};

// What this process runs on: model name from /proc/cpuinfo, cores from the affinity mask. Date (UTC,
// ISO 8601) is now; `commit` is the caller's.
CpuMachine this_machine(std::string isa, std::string commit);
double this_machine_memory();  // bytes of RAM, the cgroup's limit if that is less

}  // namespace lignum::hw
