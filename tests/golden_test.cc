// The tiny models of tests/golden against what PyTorch computed for them, through the same code as `lignum
// verify-model`.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/test_folder.h"
#include "models/files.h"
#include "tracer.h"
#include "train/verify_model.h"

namespace lignum::train {
namespace {

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, AgreesWithPyTorch) {
  const std::string folder = std::string(LIGNUM_SOURCE_DIR "/tests/golden/") + GetParam();
  for (const kernels::Isa isa : kernels::available_isas()) {
    const Result<std::vector<Comparison>> result = verify_model(folder, {.threads = 2, .choice = {isa}});
    ASSERT_TRUE(result.ok()) << result.status().message();
    std::map<std::string, int> seen;
    for (const Comparison& c : *result) {
      ++seen[c.kind];
      EXPECT_LE(c.error, c.bound) << c.kind << " " << c.name << " on " << kernels::isa_name(isa);
      EXPECT_TRUE(c.ok()) << c.kind << " " << c.name;  // a NaN is neither less nor more
    }
    EXPECT_EQ(seen["logits"], 1);
    EXPECT_EQ(seen["loss"], 1);
    EXPECT_GE(seen["gradient"], 20);
    EXPECT_EQ(seen["adamw loss"], 10);
    EXPECT_EQ(seen["adamw grad_norm"], 10);
  }
}

// One step of the folder's model in bf16 with these kernels: its params before, its outputs after.
Result<tracer::RankRun> run_bf16(const tracer::Step& step, const std::string& folder,
                                 kernels::Choice choice) {
  const ir::Graph& local = *step.program.local;
  LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(2));
  exec::ExecutorOptions o;
  o.step = &step.program.scheduled;
  o.plan = &step.program.memory;
  o.parallel = pool.get();
  o.choice = choice;
  LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(o));
  LIGNUM_RETURN_IF_ERROR(
      load_parameters(step.options.model, files, {step.program, step.options.mesh, 0}, *executor));
  const tracer::Filler filler{step, 3};
  tracer::RankRun run;
  for (int64_t p = 0; p < static_cast<int64_t>(local.params().size()); ++p) {
    const ir::Type& type = local.type(local.param_value(p));
    const std::string& name = local.param_name(p);
    if (name == "input_ids" || name == "labels" || name == "positions") {
      for (int64_t i = 0; i < type.elements(); ++i)
        store_from_double(type.dtype, executor->param(p), i, filler.value(name, i));
    }
    run.params.push_back(tracer::copy_of(type, executor->param(p)));
  }
  LIGNUM_RETURN_IF_ERROR(executor->step());
  for (size_t i = 0; i < local.outputs().size(); ++i)
    run.outputs.push_back(
        tracer::copy_of(local.type(local.outputs()[i].value), executor->output(static_cast<int64_t>(i))));
  return run;
}

// Logits, loss and gradients in bf16: with each way of its dots at most twice as far from the exact values as
// the graph is with every bf16 edge rounded and nothing else, + 1e-4 of the norm.
TEST_P(Golden, Bf16IsWithinTwiceItsRoundingsInEveryWay) {
  const std::string folder = std::string(LIGNUM_SOURCE_DIR "/tests/golden/") + GetParam();
  plan::ProgramOptions options;
  const auto model = config::model_from_folder(folder);
  ASSERT_TRUE(model.ok()) << model.status().message();
  options.model = *model;
  options.shape = {2, 37, DType::bf16};
  options.remat.save_all = true;
  options.threads = 2;
  options.outputs = plan::Outputs::grads;
  options.logits = true;
  auto step = tracer::make_step(options);
  ASSERT_TRUE(step.ok()) << step.status().message();
  std::optional<std::map<std::string, tracer::Whole>> exact, rounded;
  for (const kernels::Bf16Dot dot : kernels::available_bf16_dots(kernels::best_isa())) {
    SCOPED_TRACE(kernels::bf16_dot_name(dot));
    const auto run = run_bf16(*step, folder, {kernels::best_isa(), dot});
    ASSERT_TRUE(run.ok()) << run.status().message();
    if (!exact) {
      exact = tracer::interpreted(*step, run->params, {});
      rounded = tracer::interpreted(*step, run->params, {.round_edges = true, .round_f32 = false});
    }
    const Status status = tracer::compare_rounded(*exact, *rounded, tracer::assemble(*step, {run->outputs}));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Hugging Face's tensors into the shards of three ranks, which divide few of their dims, and back: every bit.
TEST_P(Golden, ParametersComeBackBitForBit) {
  const std::string folder = std::string(LIGNUM_SOURCE_DIR "/tests/golden/") + GetParam();
  const auto files = ModelFiles::open(folder);
  ASSERT_TRUE(files.ok()) << files.status().message();
  plan::ProgramOptions options;
  options.model = config::model_from_folder(folder).value();
  options.mesh.axes = {{"data", 1}, {"fsdp", 3}};
  options.shape = {3, 8, DType::f32};
  auto step = tracer::make_step(options);
  ASSERT_TRUE(step.ok()) << step.status().message();
  const lignum::testing::TestFolder out;
  auto layout = SafetensorsLayout::plan(models::file_tensors(options.model));
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  auto writer = SafetensorsWriter::create(*std::move(layout), out / "model.safetensors");
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  Serial serial;
  for (int64_t rank = 0; rank < 3; ++rank) {
    exec::ExecutorOptions o;
    o.step = &step->program.scheduled;
    o.plan = &step->program.memory;
    o.parallel = &serial;
    o.choice = {kernels::best_isa()};
    const auto executor = exec::Executor::create(o);
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    const RankShards shards{step->program, step->options.mesh, rank};
    ASSERT_TRUE(load_parameters(options.model, *files, shards, **executor).ok());
    const Status written = write_parameters(options.model, shards, *writer, "", DType::f32,
                                            [&](int64_t i) { return exec::ParamView(**executor, i); });
    ASSERT_TRUE(written.ok()) << written.message();
  }
  ASSERT_TRUE(writer->finish().ok());
  const auto back = SafetensorsReader::open(out / "model.safetensors");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_EQ(back->tensors().size(), files->tensors().size());
  for (const TensorInfo* t : files->tensors()) {
    const TensorInfo* got = back->find(t->name);
    ASSERT_NE(got, nullptr) << t->name;
    EXPECT_EQ(got->shape, t->shape);
    EXPECT_TRUE(std::ranges::equal(back->data(*got), *files->data(t->name))) << t->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         ::testing::Values("llama_rope_llama3", "llama_tied_linear", "llama_yarn", "qwen3",
                                           "mistral_window", "gemma2", "gemma3", "gpt2-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Golden, ErrorsNameWhatIsMissing) {
  const auto absent = verify_model(LIGNUM_SOURCE_DIR "/tests/golden/absent", {});
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), Code::user_error);
  EXPECT_NE(absent.status().message().find("absent"), std::string::npos);
}

}  // namespace
}  // namespace lignum::train
