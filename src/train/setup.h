// What a configuration means for a run on this machine's own kernels.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "hw/spec.h"
#include "plan/program.h"
#include "train/data.h"
#include "train/kernel_choice.h"
#include "train/ranks.h"
#include "train/schedule.h"

namespace lignum::train {

struct Setup {
  config::ModelConfig model;
  int64_t ranks = 1;
  int64_t ranks_here = 1;  // on this machine: what shares its cores and memory
  int threads = 1;         // of a rank
  KernelChoice kernels;
  plan::ProgramOptions step;  // outputs = state
  BatchShape batch;
  std::string host_memory;    // exec::HostMemory::create
  SharedTokenizer tokenizer;  // of train_files and eval_files
  LearningRateSchedule schedule;
};

// Reads every key that shapes a run; the errors name the key. Takes target=cpu only. spec: this machine's
// calibration, for the choice of kernels; may be null.
Result<Setup> make_setup(const config::Config& config, const hw::Spec* spec, const Processes& processes = {});
// What a probe chose may differ between processes: the first one's way of bf16 dots is everyone's. An error
// names what another process cannot take.
Status share_kernels(const Ranks& processes, Setup& setup);

// The options of a step over `ranks` ranks or devices of any target: plan::program_options with adamw_mask.
Result<plan::ProgramOptions> step_options(const config::Config& config, const config::ModelConfig& model,
                                          int64_t ranks);
// The parameters that adamw_mask keeps from being decayed, in the model's order.
std::vector<std::string> not_decayed(const config::ModelConfig& model, const passes::Optimizer& optimizer);

// The forward pass over the same rows of a rank, for evaluation.
plan::ProgramOptions eval_options(const Setup& setup);

// Bytes: device_memory, else a rank's part of what the specification gives programs, else (no specification,
// or a CPU's without memory) its part of this machine's physical memory; 0 (none) where the system does not
// tell.
int64_t memory_budget(const config::Config& config, const hw::Spec* spec, int64_t ranks_here);

// What a step's arena leaves of the budget; one byte is a budget too, 0 would be none.
int64_t left_for_evaluation(int64_t budget, int64_t arena_bytes);
// Whether what a rank offloads has room in host_memory, beside what the ranks here keep on the device.
Status check_host_memory(const Setup& setup, int64_t host_bytes, int64_t arena_bytes);

// base_output_directory/run_name; without a name one is made from the time.
std::string run_folder(const config::Config& config);

}  // namespace lignum::train
