// What the tests of levers share: a small Llama that takes a few steps with each lever on or off, and what it
// leaves behind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/rng.h"
#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "train/parameters.h"

namespace lignum::train::parity {

constexpr int64_t kRows = 4, kSeq = 32, kVocab = 211;

struct Setting {
  int64_t data = 1, fsdp = 1, accumulation = 1;
  std::string remat = "none";
  int64_t prefetch = 1;
  bool overlap = true;
  int threads = 1;
  DType dtype = DType::f32;
  int64_t hidden = 64;
  bool tied = false;
  bool fuse = true;
  int64_t tiling = 0;                     // of a rank's tokens in the head; 0: one tile of so few
  std::vector<std::string> offload = {};  // remat_policy=custom, these in host memory; `remat` has no effect
  std::string host = "ram";
  std::string fp8;  // the calibrations of the layers' dots, weights, activations, gradients; empty: none
  bool per_tensor = false;
  bool moments = false, weights = false;       // in host memory
  int64_t tile = 0, block = 0;                 // of contracted dims
  bool bwd = true;                             // gradients are quantised, too
  bool head = false;                           // so is the head
  std::optional<uint64_t> rounding_seed = {};  // of gradients, by chance
  std::vector<int64_t> ends = {};              // layers at the start and at the end that stay as they are
};

struct Outcome {
  std::vector<float> losses;
  std::vector<std::vector<float>> parameters;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

inline config::ModelConfig model(int64_t hidden) {
  config::ModelConfig m;
  m.vocab_size = kVocab;
  m.hidden = hidden;
  m.layers = 4;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.mlp = 112;
  return m;
}

inline void fill_batch(exec::Executor& e, int64_t first_row, int64_t rows) {
  auto* ids = reinterpret_cast<int32_t*>(e.param("input_ids"));
  auto* labels = reinterpret_cast<int32_t*>(e.param("labels"));
  auto* positions = reinterpret_cast<int32_t*>(e.param("positions"));
  const Random random(5, "tokens");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < kSeq; ++t) {
      const auto at = static_cast<uint64_t>((first_row + r) * (kSeq + 1) + t);
      const int64_t i = r * kSeq + t;
      ids[i] = static_cast<int32_t>(random.below(at, kVocab));
      labels[i] =
          (first_row + r) % kRows == 1 && t < 5 ? -100 : static_cast<int32_t>(random.below(at + 1, kVocab));
      positions[i] = static_cast<int32_t>(t);
    }
  }
}

// What a rank is given before each step: weights (before the first one), tokens, learning rate.
using Feed = FunctionRef<void(exec::Executor&, const RankShards&, int32_t step)>;

inline Status run_rank(const plan::Program& program, const plan::ProgramOptions& options,
                       const std::string& host, comm::Transport& transport, int32_t steps, Feed feed,
                       Outcome& out) {
  const int rank = transport.rank();
  LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(options.threads));
  exec::ExecutorOptions e;
  e.step = &program.scheduled;
  e.plan = &program.memory;
  e.mesh = &options.mesh;
  e.transport = options.mesh.ranks() > 1 ? &transport : nullptr;
  e.parallel = pool.get();
  e.choice = {kernels::best_isa()};
  e.overlap = options.schedule.overlap;
  e.host_memory = host;
  LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(e));
  for (int32_t step = 0; step < steps; ++step) {
    feed(*executor, {program, options.mesh, rank}, step);
    LIGNUM_RETURN_IF_ERROR(executor->step());
    if (rank != 0) continue;
    float loss = 0;
    std::memcpy(&loss, executor->output("loss"), sizeof(loss));
    out.losses.push_back(loss);
  }
  if (options.outputs == plan::Outputs::grads) {
    gather_gradients(options.model, {program, options.mesh, rank}, *executor, out.parameters);
    return {};
  }
  const auto parameters = models::parameters(options.model);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!writes_shard(program.params[i], options.mesh, rank)) continue;
    exec::ParamView view(*executor, static_cast<int64_t>(i));
    std::vector<float> shard(static_cast<size_t>(view.bytes()) / sizeof(float));
    for (int64_t at = 0; at < view.bytes(); at += view.row_bytes())
      std::memcpy(reinterpret_cast<std::byte*>(shard.data()) + at, view.read(at),
                  static_cast<size_t>(view.row_bytes()));
    LIGNUM_RETURN_IF_ERROR(view.finish());
    for_each_run(parameters[i].dims, program.params[i], options.mesh, rank,
                 [&](int64_t local, int64_t global, int64_t count) {
                   std::copy_n(shard.begin() + local, count, out.parameters[i].begin() + global);
                 });
  }
  return {};
}

