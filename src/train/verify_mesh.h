// verify-mesh: a training run on meshes against the same run on one rank.
//
// No bits are promised between one rank and a tensor axis, so what counts is how far two such runs may part
// at all. From the same weights, on the same rows:
//   divergence = max over the steps of |d loss| / loss and |d norm| / norm, against the run on one rank
//   noise      = the largest divergence of one-rank runs whose weights are moved by one unit in the last
//   place, but no less than 2^-24: losses and norms are f32, and of few moved runs none may round to another
// A mesh passes where divergence <= kMargin noise, and the gradients of the first step, tensor by tensor,
//   ||g - g1||  <=  kMargin (the largest ||g' - g1|| of the runs that were moved)  +  1e-7 ||all gradients||.
// A unit in the last place is that of `dtype`, in which operands are read.
//
// With target=pjrt XLA runs the meshes, on a device for each rank (the CPU plug-in has as many as are asked
// for), from the same weights and rows; the runs on one rank are this machine's kernels' all the same, and
// the bars are the same.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace lignum::train {

struct VerifyMeshOptions {
  int64_t steps = 20;     // 0: of the first step its loss and gradients, without an update
  int64_t perturbed = 8;  // one-rank runs that are moved; >= 1
  // Sizes by axis, and keys that say how the mesh is used: "fsdp=2,tensor=2",
  // "context=4,context_parallel_strategy=ring"; empty: default_meshes().
  std::vector<std::string> meshes;
  std::function<void(const std::string& line)> log;  // may be empty
};

inline constexpr double kVerifyMargin = 4, kLeastNoise = 0x1p-24;

struct MeshVerdict {
  std::string mesh;
  std::string left_out;  // why it was not run; the rest is then empty
  int64_t ranks = 0;
  double divergence = 0;
  int64_t step = 0;        // where
  double gradients = 0;    // the largest error of a tensor's gradient, in shares of its bound
  std::string worst;       // that tensor
  std::string same_bits;   // another mesh whose first loss and gradients must have, and have, the same bits
  std::string other_bits;  // likewise, and they differ
  bool ok(double noise) const {
    return divergence <= kVerifyMargin * noise && gradients <= 1 && other_bits.empty();
  }
};
struct MeshReport {
  double noise = 0;
  double first_loss = 0, last_loss = 0;  // of one rank
  std::vector<MeshVerdict> meshes;
};

// Every axis alone at 2 and 4, context parallelism both ways and pipelines by both schedules, and pairs and
// triples of axes on up to 8 ranks.
std::vector<std::string> default_meshes();

// The configuration's own mesh does not count; its per_device_batch_size is the rows of a micro-step on one
// rank, which a mesh's ranks share. Meshes by default that cannot take the model or the rows are left out, a
// mesh that was asked for is an error.
Result<MeshReport> verify_meshes(const config::Config& config, const VerifyMeshOptions& options);

}  // namespace lignum::train
