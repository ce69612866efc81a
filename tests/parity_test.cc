// Each lever on against off: where the mathematics is the same, so are the bits. Three steps of a small
// Llama, all weights compared.
#include "parity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/op.h"
#include "train/rank_executor.h"

namespace lignum::train {
namespace {

using namespace parity;  // NOLINT: the tests are one with it

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

// Each preset and each tensor in host memory, in RAM and in a file, with and without a copy thread.
TEST_P(Parity, OffloadLeavesTheBits) {
  const std::string file = "file:" + testing::TempDir();
  const Outcome none = run(with({}));
  for (const char* policy : {"minimal_offloaded", "qkv_proj_offloaded"})
    EXPECT_EQ(none, run(with({.remat = policy}))) << policy;
  for (const char* tensor : {"decoder_layer_input", "context", "query_proj", "key_proj", "value_proj",
                             "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"})
    EXPECT_EQ(none, run(with({.offload = {tensor}}))) << tensor;
  const std::vector<std::string> all = {"decoder_layer_input", "context", "out_proj", "mlpwi_0", "mlpwi_1"};
  EXPECT_EQ(none, run(with({.offload = all, .host = file})));
  EXPECT_EQ(none, run(with({.prefetch = 0, .offload = all})));
  EXPECT_EQ(none, run(with({.prefetch = 3, .threads = 2, .offload = all})));
  EXPECT_EQ(none, run(with({.overlap = false, .offload = all, .host = file})));
  EXPECT_EQ(run(with({.accumulation = 2})), run(with({.accumulation = 2, .offload = all})));
  EXPECT_EQ(run(with({.fsdp = 2})), run(with({.fsdp = 2, .offload = all})));
  EXPECT_EQ(run(with({.fsdp = 2})), run(with({.fsdp = 2, .overlap = false, .offload = all, .host = file})));
}

TEST_P(Parity, StateInHostMemoryLeavesTheBits) {
  const std::string file = "file:" + testing::TempDir();
  const std::vector<std::string> some = {"decoder_layer_input", "mlpwi_0"};
  const Outcome base = run(with({}));
  EXPECT_EQ(base, run(with({.moments = true})));
  EXPECT_EQ(base, run(with({.remat = "full", .prefetch = 0, .weights = true})));
  EXPECT_EQ(base, run(with({.overlap = false, .host = file, .moments = true, .weights = true})));
  EXPECT_EQ(
      run(with({.tied = true})),
      run(with(
          {.prefetch = 3, .threads = 2, .tied = true, .offload = some, .moments = true, .weights = true})));
  const Outcome sharded = run(with({.fsdp = 2, .hidden = 65}));
  for (const int64_t prefetch : {0, 2})
    EXPECT_EQ(sharded,
              run(with({.fsdp = 2, .prefetch = prefetch, .hidden = 65, .moments = true, .weights = true})));
  EXPECT_EQ(run(with({.data = 2, .accumulation = 2})),
            run(with({.data = 2, .accumulation = 2, .offload = some, .moments = true, .weights = true})));
  const std::string fp8 = "absmax absmax,0.9 absmax";
  EXPECT_EQ(run(with({.fp8 = fp8})),
            run(with({.remat = "minimal", .fp8 = fp8, .moments = true, .weights = true})));
}

TEST_P(Parity, UnevenShards) {
  // 65 wide over 2 and 4 ranks: the last shard is padded.
  EXPECT_EQ(run(with({.data = 2, .hidden = 65})), run(with({.fsdp = 2, .remat = "full", .hidden = 65})));
  EXPECT_EQ(run(with({.data = 4, .hidden = 65})), run(with({.fsdp = 4, .hidden = 65})));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Parity, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// Two micro-steps of four tokens: one is supervised in the first, three in the second. Labels by position.
constexpr int64_t kTokens = 4;
constexpr int32_t kLabels[2][kTokens] = {{-100, -100, 0, -100}, {1, 1, 1, -100}};

plan::ProgramOptions masked(const passes::Mesh& mesh, int64_t accumulation = 1) {
  plan::ProgramOptions o;
  o.model.vocab_size = 8;
  o.model.hidden = 16;
  o.model.layers = 2;
  o.model.heads = 2;
  o.model.kv_heads = 2;
  o.model.head_dim = 8;
  o.model.mlp = 24;
  o.mesh = mesh;
  o.pipeline.stages = o.pipeline.microbatches = mesh.size("pipeline");
  o.shape = {2 / accumulation, kTokens, DType::f32};
  o.accumulation = accumulation;
  o.remat = passes::remat_policy("none").value();
  o.optimizer.clip = 1e9;
  return o;
}

// Weights with which every token has the same logits, of which label 0 costs 4 nats and label 1 costs 1: the
// layers add nothing to the embedding, whose row i is the unit vector i, and so column i of the head is what
// token i gets.
void make_losses_known(const config::ModelConfig& m, const RankShards& shards, exec::Executor& e) {
  EXPECT_TRUE(init_parameters(m, shards, e, 3).ok());
  const double norm = 1 / std::sqrt(1 / static_cast<double>(m.hidden) + m.norm_eps);
  const double rest = std::log((1 - std::exp(-4) - std::exp(-1)) / static_cast<double>(m.vocab_size - 2));
  const auto parameters = models::parameters(m);
  for (size_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].pattern;
    const bool table = name == "model.embed_tokens.weight", head = name == "lm_head.weight";
    if (!table && !head && !name.ends_with("o_proj.weight") && !name.ends_with("down_proj.weight")) continue;
    const auto value = [&](int64_t i) -> double {
      const int64_t row = i / m.hidden;
      if (table) return row == i % m.hidden ? 1 : 0;
      return head ? (row == 0 ? -4 : row == 1 ? -1 : rest) / norm : 0;
    };
    auto* w = reinterpret_cast<float*>(e.param(static_cast<int64_t>(p)));
    for_each_run(parameters[p].dims, shards.program.params[p], shards.mesh, shards.rank,
                 [&](int64_t local, int64_t global, int64_t count) {
                   for (int64_t k = 0; k < count; ++k) w[local + k] = static_cast<float>(value(global + k));
                 });
  }
}

Outcome run_masked(plan::ProgramOptions o, bool known_losses, plan::Outputs outputs) {
  o.outputs = outputs;
  return run(o, 1, [&](exec::Executor& e, const RankShards& shards, int32_t step) {
    if (known_losses) {
      make_losses_known(o.model, shards, e);
    } else {
      EXPECT_TRUE(init_parameters(o.model, shards, e, 3).ok());
    }
    if (outputs == plan::Outputs::state) put_step(e, step);
    const BatchInputs inputs(e, shards.program, o.mesh, shards.rank);
    const int64_t group = row_group(o.mesh, shards.rank),
                  rows = 2 / (row_group(o.mesh, o.mesh.ranks() - 1) + 1) / o.accumulation;
    for (int64_t m = 0; m < o.accumulation; ++m) {
      Batch batch(rows, kTokens);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = (group * o.accumulation + m) * rows + r;
        const RowBuffers to = batch.row(r);
        one_document(kTokens, to);
        std::copy_n(kLabels[row], kTokens, to.labels);
        std::iota(to.ids, to.ids + kTokens, static_cast<int32_t>(row * kTokens));
      }
      inputs.put(batch, m);
    }
  });
}

// |a - b| <= 1e-6 |b|, tensor by tensor.
void expect_near(const Outcome& a, const Outcome& b) {
  for (size_t i = 0; i < b.parameters.size(); ++i) {
    double error = 0, norm = 0;
    for (size_t k = 0; k < b.parameters[i].size(); ++k) {
      const double x = a.parameters[i][k], y = b.parameters[i][k];
      error += (x - y) * (x - y);
      norm += y * y;
    }
    EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm)) << "parameter " << i;
  }
}

