// Training on the devices of XLA's CPU plug-in: on meshes of up to eight, the same run as on one rank here.
// Twelve configurations, in which each two values of what a run may vary meet.
#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "base/rng.h"
#include "base/test_folder.h"
#include "pjrt/plugin.h"
#include "train/verify_mesh.h"

namespace lignum::testing {
namespace {

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

enum class Family : uint8_t { llama, gemma3, qwen3 };
enum class Format : uint8_t { f32, bf16, fp8_absmax, fp8_fixed };

struct Configuration {
  Family family;
  Format format;
  const char* mesh;  // with what goes with it, as verify-mesh takes it
  const char* remat;
  bool micro_steps;  // two
  bool packed;
};
constexpr Configuration kConfigurations[] = {
    {Family::llama, Format::f32, "data=2,pipeline=2,context=2,context_parallel_strategy=ring", "none", true,
     true},
    {Family::llama, Format::bf16, "pipeline=2,fsdp=2,pipeline_schedule=gpipe", "full", true, false},
    {Family::llama, Format::fp8_absmax, "fsdp=2,tensor=2", "minimal", false, true},
    {Family::llama, Format::fp8_fixed, "data=2,pipeline=2,fsdp_transpose=2", "minimal", true, false},
    {Family::gemma3, Format::f32, "data=2,fsdp=2,fsdp_transpose=2", "full", false, true},
    {Family::gemma3, Format::bf16, "data=2,fsdp_transpose=2,tensor=2", "minimal", false, false},
    {Family::gemma3, Format::fp8_absmax, "pipeline=2,fsdp_transpose=2,tensor=2", "none", false, false},
    {Family::gemma3, Format::fp8_fixed, "fsdp=2,context=2,tensor=2", "full", true, false},
    {Family::qwen3, Format::f32,
     "fsdp_transpose=2,context=2,tensor=2,context_parallel_strategy=ring,context_parallel_load_balance=false",
     "minimal", true, false},
    {Family::qwen3, Format::bf16, "pipeline=2,context=2", "none", true, true},
    {Family::qwen3, Format::fp8_absmax, "data=2,context=2", "full", true, false},
    {Family::qwen3, Format::fp8_fixed, "fsdp=2,context=2,context_parallel_strategy=ring", "none", false,
     true},
};

bool has_axis(const Configuration& c, std::string_view axis) {
  return ("," + std::string(c.mesh)).find(fmt::format(",{}=2", axis)) != std::string::npos;
}

void PrintTo(const Configuration& c, std::ostream* out) { *out << c.mesh; }

// What a configuration has, as factor and value.
std::set<std::pair<std::string, int>> facts_of(const Configuration& c) {
  std::set<std::pair<std::string, int>> facts = {{"family", static_cast<int>(c.family)},
                                                 {"format", static_cast<int>(c.format)},
                                                 {std::string("remat ") + c.remat, 0},
                                                 {"micro-steps", c.micro_steps},
                                                 {"packed", c.packed}};
  for (const std::string_view axis : config::kMeshAxes)
    if (has_axis(c, axis)) facts.emplace(std::string("axis ") + std::string(axis), 0);
  return facts;
}

TEST(DeviceMeshes, EachTwoValuesMeet) {
  using Fact = std::pair<std::string, int>;
  std::set<Fact> all;
  std::set<std::pair<Fact, Fact>> met;
  for (const Configuration& c : kConfigurations)
    for (const Fact& a : facts_of(c)) {
      all.insert(a);
      for (const Fact& b : facts_of(c)) met.emplace(a, b);
    }
  EXPECT_EQ(all.size(), 3U + 4 + 3 + 2 + 2 + config::kMeshAxes.size());
  const auto excluded = [](const Fact& a, const Fact& b) {  // two values of one factor
    return a.first == b.first || (a.first.starts_with("remat") && b.first.starts_with("remat"));
  };
  for (const Fact& a : all)
    for (const Fact& b : all)
      EXPECT_TRUE(excluded(a, b) || met.contains({a, b}))
          << a.first << a.second << " " << b.first << b.second;
}

// Documents of 3 to 14 tokens, as uint16 ids with 0 behind each.
std::string documents() {
  const Random random(3, "documents");
  std::string bytes;
  for (uint64_t i = 0, at = 0; i < 60; ++i) {
    const uint64_t length = 3 + random.below(at++, 12);
    for (uint64_t t = 0; t < length; ++t) bytes += {static_cast<char>(1 + random.below(at++, 210)), '\0'};
    bytes += {'\0', '\0'};
  }
  return bytes;
}

std::vector<std::string> words_of(const Configuration& c, const std::string& folder) {
  const std::string golden = std::string("model_path=") + LIGNUM_SOURCE_DIR "/tests/golden/";
  std::vector<std::string> words = {
      "target=pjrt",
      // XLA's compiler without LLVM's effort, which would be most of the time.
      "compile_xla_flags=--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
      "dataset_type=text", "train_files=" + folder + "/ids.bin", "document_separator=0",
      "per_device_batch_size=8", "max_target_length=16", "learning_rate=1e-3", "warmup_steps_fraction=0",
      "steps=2", "threads=1", std::string("remat_policy=") + c.remat, fmt::format("packing={}", c.packed),
      fmt::format("gradient_accumulation_steps={}", c.micro_steps ? 2 : 1),
      c.format == Format::f32 ? "dtype=float32" : "dtype=bfloat16"};
  const auto add = [&](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  if (c.format == Format::fp8_absmax || c.format == Format::fp8_fixed)
    add({"use_qwix_quantization=true", "quantization=fp8_full"});
  if (c.format == Format::fp8_fixed)
    add({"weight_quantization_calibration_method=fixed,-1,1",
         "act_quantization_calibration_method=fixed,-16,16",
         "bwd_quantization_calibration_method=fixed,-2,2"});
  const auto small = [&](const char* preset, int layers) {
    add({std::string("model_name=") + preset, "override_model_config=true",
         fmt::format("base_num_decoder_layers={}", layers), "base_emb_dim=32", "base_num_query_heads=4",
         "base_num_kv_heads=2", "head_dim=8", "base_mlp_dim=48", "vocab_size=211"});
  };
  if (c.family == Family::llama) small("llama2-7b", 4);
  if (c.family == Family::qwen3) add({golden + "qwen3"});
  // A stage has a whole pattern, of which the golden model has one.
  if (c.family == Family::gemma3) has_axis(c, "pipeline") ? small("gemma3-4b", 12) : add({golden + "gemma3"});
  return words;
}

class DeviceMeshes : public ::testing::TestWithParam<Configuration> {};

TEST_P(DeviceMeshes, HaveTheGradientsOfOneRank) {
  if (const auto plugin = pjrt::find_plugin(pjrt::PluginKind::cpu); !plugin.ok())
    GTEST_SKIP() << "CPU plug-in: " << plugin.status().message();
  const TestFolder folder;
  ASSERT_TRUE(write_file_atomic(folder / "ids.bin", documents()).ok());
  const auto config = config::Config::load({}, words_of(GetParam(), folder.path()));
  ASSERT_OK(config);
  const auto report =
      train::verify_meshes(*config, {.steps = 0, .perturbed = 3, .meshes = {GetParam().mesh}, .log = {}});
  ASSERT_OK(report);
  ASSERT_EQ(report->meshes.size(), 1U);
  const train::MeshVerdict& v = report->meshes[0];
  EXPECT_TRUE(v.ok(report->noise)) << "parts by " << v.divergence << " at step " << v.step << ", noise "
                                   << report->noise << "; " << v.gradients << " of the bound of " << v.worst;
  EXPECT_GT(v.gradients, 0);  // XLA's sums have another order
  fmt::print("{:.2f} of the noise, {:.2f} of the bound of {}\n", v.divergence / report->noise, v.gradients,
             v.worst);
}

std::string name_of(const ::testing::TestParamInfo<Configuration>& info) {
  constexpr const char* kFamilies[] = {"Llama", "Gemma3", "Qwen3"};
  constexpr const char* kFormats[] = {"F32", "Bf16", "Fp8Absmax", "Fp8Fixed"};
  std::string name = std::string(kFamilies[static_cast<size_t>(info.param.family)]) +
                     kFormats[static_cast<size_t>(info.param.format)];
  for (const std::string_view axis : config::kMeshAxes)
    if (has_axis(info.param, axis)) name += "_" + std::string(axis);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Twelve, DeviceMeshes, ::testing::ValuesIn(kConfigurations), name_of);

}  // namespace
}  // namespace lignum::testing
