// What a configuration means for a run on this machine's own kernels.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "hw/spec.h"
#include "kernels/isa.h"
#include "plan/program.h"
#include "train/data.h"
#include "train/ranks.h"
#include "train/schedule.h"

namespace lignum::train {

struct Setup {
  config::ModelConfig model;
  int64_t ranks = 1;
  int64_t ranks_here = 1;  // on this machine: what shares its cores and memory
  int threads = 1;         // of a rank
  kernels::Choice choice;
  plan::ProgramOptions step;  // outputs = state
  BatchShape batch;
  LearningRateSchedule schedule;
};

// Reads every key that shapes a run; the errors name the key. Takes target=cpu only.
Result<Setup> make_setup(const config::Config& config, const Processes& processes = {});

// The options of a step over `ranks` ranks or devices of any target: plan::program_options with adamw_mask.
Result<plan::ProgramOptions> step_options(const config::Config& config, const config::ModelConfig& model,
                                          int64_t ranks);
// The parameters that adamw_mask keeps from being decayed, in the model's order.
std::vector<std::string> not_decayed(const config::ModelConfig& model, const passes::AdamW& adamw);

// The forward pass over the same rows of a rank, for evaluation.
plan::ProgramOptions eval_options(const Setup& setup);

// Bytes: device_memory, else a rank's part of what the specification gives programs, else (no specification,
// or a CPU's without memory) its part of this machine's physical memory; 0 (none) where the system does not
// tell.
int64_t memory_budget(const config::Config& config, const hw::Spec* spec, int64_t ranks_here);

// base_output_directory/run_name; without a name one is made from the time.
std::string run_folder(const config::Config& config);

}  // namespace lignum::train