// The losses of the steps, and in the end the parameters, or with outputs=grads their gradients.
inline Outcome run(const plan::ProgramOptions& o, int32_t steps, Feed feed, const std::string& host = "ram") {
  const Result<plan::Program> program = plan::make_program(o);
  EXPECT_TRUE(program.ok()) << program.status().message();
  Outcome out;
  out.parameters = zero_tensors(o.model);
  comm::ThreadWorld world(static_cast<int>(o.mesh.ranks()));
  const Status status =
      world.run([&](comm::Transport& t) { return run_rank(*program, o, host, t, steps, feed, out); });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline void put_step(exec::Executor& e, int32_t step) {
  const float learning_rate = 1e-2F;
  std::memcpy(e.param("learning_rate"), &learning_rate, sizeof(float));
  std::memcpy(e.param("step"), &step, sizeof(step));
}

// fp8_full with those three calibrations, a blank between them.
inline passes::QuantizationRule fp8_full(const std::string& calibrations, bool per_tensor) {
  passes::QuantizationRule rule{.module_path = "decoder/.*layers.*", .channelwise = !per_tensor};
  rule.weight_dtype = rule.act_dtype = DType::f8e4m3fn;
  rule.bwd_dtype = DType::f8e5m2;
  std::istringstream words(calibrations);
  for (ops::Calibration* c : {&rule.weight, &rule.act, &rule.bwd}) {
    std::string word;
    words >> word;
    *c = ops::parse_calibration(word).value();
  }
  return rule;
}

inline plan::ProgramOptions options_of(const Setting& s) {
  plan::ProgramOptions o;
  o.model = model(s.hidden);
  o.mesh.axes = {{"data", s.data}, {"fsdp", s.fsdp}};
  o.shape = {kRows / s.accumulation, kSeq, s.dtype};
  o.accumulation = s.accumulation;
  o.vocab_tiling = s.tiling;
  o.model.tie_embeddings = s.tied;
  if (!s.fuse) o.disabled.insert("fuse");
  o.remat = passes::remat_policy(s.remat).value();
  if (!s.offload.empty()) {
    o.remat = {};
    o.remat.saved.insert(s.offload.begin(), s.offload.end());
    o.remat.offloaded = o.remat.saved;
  }
  o.optimizer.clip = 1e9;  // inactive: its coefficient is exactly 1
  o.optimizer.offloaded = s.moments;
  o.host_parameters = s.weights;
  o.schedule = {s.prefetch, s.overlap};
  o.threads = s.threads;
  if (s.fp8.empty()) return o;
  o.quantization = {fp8_full(s.fp8, s.per_tensor)};
  passes::QuantizationRule& rule = o.quantization[0];
  rule.tile.size = rule.weight_grad_tile.size = s.tile;
  rule.block = s.block;
  rule.rounding_seed = s.rounding_seed;
  if (!s.bwd) rule.bwd_dtype.reset();
  if (s.head) rule.module_path += "|decoder/logits_dense";
  if (!s.ends.empty()) {
    o.quantised_layers = {s.ends[0], o.model.layers - s.ends[1]};
    o.model.loop_breaks.at = {s.ends[0], o.model.layers - s.ends[1]};
  }
  return o;
}

inline Outcome run(const Setting& s) {
  const plan::ProgramOptions o = options_of(s);
  const int64_t rows = kRows / o.mesh.ranks();
  return run(
      o, 3,
      [&](exec::Executor& e, const RankShards& shards, int32_t step) {
        if (step == 0) {
          EXPECT_TRUE(init_parameters(o.model, shards, e, 7).ok());
        }
        put_step(e, step);
        fill_batch(e, step * kRows + shards.rank * rows, rows);
      },
      s.host);
}

// In f32 and in bf16.
class Parity : public testing::TestWithParam<DType> {
 protected:
  static Setting with(Setting s) {
    s.dtype = GetParam();
    return s;
  }
};

}  // namespace lignum::train::parity
