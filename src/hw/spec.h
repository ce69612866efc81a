// A hardware specification as data: specs/NAME.json (docs/specs.md has the format). Numbers live there, never
// in code.
//
// Words: a DEVICE is what runs one rank of a step: one TensorCore on tpu7x, a whole chip on v6e and v5p, one
// rank on a CPU. A CHIP holds devices_per_chip() of them. Every accessor says which of the two it speaks of.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "hw/cpu_curves.h"
#include "hw/quantity.h"

namespace lignum::hw {

enum class SpecKind { tpu, cpu };

// Whether the "fitted" section stands in for the numbers it names (`use`), or is left aside (`ignore`), which
// leaves only numbers that were published, measured one by one, or estimated by the compiler.
enum class Fitted { use, ignore };

// When a torus axis closes into a ring.
struct WrapRule {
  enum class Kind { all_axes_multiple_of, axis_equals };
  Kind kind = Kind::all_axes_multiple_of;
  int number = 0;
};

// The machine a CPU specification was measured on.
struct CpuMachine {
  std::string cpu;           // model name
  int cores = 0;             // the threads that run at once
  std::string isa;           // what the kernels were dispatched to: "avx512", ...
  std::string date, commit;  // as given by who measured
};

class Spec {
 public:
  // `name_or_path`: a path (has a '/' or ends in .json), or a NAME looked up in the folder of the environment
  // variable LIGNUM_SPECS, then among the specifications compiled into the binary. origin() says which it
  // was. An error lists names.
  static Result<Spec> load(const std::string& name_or_path, Fitted fitted = Fitted::use);
  // `origin` is named in errors.
  static Result<Spec> parse(const std::string& json_text, const std::string& origin,
                            Fitted fitted = Fitted::use);
  static std::vector<std::string> names();

  const std::string& name() const { return name_; }
  const std::string& origin() const { return origin_; }
  SpecKind kind() const { return kind_; }
  bool is_cpu() const { return kind_ == SpecKind::cpu; }

  // --- any quantity, by its key as in the file ("device.memory_bandwidth"); the fitted one where Fitted::use
  // finds it.
  const Quantity* find(std::string_view key) const;
  Result<double> get(std::string_view key) const;  // an error names key and file
  const std::map<std::string, Quantity, std::less<>>& quantities() const { return quantities_; }

  // --- per device. On a CPU these speak of the whole machine, which its ranks share (Share in roofline.h).
  // Nominal dense rate of the matrix units: the denominator of MFU, the numerator of arithmetic intensity.
  // FLOP/s. CPU: the fastest sample of the best measured GEMM, its dispatch included, so that no run of many
  // steps stands above it and no short call sets it.
  Result<double> peak_matmul_flops(DType operands) const;
  // The rate large matmuls reach. FLOP/s. A CPU's depends on the shape, this is the best: price with
  // matmul_time().
  Result<double> matmul_flops(DType operands) const;
  Result<double> memory_bandwidth() const;  // byte/s, read + written, as a big copy reaches it
  Result<double> device_memory() const;     // bytes a program may use
  Result<double> copy_bandwidth()
      const;  // byte/s one way between device and host memory (PCIe, or the RAM itself)
  Result<double> fast_memory() const;  // bytes of VMEM, or of one core's L2
  // Fixed cost of one node: 0 on a TPU, where XLA makes one program of them. `threads`: those of one rank's
  // pool.
  Result<double> dispatch_seconds(int threads = 1) const;

  // --- per chip and between chips (TPU)
  int devices_per_chip() const { return devices_per_chip_; }
  int tensorcores_per_chip() const { return tensorcores_per_chip_; }
  Result<double> link_bandwidth() const;      // byte/s of one ICI link, one way
  Result<double> die_bandwidth() const;       // byte/s one way between the devices of one chip
  Result<double> dcn_bandwidth() const;       // byte/s per chip to other slices
  Result<double> collective_overlap() const;  // share of a collective's time that hides under compute, 0..1
  int torus_dims() const { return torus_dims_; }
  const WrapRule& wrap_rule() const { return wrap_; }
  // Named slices "tpu7x-8": the number counts TensorCores (devices on tpu7x, two a device on v5p). Number ->
  // chips per axis.
  const std::map<int, std::vector<int>>& slices() const { return slices_; }

  // --- CPU
  const CpuMachine& machine() const { return machine_; }
  const CpuCurves& curves() const { return curves_; }
  // Points of a file that is used now and was not measured before.
  void set_host_file(std::vector<HostFilePoint> points) { curves_.host_file = std::move(points); }

 private:
  friend class SpecReader;
  Result<double> best_gemm_flops(DType operands, bool fastest_sample) const;
  std::string name_, origin_;
  SpecKind kind_ = SpecKind::tpu;
  std::map<std::string, Quantity, std::less<>> quantities_;
  int devices_per_chip_ = 1;
  int tensorcores_per_chip_ = 1;
  int torus_dims_ = 0;
  WrapRule wrap_;
  std::map<int, std::vector<int>> slices_;
  CpuMachine machine_;
  CpuCurves curves_;
};

}  // namespace lignum::hw
