// The loop of one rank. Internal to train/.
#pragma once

#include "train/evaluate.h"
#include "train/profile.h"
#include "train/trainer.h"

namespace lignum::train {

// What all ranks share: made before they start, only read by them.
struct Run {
  const config::Config& config;
  const TrainOptions& options;
  Setup setup;
  plan::Program program;
  TrainData data;
  int64_t steps = 0;                     // after which it ends: the key, or fewer where the data ends before
  std::optional<Evaluation> evaluation;  // where eval_interval asks for it
  std::string folder;
  bool checkpoints = true;
  std::optional<Checkpoint> resume;
  std::string weights;  // Hugging Face folder of the initial ones; empty: from the seed
  int64_t budget = 0;   // bytes of a rank's arenas, 0: none

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }
};

// "data=2 fsdp=4", without the axes of size 1; "one rank" where that leaves none.
std::string mesh_text(const std::vector<passes::MeshAxis>& axes);

// The body of a rank. `summary` and `profile` are the first rank's to fill; the others leave them alone.
Status run_rank(const Run& run, comm::Transport& transport, TrainSummary& summary, Profile& profile);

}  // namespace lignum::train
