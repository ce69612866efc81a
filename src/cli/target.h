// Which machine a configuration is about, and the step as that machine's devices run it.
#pragma once

#include <optional>
#include <string>

#include "config/config.h"
#include "hw/spec.h"
#include "hw/topology.h"
#include "plan/program.h"

namespace lignum::cli {

struct Target {
  plan::ProgramOptions step;
  int64_t devices = 1;
  std::optional<hw::Spec> spec;          // absent: this machine, not calibrated
  std::string no_spec;                   // why it is absent
  std::optional<hw::Topology> topology;  // TPU
  int64_t device_memory = 0;             // bytes a device may use; 0: unknown
  std::string describe() const;
};

// target=cpu: this machine, or the CPU that `spec` names. target=tpu, or a compile_topology: its chips.
Result<Target> find_target(const config::Config& config);

}  // namespace lignum::cli
