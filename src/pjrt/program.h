// A compiled program, and compilation ahead of time for devices that this machine does not have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pjrt/options.h"
#include "pjrt/plugin.h"

struct PJRT_Executable;
struct PJRT_TopologyDescription;

namespace lignum::pjrt {

// Bytes per device, as the compiler planned them. peak is the compiler's own figure for one execution:
// arguments, outputs (less those aliased) and temporaries, at the worst moment. host_* live in host memory
// (pinned_host).
struct MemoryStats {
  int64_t code = 0;
  int64_t arguments = 0;
  int64_t outputs = 0;
  int64_t aliased = 0;  // part of arguments that outputs reuse (donation)
  int64_t temporaries = 0;
  int64_t peak = 0;
  int64_t host_code = 0;
  int64_t host_arguments = 0;
  int64_t host_outputs = 0;
  int64_t host_aliased = 0;
  int64_t host_temporaries = 0;

  // The worst moment on the device. Where temporaries lie in host memory, libtpu's own figure may count
  // them: 30.22 GiB, which is 11.22 of arguments and 19.00 on the host, of a step whose arguments and
  // temporaries on the device are 23.07 (Llama-3.1-8B, minimal_offloaded, libtpu 0.0.52). No more than these
  // are there.
  int64_t device_peak() const {
    return host_temporaries > 0 ? std::min(peak, arguments + outputs - aliased + temporaries) : peak;
  }
};

// What a plug-in made of a program. A value that shares the plug-in's object; const functions may run in
// parallel.
class CompiledProgram {
 public:
  Result<std::string> name() const;
  Result<int64_t> num_outputs() const;  // per device
  // Not every plug-in knows each of these: its refusal comes back as the Status.
  Result<MemoryStats> memory_stats() const;
  Result<Attributes> cost_analysis()
      const;  // "flops", "bytes accessed", ...; libtpu's "optimal_seconds" is unusable
  Result<int64_t> serialized_size() const;  // bytes
  Result<std::string> serialize() const;
  // The optimised module as HloModuleProtoWithConfig bytes: for HloProgram::decode (pjrt/hlo.h).
  Result<std::string> optimized_program() const;

  // Takes ownership of the executable; keep_alive (a client) outlives it. For this room's own use.
  CompiledProgram(Plugin plugin, PJRT_Executable* executable, std::shared_ptr<const void> keep_alive);

 private:
  Plugin plugin_;
  std::shared_ptr<PJRT_Executable> executable_;
};

struct DeviceDescription {
  int64_t id = 0;  // what CompileOptions::device_ids takes: not always 0..n-1 (slice s of several starts at
                   // 100000 * (s + 1))
  std::string kind;
  int process_index = 0;
  std::vector<int64_t> coords;  // of the chip in its slice's torus (TPU), else empty
  int64_t core_on_chip = 0;
  int64_t slice_index = 0;
  int64_t memory_bytes = 0;  // usable device memory; 0 when the plug-in does not say
  Attributes attributes;     // all that the plug-in says
};

struct TopologyOptions {
  int num_slices = 1;
  std::vector<int64_t> chips_per_host_bounds;  // empty: the plug-in's choice
};

// Devices by name, present or not: "tpu7x:2x2x1" is 4 chips, 8 devices.
class Topology {
 public:
  static Result<Topology> create(const Plugin&, const std::string& name, const TopologyOptions& = {});

  const std::string& name() const { return name_; }
  const Plugin& plugin() const { return plugin_; }
  // By ascending id; in one slice that is core fastest, then x, y, z.
  const std::vector<DeviceDescription>& devices() const { return devices_; }

  PJRT_TopologyDescription* handle() const { return topology_.get(); }

 private:
  Topology(Plugin plugin, std::string name, std::shared_ptr<PJRT_TopologyDescription> topology)
      : plugin_(plugin), name_(std::move(name)), topology_(std::move(topology)) {}

  Plugin plugin_;
  std::string name_;
  std::shared_ptr<PJRT_TopologyDescription> topology_;
  std::vector<DeviceDescription> devices_;
};

// Compiles StableHLO text (or its portable bytecode) for the topology's devices. A fault in the program or
// its options is a user error with the plug-in's words.
Result<CompiledProgram> compile_ahead(const Topology&, std::string_view stablehlo, const CompileOptions&);

}  // namespace lignum::pjrt
