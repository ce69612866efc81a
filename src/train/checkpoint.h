// Checkpoints of a run: RUN/checkpoints/STEP/, STEP being the number of steps done, which is the number of
// the next step.
//   config.json            the model, as Hugging Face writes it
//   model.safetensors      f32 masters under Hugging Face's names
//   optimizer.safetensors  adam_m.NAME and adam_v.NAME, or sgd_trace.NAME, in the moments' dtypes
//   state.json             CheckpointState
//   tokenizer.json         of the run, where it has one; a SentencePiece model is tokenizer.model
//   manifest.json          size and CRC-32C of each of the files above
// Tensors are whole and unpadded, whatever mesh wrote them. A checkpoint appears by the rename of a folder
// whose bytes are on disk: a folder without the suffix .tmp is complete, unless the disk lost something
// since, which the manifest shows.
#pragma once

#include <string>
#include <vector>

#include "exec/executor.h"
#include "train/parameters.h"
#include "train/ranks.h"
#include "train/step_policy.h"

namespace lignum::train {

struct CheckpointState {
  int64_t step = 0;           // steps done, skipped ones among them
  int64_t rows_consumed = 0;  // where the stream of rows goes on
  std::string data;           // Rows::fingerprint
  std::string isa, bf16_dot;  // the kernels' choice
  std::vector<passes::MeshAxis> mesh;
  PolicyState policy;  // steps that were skipped, what the next ones are judged by
  int64_t init_weights_seed = 0, data_shuffle_seed = 0;
  std::string config;          // the run's configuration, as YAML
  std::string tokenizer;       // the file's bytes, for the writer; empty: none
  std::string tokenizer_file;  // its name
};

struct Checkpoint {
  std::string folder;
  config::ModelConfig model;
  CheckpointState state;
  int64_t bytes = 0;      // of all files
  uint32_t manifest = 0;  // CRC-32C of the manifest: another one is another checkpoint
};

std::string checkpoint_folder(const std::string& run, int64_t step);
// The steps of the checkpoints of a run, ascending; none where there is no such run.
Result<std::vector<int64_t>> list_checkpoints(const std::string& run);
// Removes what a run that was killed while it saved has left.
Status remove_unfinished(const std::string& run);

// Checks every file against the manifest and reads what is not a tensor. An error names the file and what to
// do.
Result<Checkpoint> open_checkpoint(const std::string& folder);

// What the SPMD calls below need of a rank. The executor runs a step of outputs=state.
struct RankState {
  const config::ModelConfig& model;
  std::vector<passes::Moment> moments;  // of the optimizer
  RankShards shards;
  exec::Executor& executor;
  const Ranks& ranks;
};

// Every rank calls it, its executor idle; returns when the checkpoint stands. An existing one of that step
// stays as it is.
Status write_checkpoint(const std::string& run, const CheckpointState& state, const RankState& rank);

// Parameters and moments into this rank's shards. Moments that the checkpoint lacks are a user error (another
// optimizer wrote it); those of another dtype are converted.
Status read_checkpoint(const Checkpoint& checkpoint, const RankState& rank);

}  // namespace lignum::train
