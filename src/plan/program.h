// From a configuration to a step that the readers take: the passes in their order, each stage kept.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hw/roofline.h"
#include "models/model.h"
#include "passes/memory.h"
#include "passes/partition.h"
#include "passes/quantise.h"
#include "passes/quantization_watch.h"
#include "passes/remat.h"
#include "passes/schedule.h"
#include "passes/update.h"

namespace lignum::plan {

enum class Outputs : uint8_t { state, grads, loss };  // loss: the forward pass alone (evaluation)

// All that shapes a step, and nothing that does not.
struct ProgramOptions {
  config::ModelConfig model;
  models::Shape shape;  // rows over all ranks, one micro-step; loss_tile comes from vocab_tiling
  int64_t accumulation = 1;
  std::vector<passes::QuantizationRule> quantization;  // in order; empty: nothing is quantised
  passes::QuantizationRanges ranges;                   // of rules that are static
  passes::WatchOptions watch;                          // of what is quantised; not with outputs = loss
  passes::QuantisedLayers quantised_layers;
  passes::RematPolicy remat;
  bool custom_remat = false;     // remat is a list of names: one that keeps nothing is said
  bool host_parameters = false;  // the parameters lie in host memory: passes::offload
  passes::Optimizer optimizer;
  passes::Mesh mesh;
  passes::Pipeline pipeline;  // stages: the size of mesh axis "pipeline"
  passes::ScheduleOptions schedule;
  bool xla = false;  // for XLA to compile: what it does to loops is in the graph (passes/hoist.h)
  int threads = 1;   // of a rank's pool
  // CPU: how bf16 dots are taken, as a specification names it; empty: the fastest way that it knows. Prices
  // only.
  std::string bf16_dot;
  bool fp16_sums = false;  // CPU: fp8_accumulation=fp16_64, likewise
  bool host_file = false;  // CPU: host memory is a file; likewise
  hw::Link link;           // CPU: what collectives are slowed down to; likewise
  Outputs outputs = Outputs::state;
  bool logits = false;  // grads and loss only
  // Tiles of tokens in head and loss; see models::loss_tile. A head that is quantised is held whole.
  int64_t vocab_tiling = 0;
  std::vector<std::string> notes;  // of the configuration: what is set and has no effect

  // After each pass, by its name: forward, quantise, autodiff, remat, watch, offload, accumulate, update,
  // partition, hoist (for XLA), fuse.
  std::function<void(std::string_view pass, const ir::Graph&)> dump;
  // Passes that are left out, by name: remat (everything needed is then saved), fuse.
  std::set<std::string, std::less<>> disabled;
};

// Reads the keys that shape a step; refuses more tokens or activations than the passes count. ranks: the
// product of the mesh.
Result<ProgramOptions> program_options(const config::Config& config, const config::ModelConfig& model,
                                       int64_t ranks);

struct Program {
  std::vector<std::string> notes;               // ProgramOptions'; policy names and rules that do nothing
  std::vector<passes::WatchedOperand> watched;  // outputs that ProgramOptions::watch asked for
  ir::Graph global;
  std::shared_ptr<const ir::Graph> local;         // what a PJRT device is given; scheduled is its fused form
  std::vector<passes::Sharding> params, outputs;  // of local's params and outputs
  passes::Scheduled scheduled;
  passes::MemoryPlan memory;
};

// FLOPs of matmuls and attention that one rank computes again in the backward pass (role remat), in one step.
double recomputed_flops(const passes::Scheduled& step);

// Every stage is verified after each pass; an error names the pass.
Result<Program> make_program(const ProgramOptions& options);

// A step of generation, of one rank.
struct GenerationOptions {
  config::ModelConfig model;
  models::GenerationShape shape;
  int threads = 1;
  std::function<void(std::string_view pass, const ir::Graph&)> dump;  // after generation and partition
};
Result<Program> make_generation_program(const GenerationOptions& options);

}  // namespace lignum::plan