// A mean of the micro-steps' means would be (4 + 1) / 2. Where ranks have rows of their own, and no sum goes
// another way, even the bits are the same.
TEST(Masked, TokensCountAlikeInMicroStepsRanksMicrobatchesAndABatch) {
  const std::vector<passes::Mesh> of_rows = {{{{"data", 2}}}, {{{"fsdp", 2}}}, {{{"pipeline", 2}}}},
                                  others = {{{{"fsdp_transpose", 2}}},
                                            {{{"context", 2}}, true, false},
                                            {{{"context", 2}}, false, true},
                                            {{{"tensor", 2}}},
                                            {{{"pipeline", 2}, {"tensor", 2}}},
                                            {{{"fsdp", 2}, {"context", 2}, {"tensor", 2}}, true, false}};
  for (const bool known : {true, false}) {
    for (const plan::Outputs outputs : {plan::Outputs::grads, plan::Outputs::state}) {
      // Weights from a seed have gradients near zero, whose first AdamW step is of no certain size.
      if (!known && outputs == plan::Outputs::state) continue;
      const Outcome batch = run_masked(masked({}), known, outputs),
                    accumulated = run_masked(masked({}, 2), known, outputs);
      if (known) {
        EXPECT_NEAR(batch.losses[0], 1.75, 1e-6);
      }
      const auto near = [&](const Outcome& other) {
        EXPECT_NEAR(other.losses[0], batch.losses[0], 1e-6 * batch.losses[0]);
        expect_near(other, batch);
      };
      near(accumulated);
      for (const passes::Mesh& mesh : of_rows)
        EXPECT_EQ(accumulated, run_masked(masked(mesh), known, outputs));
      for (const passes::Mesh& mesh : others) {
        SCOPED_TRACE(mesh.axes.front().name + (mesh.ring ? " ring" : ""));
        near(run_masked(masked(mesh), known, outputs));
      }
    }
  }
}

TEST(Masked, AccumulationHoldsOneMicroStepsActivations) {
  const auto bytes_of = [](int64_t rows, int64_t accumulation, std::string_view part) {
    plan::ProgramOptions o = masked({});
    o.shape = {rows, 1024, DType::f32};
    o.accumulation = accumulation;
    const Result<plan::Program> program = plan::make_program(o);
    EXPECT_TRUE(program.ok()) << program.status().message();
    if (part.empty()) return program->memory.arena_bytes;
    int64_t bytes = 0;
    for (const passes::MemoryPart& p : program->memory.parts)
      if (p.name == part) bytes += p.bytes;
    return bytes;
  };
  const int64_t one = bytes_of(1, 1, "activations"), arena = bytes_of(1, 1, "");
  EXPECT_GT(one, arena / 4);
  EXPECT_EQ(bytes_of(1, 2, "activations"), one);
  EXPECT_EQ(bytes_of(1, 8, "activations"), one);
  EXPECT_EQ(bytes_of(2, 1, "activations"), 2 * one);
  // Beside them: the running sums, what is added to them, and the other micro-step's ids, labels and
  // positions.
  const int64_t sums = 4 * masked({}).model.parameters() + 4096;
  EXPECT_LE(bytes_of(1, 2, ""), arena + 2 * sums + int64_t{3} * 4 * 1024);
}

}  // namespace
}  // namespace lignum::train
