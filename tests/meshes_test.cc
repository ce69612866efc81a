// Training on meshes: the same run as on one rank, and a checkpoint of one mesh on another.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "comm/threads.h"
#include "exec/executor.h"
#include "exec/thread_pool.h"
#include "passes/fuse.h"
#include "plan/program.h"
#include "runs.h"
#include "train/shards.h"
#include "train/verify_mesh.h"

namespace lignum::testing {
namespace {

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

// A family's tiny model, on rows of synthetic tokens.
struct Setting {
  const char* name;
  std::vector<std::string> words;
  std::vector<std::string> meshes;
};
void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

class Meshes : public ::testing::TestWithParam<Setting> {};

TEST_P(Meshes, AreTheRunOfOneRank) {
  std::vector<std::string> words = {"dataset_type=synthetic",  "per_device_batch_size=4",
                                    "max_target_length=16",    "learning_rate=1e-3",
                                    "warmup_steps_fraction=0", "steps=3"};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  const auto config = config::Config::load({}, words);
  ASSERT_OK(config);
  const Result<train::MeshReport> report =
      train::verify_meshes(*config, {.steps = 3, .perturbed = 2, .meshes = GetParam().meshes, .log = {}});
  ASSERT_OK(report);
  EXPECT_GT(report->noise, 0);
  ASSERT_EQ(report->meshes.size(), GetParam().meshes.size());
  for (const train::MeshVerdict& v : report->meshes) {
    EXPECT_TRUE(v.ok(report->noise)) << v.mesh << " parts by " << v.divergence << " at step " << v.step
                                     << ", noise " << report->noise << "; " << v.gradients
                                     << " of the bound of " << v.worst << "; other bits than "
                                     << v.other_bits;
    EXPECT_GT(v.divergence + v.gradients, 0) << v.mesh;
  }
}

std::string golden(const char* name) {
  return std::string("model_path=") + LIGNUM_SOURCE_DIR "/tests/golden/" + name;
}

INSTANTIATE_TEST_SUITE_P(
    Families, Meshes,
    ::testing::Values(
        Setting{"llama_f32",
                {"model_name=lignum-tiny", "gradient_accumulation_steps=2"},
                {"tensor=2", "tensor=4", "fsdp=2,tensor=2", "fsdp=2,fsdp_transpose=2",
                 "fsdp_transpose=2,tensor=2", "pipeline=2,fsdp=2", "pipeline=2,tensor=2"}},
        Setting{"llama_bf16",
                {"model_name=lignum-tiny", "dtype=bfloat16"},
                {"data=2", "fsdp=2", "fsdp=2,tensor=2", "pipeline=2", "data=4", "pipeline=4"}},
        Setting{"llama_fp8",
                {"model_name=lignum-tiny", "dtype=bfloat16", "use_qwix_quantization=true",
                 "quantization=fp8_full"},
                {"fsdp=2,tensor=2", "pipeline=2"}},
        Setting{"zero1_f32",
                {"model_name=lignum-tiny", "gradient_accumulation_steps=2", "shard_optimizer_over_data=true"},
                {"fsdp=2", "data=2", "data=2,fsdp=2", "data=2,tensor=2"}},
        Setting{"zero1_fp8",
                {"model_name=lignum-tiny", "dtype=bfloat16", "use_qwix_quantization=true",
                 "quantization=fp8_full", "shard_optimizer_over_data=true"},
                {"fsdp=2", "data=2", "data=2,pipeline=2"}},
        // Fixed scales mask the gradients of what they clip, here while stages still add them up.
        Setting{"pipeline_fp8_fixed",
                {"model_name=lignum-tiny", "dtype=bfloat16", "use_qwix_quantization=true",
                 "quantization=fp8_full", "weight_quantization_calibration_method=fixed,-0.05,0.05",
                 "act_quantization_calibration_method=fixed,-2,2"},
                {"pipeline=2", "fsdp=2,pipeline=2"}},
        // Two key heads, or one, on more ranks.
        Setting{"key_heads_bf16",
                {"model_name=lignum-tiny", "dtype=bfloat16"},
                {"tensor=4", "fsdp=2,tensor=4", "pipeline=2,tensor=4"}},
        Setting{"key_heads_fp8",
                {"model_name=lignum-tiny", "dtype=bfloat16", "use_qwix_quantization=true",
                 "quantization=fp8_full"},
                {"tensor=4", "context=2,tensor=4"}},
        // Whose logits are held whole.
        // Gradients of biases are rounded to bf16, a part a rank as those of weights.
        Setting{"biases_bf16",
                {golden("llama_tied_linear"), "dtype=bfloat16", "gradient_accumulation_steps=2"},
                {"data=2", "fsdp=2", "pipeline=2", "pipeline=2,fsdp=2"}},
        Setting{"gemma2", {golden("gemma2")}, {"tensor=2", "fsdp=2,tensor=2"}},
        Setting{"gemma3", {golden("gemma3")}, {"fsdp=2", "fsdp_transpose=2", "tensor=4"}},
        // A stage has a whole pattern: five layers with a window and one without.
        Setting{"gemma3_stages",
                {"model_name=gemma3-4b", "override_model_config=true", "base_num_decoder_layers=12",
                 "base_emb_dim=32", "base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=16",
                 "base_mlp_dim=48", "vocab_size=256"},
                {"pipeline=2"}},
        Setting{"qwen3",
                {golden("qwen3")},
                {"fsdp=2,tensor=2", "context=2", "pipeline=2", "pipeline=2,context=2"}},
        Setting{"context_f32",
                {"model_name=lignum-tiny", "gradient_accumulation_steps=2"},
                {"context=2", "context=4", "fsdp=2,context=2", "fsdp=2,context=2,tensor=2"}},
        Setting{"context_consecutive",
                {"model_name=lignum-tiny", "context_parallel_load_balance=false"},
                {"context=4", "context=2,tensor=2"}},
        Setting{"context_ring",
                {"model_name=lignum-tiny", "context_parallel_strategy=ring"},
                {"context=2", "context=4", "fsdp=2,context=2,tensor=2"}},
        Setting{"context_ring_consecutive_bf16",
                {"model_name=lignum-tiny", "dtype=bfloat16", "context_parallel_strategy=ring",
                 "context_parallel_load_balance=false"},
                {"context=4"}},
        Setting{
            "context_bf16", {"model_name=lignum-tiny", "dtype=bfloat16"}, {"context=2", "fsdp=2,context=2"}},
        Setting{"context_fp8",
                {"model_name=lignum-tiny", "dtype=bfloat16", "use_qwix_quantization=true",
                 "quantization=fp8_full"},
                {"context=2"}},
        Setting{"context_gemma3", {golden("gemma3")}, {"context=2"}},
        Setting{"context_gemma3_ring",
                {golden("gemma3"), "context_parallel_strategy=ring", "context_parallel_load_balance=false"},
                {"context=4"}},
        Setting{"gpt2", {golden("gpt2-tiny")}, {"tensor=2"}}),
    [](const auto& setting) { return setting.param.name; });

// Axis by axis, refused with the numbers.
TEST(Mesh, RefusesWhatItCannotCut) {
  const auto refused = [&](const char* mesh, const std::vector<std::string>& words = {}) {
    std::vector<std::string> all = {"model_name=lignum-tiny", "dataset_type=synthetic",
                                    "per_device_batch_size=12", "max_target_length=16"};
    all.insert(all.end(), words.begin(), words.end());
    const auto config = config::Config::load({}, all);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return train::verify_meshes(*config, {.steps = 1, .perturbed = 1, .meshes = {mesh}, .log = {}})
        .status()
        .message();
  };
  EXPECT_NE(
      refused("tensor=2", {"override_model_config=true", "base_num_query_heads=6", "base_num_kv_heads=3"})
          .find("ici_tensor_parallelism=2: 3 key heads are neither a multiple of that"),
      std::string::npos);
  EXPECT_NE(refused("tensor=8").find("ici_tensor_parallelism=8: does not divide 4 attention heads"),
            std::string::npos);
  EXPECT_NE(
      refused("data=8").find("per_device_batch_size=12: the rows of one rank, which 8 groups of ranks share"),
      std::string::npos);
  EXPECT_NE(
      refused("pipeline=3").find("ici_pipeline_parallelism=3: 4 layers cannot be cut into 3 equal stages"),
      std::string::npos);
  EXPECT_NE(refused("context=3")
                .find("ici_context_parallelism=3: max_target_length=16 tokens of a row are "
                      "not 6 pieces, two a rank"),
            std::string::npos)
      << refused("context=3");
  EXPECT_NE(refused("context=2,tensor=3").find("divisor"), std::string::npos);
}

// The tokens that each rank is given: of 4 pieces of a row of 16 from either end, a half of them where a
// tensor axis cuts what context has left.
TEST(Mesh, TokensLieInPieces) {
  passes::Mesh mesh{{{"fsdp", 2}, {"context", 2}, {"tensor", 2}}, true};
  const auto tokens = [&](const std::vector<std::string>& axes, int64_t rank) {
    std::vector<int64_t> all;
    for (const passes::Range& r : passes::token_ranges(16, axes, mesh, rank))
      for (int64_t t = r.begin; t < r.end; ++t) all.push_back(t);
    return all;
  };
  using Tokens = std::vector<int64_t>;
  EXPECT_EQ(tokens({"context"}, 4), (Tokens{0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_EQ(tokens({"context"}, 3), (Tokens{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(tokens({"context", "tensor"}, 1), (Tokens{12, 13, 14, 15}));
  EXPECT_EQ(tokens({"tensor"}, 0), (Tokens{0, 1, 2, 3, 4, 5, 6, 7}));
  mesh.balanced = false;
  EXPECT_EQ(tokens({"context"}, 2), (Tokens{8, 9, 10, 11, 12, 13, 14, 15}));
}

// Devices are counted slice by slice: of each axis the part over slices is the slower.
TEST(Mesh, DevicesAreCountedSliceBySlice) {
  const passes::Mesh mesh{{{"data", 2}, {"fsdp", 4, 2}, {"tensor", 2}}};
  EXPECT_EQ(mesh.slices(), 2);
  std::vector<int64_t> devices;
  for (int64_t r = 0; r < mesh.ranks(); ++r) devices.push_back(mesh.device(r));
  EXPECT_EQ(devices, (std::vector<int64_t>{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(mesh.inside("tensor"), 1);
  EXPECT_EQ(mesh.inside("fsdp"), 2);
  EXPECT_EQ(mesh.inside("data"), 4);
  // Groups are of ranks: a gather over fsdp is one of four, in two slices.
  EXPECT_EQ(mesh.groups("fsdp")[1], (std::vector<int64_t>{1, 3, 5, 7}));
  // An axis that is parted in two for its key heads stands where it stood.
  passes::Mesh heads{{{"fsdp", 2}, {"tensor", 8, 4}}};
  const passes::Mesh whole = heads;
  heads.share_key_heads(2);
  EXPECT_EQ(heads.slices(), 4);
  for (int64_t r = 0; r < whole.ranks(); ++r) EXPECT_EQ(heads.device(r), whole.device(r));
  const passes::Mesh outermost{{{"pipeline", 2, 2}, {"fsdp", 4}}};
  for (int64_t r = 0; r < outermost.ranks(); ++r) EXPECT_EQ(outermost.device(r), r);
}

// Which ranks share a slice changes nothing of a run.
TEST(Mesh, AxesOverSlicesAreTheSameRun) {
  const RunFolder f;
  const auto losses = [&](const char* name, std::vector<std::string> words) {
    words.insert(words.end(), {"steps=3", "per_device_batch_size=1", "ici_fsdp_parallelism=1"});
    const auto run = f.train(name, words);
    EXPECT_TRUE(run.ok()) << run.status().message();
    std::vector<double> out;
    for (const auto& record : f.steps(name)) out.push_back(record["loss"].get<double>());
    return out;
  };
  const auto one = losses("ici", {"ici_data_parallelism=2", "ici_tensor_parallelism=2"});
  ASSERT_EQ(one.size(), 3U);
  EXPECT_EQ(losses("dcn", {"ici_data_parallelism=2", "dcn_tensor_parallelism=2"}), one);
  EXPECT_EQ(losses("both", {"dcn_data_parallelism=2", "dcn_tensor_parallelism=2"}), one);
}

// Packed documents on context meshes: cut anywhere, by keys that are gathered and keys that go round.
TEST(Mesh, PackedDocumentsAreTheSameOnContextMeshes) {
  const RunFolder f;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string("abcdefghijklmn").substr(0, 2 + i * 5 % 12));
  ASSERT_TRUE(write_file_atomic(f / "lines.jsonl", lines).ok());
  for (const char* strategy : {"all_gather", "ring"}) {
    SCOPED_TRACE(strategy);
    const auto config = config::Config::parse(
        f.yaml(), "tiny.yml",
        {"train_files=" + (f / "lines.jsonl"), "packing=true", "max_target_length=32",
         "per_device_batch_size=4", "steps=3", "context_parallel_strategy=" + std::string(strategy)});
    ASSERT_OK(config);
    const auto report = train::verify_meshes(
        *config, {.steps = 2, .perturbed = 2, .meshes = {"context=4", "fsdp=2,context=2"}, .log = {}});
    ASSERT_OK(report);
    for (const train::MeshVerdict& v : report->meshes)
      EXPECT_TRUE(v.ok(report->noise))
          << v.mesh << " parts by " << v.divergence << ", noise " << report->noise << "; " << v.gradients
          << " of the bound of " << v.worst;
  }
}

// What FSDP over 4 ranks saves goes on over data and tensor, and on one rank: the next losses are the same
// numbers.
TEST(Mesh, ACheckpointGoesOnOnAnother) {
  const RunFolder f;
  const std::vector<std::string> common = {"learning_rate_schedule_steps=8"};
  const auto run = [&](const char* name, std::vector<std::string> words) {
    words.insert(words.end(), common.begin(), common.end());
    return f.train(name, words);
  };
  const std::vector<std::string> four = {"ici_fsdp_parallelism=4", "per_device_batch_size=1"};
  const std::vector<std::vector<std::string>> meshes = {
      four,
      {"ici_fsdp_parallelism=1", "ici_data_parallelism=2", "ici_tensor_parallelism=2",
       "per_device_batch_size=1"},
      {"ici_fsdp_parallelism=1", "ici_fsdp_transpose_parallelism=4", "per_device_batch_size=1"},
      {"ici_fsdp_parallelism=2", "ici_context_parallelism=2", "per_device_batch_size=1"},
      {"ici_fsdp_parallelism=1", "ici_context_parallelism=4", "per_device_batch_size=1",
       "context_parallel_strategy=ring"},
      {"ici_fsdp_parallelism=2", "ici_pipeline_parallelism=2", "per_device_batch_size=1"},
      {"ici_fsdp_parallelism=1", "per_device_batch_size=4"}};
  std::vector<double> losses;
  for (size_t i = 0; i < meshes.size(); ++i) {
    const std::string name = "mesh" + std::to_string(i);
    std::vector<std::string> first = four, second = meshes[i];
    first.emplace_back("steps=2");
    second.emplace_back("steps=4");
    ASSERT_OK(run(name.c_str(), first));
    ASSERT_OK(run(name.c_str(), second));
    const auto records = f.steps(name);
    ASSERT_EQ(records.size(), 4U);
    losses.push_back(records[3]["loss"].get<double>());
    EXPECT_NEAR(losses.back(), losses.front(), 1e-6 * losses.front()) << name;
  }
}

// Four parameters whose gradients, summed over four rows of two tokens, are 2, 4, 6 and 8 in one element and
// 0 elsewhere: cut over one axis or several, and whole on each rank.
constexpr std::string_view kFourGradients = R"(graph four stage=global {
  %0 = param() {name="w0"} : f32[4,4]<mlp,embed>
  %1 = param() {name="w1"} : f32[4,4]<q_heads,>
  %2 = param() {name="w2"} : f32[4]<embed>
  %3 = param() {name="w3"} : f32[4,4]<,>
  %4 = param() {name="dy0"} : f32[4,2,4]<activation_batch,activation_length,mlp>
  %5 = param() {name="x0"} : f32[4,2,4]<activation_batch,activation_length,>
  %6 = param() {name="dy1"} : f32[4,2,4]<activation_batch,activation_length,q_heads>
  %7 = param() {name="x1"} : f32[4,2,4]<activation_batch,activation_length,>
  %8 = param() {name="x2"} : f32[4,2,4]<activation_batch,activation_length,>
  %9 = param() {name="dy3"} : f32[4,2,4]<activation_batch,activation_length,>
  %10 = param() {name="x3"} : f32[4,2,4]<activation_batch,activation_length,>
  %11 = constant() {dims=[], dtype="f32", value=1.0} : f32[] @ "loss" forward
  %12 = matmul(%4, %5) {batch_a=[], batch_b=[], contract_a=[0,1], contract_b=[0,1]} : f32[4,4]<mlp,embed> @ "w0" wgrad
  %13 = matmul(%6, %7) {batch_a=[], batch_b=[], contract_a=[0,1], contract_b=[0,1]} : f32[4,4]<q_heads,> @ "w1" wgrad
  %14 = reduce(%8) {dims=[0,1], fn="sum"} : f32[4]<embed> @ "w2" wgrad
  %15 = matmul(%9, %10) {batch_a=[], batch_b=[], contract_a=[0,1], contract_b=[0,1]} : f32[4,4]<,> @ "w3" wgrad
  return %11 as "loss_sum", %11 as "tokens", %12 as "grad:w0", %13 as "grad:w1", %14 as "grad:w2", %15 as "grad:w3"
}
)";

struct Clipped {
  float norm = 0;                        // as it is logged
  std::vector<std::vector<float>> left;  // of the parameters, from zero, by one step of SGD at rate 1
};

Result<Clipped> clip_on(const passes::Mesh& mesh) {
  LIGNUM_ASSIGN_OR_RETURN(const ir::Graph gradients, ir::parse(kFourGradients));
  passes::Optimizer optimizer;
  optimizer.kind = passes::Optimizer::Kind::sgd;
  const ir::Graph global = passes::add_update(gradients, optimizer);
  const int64_t stages = mesh.size("pipeline");
  LIGNUM_ASSIGN_OR_RETURN(const passes::Partitioned local,
                          passes::partition(global, mesh, {.stages = stages, .microbatches = stages}));
  const passes::Scheduled step =
      passes::schedule(std::make_shared<const ir::Graph>(passes::fuse(local.graph)), {});
  const passes::MemoryPlan memory = passes::plan_memory(step, {});
  Clipped out;
  out.left = {std::vector<float>(16), std::vector<float>(16), std::vector<float>(4), std::vector<float>(16)};
  const auto value = [](std::string_view name, int64_t i) -> float {
    const int64_t column = i % 4;
    if (name == "learning_rate") return 1;
    if (name.starts_with("dy")) return column == 3 ? 0.125F : 0;
    if (name == "x2") return column == 2 ? 6.0F / 8 : 0;
    if (name.starts_with("x")) return column == name[1] - '0' ? static_cast<float>(2 * (column + 1)) : 0;
    return 0;
  };
  LIGNUM_RETURN_IF_ERROR(
      comm::ThreadWorld(static_cast<int>(mesh.ranks())).run([&](comm::Transport& t) -> Status {
        LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(1));
        exec::ExecutorOptions e;
        e.step = &step;
        e.plan = &memory;
        e.mesh = &mesh;
        e.transport = t.size() > 1 ? &t : nullptr;
        e.parallel = pool.get();
        LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(e));
        for (size_t p = 0; p < local.params.size(); ++p) {
          const ir::Type& type = global.type(global.param_value(static_cast<int64_t>(p)));
          if (type.dtype != DType::f32) continue;
          auto* to = reinterpret_cast<float*>(executor->param(static_cast<int64_t>(p)));
          train::for_each_run(type.dims, local.params[p], mesh, t.rank(),
                              [&](int64_t at, int64_t whole, int64_t count) {
                                for (int64_t k = 0; k < count; ++k)
                                  to[at + k] = value(global.param_name(static_cast<int64_t>(p)), whole + k);
                              });
        }
        LIGNUM_RETURN_IF_ERROR(executor->step());
        if (t.rank() == 0) std::memcpy(&out.norm, executor->output("grad_norm"), sizeof(out.norm));
        for (size_t p = 0; p < out.left.size(); ++p) {
          if (!train::writes_shard(local.params[p], mesh, t.rank())) continue;
          const auto* from = reinterpret_cast<const float*>(executor->param(static_cast<int64_t>(p)));
          train::for_each_run(global.type(global.param_value(static_cast<int64_t>(p))).dims, local.params[p],
                              mesh, t.rank(), [&](int64_t at, int64_t whole, int64_t count) {
                                std::copy_n(from + at, count, out.left[p].begin() + whole);
                              });
        }
        return {};
      }));
  return out;
}

// The norm of all of them is the root of 120, wherever each lies: a mean of the ranks' norms would be less,
// and one that counts each rank's copy more. It is logged as it was before clipping, and clips all alike.
TEST(Mesh, ClipsByTheNormOfAllGradients) {
  const double norm = std::sqrt(120.0);
  const std::vector<std::vector<passes::MeshAxis>> meshes = {{},
                                                             {{"data", 2}},
                                                             {{"fsdp", 2}},
                                                             {{"fsdp", 4}},
                                                             {{"fsdp_transpose", 2}},
                                                             {{"pipeline", 2}},
                                                             {{"context", 2}},
                                                             {{"tensor", 2}},
                                                             {{"tensor", 4}},
                                                             {{"data", 2}, {"tensor", 2}},
                                                             {{"fsdp", 2}, {"context", 2}, {"tensor", 2}}};
  for (const auto& axes : meshes) {
    std::string name = "mesh";
    for (const passes::MeshAxis& a : axes) name += fmt::format(" {}={}", a.name, a.size);
    SCOPED_TRACE(name);
    const Result<Clipped> got = clip_on({axes});
    ASSERT_OK(got);
    EXPECT_NEAR(got->norm, norm, 0x1p-23 * norm);
    for (size_t p = 0; p < got->left.size(); ++p) {
      for (size_t i = 0; i < got->left[p].size(); ++i) {
        const bool moved = i == (p == 2 ? p : 12 + p);
        const double want = moved ? -2 * (static_cast<double>(p) + 1) / norm : 0;
        EXPECT_NEAR(got->left[p][i], want, 0x1p-22 * std::abs(want)) << p << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lignum::testing
