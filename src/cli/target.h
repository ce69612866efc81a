// Which machine a configuration is about, and the step as that machine's devices run it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

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

  // How the mesh lies on the topology: of each axis of more than one device, the dims of the torus and the
  // slices that its devices are spread over (hw::Group::describe), or that it cuts across the torus: XLA
  // takes that, a price does not. None without a topology.
  struct Axis {
    std::string name;
    int64_t size = 1;
    std::string on;
  };
  std::vector<Axis> axes() const;
  void print() const;                        // describe() and a line an axis
  nlohmann::ordered_json mesh_json() const;  // [{"axis", "devices", "on"}]
};

// target=cpu: this machine, or the CPU that `spec` names. target=tpu, or a compile_topology: its chips.
Result<Target> find_target(const config::Config& config);

}  // namespace lignum::cli
