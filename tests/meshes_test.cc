// Training on meshes: the same run as on one rank, and a checkpoint of one mesh on another.
#include <gtest/gtest.h>

#include "passes/partition.h"
#include "runs.h"
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
        // Two key heads, or one, on more ranks.
        Setting{"key_heads_bf16",
                {"model_name=lignum-tiny", "dtype=bfloat16"},
                {"tensor=4", "fsdp=2,tensor=4", "pipeline=2,tensor=4"}},
        Setting{"key_heads_fp8",
                {"model_name=lignum-tiny", "dtype=bfloat16", "use_qwix_quantization=true",
                 "quantization=fp8_full"},
                {"tensor=4", "context=2,tensor=4"}},
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
  EXPECT_NE(refused("data=8").find("per_device_batch_size=1.5"), std::string::npos);
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

}  // namespace
}  // namespace lignum::testing
