// A training run of verify-mesh: a configuration on a mesh, by this machine's kernels or by XLA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pjrt/client.h"
#include "pjrt/reader.h"
#include "train/parameters.h"
#include "train/setup.h"

namespace lignum::train {

struct MeshCase {
  config::Config config;
  Setup setup;
  plan::Program step, gradients;  // outputs = state, and of the first step grads
  TrainData data;
};

// `base` on `mesh`, "" for one rank: VerifyMeshOptions::meshes says how both are read. like: whose kernels
// are taken, since a probe may choose otherwise the next time; may be null. for_xla: the step as XLA is given
// it.
Result<std::unique_ptr<MeshCase>> prepare_mesh(const config::Config& base, const std::string& mesh,
                                               const Setup* like, bool for_xla = false);

// What target=pjrt runs on.
struct MeshDevices {
  pjrt::Client client;
  pjrt::Overrides flags;
};
// The plug-in that `plugin` names, else XLA for the CPU with so many virtual devices; flags are those of
// compile_xla_flags. An error where there are less devices.
Result<MeshDevices> open_devices(const config::Config& config, int64_t count);

struct MeshRunOptions {
  int64_t steps = 1;   // 0: the gradients alone, and their loss
  uint64_t moved = 0;  // > 0: every weight but 0 goes up or down by an ulp of `dtype`, by this seed
  const MeshDevices* devices = nullptr;  // null: ranks are threads here, and run by this machine's kernels
};
struct MeshOutcome {
  std::vector<double> losses, norms;  // by step; without steps one loss
  WholeTensors gradients;             // of the first step, by parameter
};
Result<MeshOutcome> run_mesh(const MeshCase& c, const MeshRunOptions& options);

}  // namespace lignum::train
