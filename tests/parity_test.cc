// Each lever on against off: where the mathematics is the same, so are the bits. Three steps of a small
// Llama, all weights compared.
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "train/parameters.h"

namespace lignum::train {
namespace {

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
  int64_t tiling = 0;  // of a rank's tokens in the head; 0: one tile of so few
};

struct Outcome {
  std::vector<float> losses;
  std::vector<std::vector<float>> parameters;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

config::ModelConfig model(int64_t hidden) {
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

void fill_batch(exec::Executor& e, int64_t first_row, int64_t rows) {
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

Status run_rank(const plan::Program& program, const plan::ProgramOptions& options, comm::Transport& transport,
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
  LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(e));
  init_parameters(options.model, {program, options.mesh, rank}, *executor, 7);
  const int64_t rows = kRows / options.mesh.ranks();
  for (int32_t step = 0; step < 3; ++step) {
    const float learning_rate = 1e-2F;
    std::memcpy(executor->param("learning_rate"), &learning_rate, sizeof(float));
    std::memcpy(executor->param("step"), &step, sizeof(step));
    fill_batch(*executor, step * kRows + rank * rows, rows);
    LIGNUM_RETURN_IF_ERROR(executor->step());
    if (rank != 0) continue;
    float loss = 0;
    std::memcpy(&loss, executor->output("loss"), sizeof(loss));
    out.losses.push_back(loss);
  }
  const auto parameters = models::parameters(options.model);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!writes_shard(program.params[i], options.mesh, rank)) continue;
    const auto* from = reinterpret_cast<const float*>(executor->param(static_cast<int64_t>(i)));
    for_each_run(parameters[i].dims, program.params[i], options.mesh, rank,
                 [&](int64_t local, int64_t global, int64_t count) {
                   std::copy_n(from + local, count, out.parameters[i].begin() + global);
                 });
  }
  return {};
}

Outcome run(const Setting& s) {
  plan::ProgramOptions o;
  o.model = model(s.hidden);
  o.mesh.axes = {{"data", s.data}, {"fsdp", s.fsdp}};
  o.shape = {kRows / s.accumulation, kSeq, s.dtype};
  o.accumulation = s.accumulation;
  o.vocab_tiling = s.tiling;
  o.model.tie_embeddings = s.tied;
  if (!s.fuse) o.disabled.insert("fuse");
  o.remat = passes::remat_policy(s.remat).value();
  o.adamw.clip = 1e9;  // inactive: its coefficient is exactly 1
  o.schedule = {s.prefetch, s.overlap};
  o.threads = s.threads;
  const Result<plan::Program> program = plan::make_program(o);
  EXPECT_TRUE(program.ok()) << program.status().message();
  Outcome out;
  for (const models::Parameter& p : models::parameters(o.model)) {
    int64_t n = 1;
    for (const int64_t d : p.dims) n *= d;
    out.parameters.emplace_back(static_cast<size_t>(n));
  }
  comm::ThreadWorld world(static_cast<int>(o.mesh.ranks()));
  const Status status = world.run([&](comm::Transport& t) { return run_rank(*program, o, t, out); });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

class Parity : public testing::TestWithParam<DType> {
 protected:
  static Setting with(Setting s) {
    s.dtype = GetParam();
    return s;
  }
};

TEST_P(Parity, RematAndThreadsLeaveTheBits) {
  const Outcome none = run(with({}));
  EXPECT_EQ(none, run(with({.remat = "full"})));
  for (const char* policy :
       {"minimal", "minimal_with_context", "save_dot_with_context_except_mlp", "save_dot_except_mlpwi",
        "save_dot_except_mlp", "save_qkv_proj", "save_out_proj"})
    EXPECT_EQ(none, run(with({.remat = policy}))) << policy;
  EXPECT_EQ(none, run(with({.threads = 2})));
  EXPECT_EQ(none, run(with({.remat = "full", .threads = 3})));
}

TEST_P(Parity, DataFsdpAndAccumulationAgree) {
  const Outcome data = run(with({.data = 2}));
  EXPECT_EQ(data, run(with({.fsdp = 2})));
  EXPECT_EQ(data, run(with({.accumulation = 2})));
  const Outcome four = run(with({.data = 4}));
  EXPECT_EQ(four, run(with({.fsdp = 4})));
  EXPECT_EQ(four, run(with({.accumulation = 4})));
}

TEST_P(Parity, HeadInTiles) {
  const Outcome data = run(with({.data = 2, .tiling = 3}));  // 64 tokens in tiles of 24
  EXPECT_EQ(data, run(with({.fsdp = 2, .threads = 2, .tiling = 3})));
  EXPECT_EQ(data, run(with({.accumulation = 2, .remat = "full", .tiling = 3})));
  // One tile in f32 has the bits of matmul and cross_entropy; in bf16 those round the logits.
  const Outcome one = run(with({})), whole = run(with({.tiling = 1}));
  if (GetParam() == DType::f32) {
    EXPECT_EQ(one, whole);
  }
  const float bound = GetParam() == DType::f32 ? 1e-6F : 2e-3F;
  const Outcome many = run(with({.tiling = 5}));
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(many.losses[step], whole.losses[step], bound * whole.losses[step]) << step;
    EXPECT_NEAR(one.losses[step], whole.losses[step], bound * whole.losses[step]) << step;
  }
}

TEST_P(Parity, FusionLeavesTheBits) {
  for (const bool tied : {false, true}) {
    EXPECT_EQ(run(with({.tied = tied, .fuse = false})), run(with({.threads = 2, .tied = tied})));
    EXPECT_EQ(run(with({.fsdp = 2, .remat = "full", .tied = tied, .fuse = false})),
              run(with({.fsdp = 2, .remat = "full", .tied = tied})));
    EXPECT_EQ(run(with({.accumulation = 2, .tied = tied, .fuse = false})),
              run(with({.accumulation = 2, .tied = tied})));
  }
}

TEST_P(Parity, PrefetchAndOverlapLeaveTheBits) {
  const Outcome base = run(with({.fsdp = 2, .remat = "full", .prefetch = 0}));
  EXPECT_EQ(base, run(with({.fsdp = 2, .remat = "full", .prefetch = 1})));
  EXPECT_EQ(base, run(with({.fsdp = 2, .remat = "minimal", .prefetch = 2})));
  EXPECT_EQ(base, run(with({.fsdp = 2, .remat = "full", .prefetch = 7})));  // more than there are layers
  EXPECT_EQ(base, run(with({.fsdp = 2, .overlap = false})));
}

TEST_P(Parity, UnevenShards) {
  // 65 wide over 2 and 4 ranks: the last shard is padded.
  EXPECT_EQ(run(with({.data = 2, .hidden = 65})), run(with({.fsdp = 2, .remat = "full", .hidden = 65})));
  EXPECT_EQ(run(with({.data = 4, .hidden = 65})), run(with({.fsdp = 4, .hidden = 65})));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Parity, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace lignum::train
