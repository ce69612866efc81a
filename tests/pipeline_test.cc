// Pipelines: the same step as data parallelism, natively and through XLA, and compiled for TPU7x.
#include <gtest/gtest.h>

#include <optional>

#include "pjrt/reader.h"
#include "quick_compile.h"
#include "stablehlo_loops.h"
#include "tracer_plugin.h"

namespace lignum::pipelines {
namespace {

using namespace tracer;  // NOLINT: the tests are one with it

#define ASSERT_OK(status)                           \
  do {                                              \
    const Status& status_ = (status);               \
    ASSERT_TRUE(status_.ok()) << status_.message(); \
  } while (false)

struct Shape {
  int64_t data = 1, stages = 1, fsdp = 1, tensor = 1;
  int64_t microbatches = 0, repeats = 1;  // 0: as many as stages
};

plan::ProgramOptions with(const Shape& s, plan::Outputs outputs, DType dtype = DType::f32) {
  plan::ProgramOptions o = tiny_step({{{"data", s.data},
                                       {"pipeline", s.stages},
                                       {"fsdp", s.fsdp},
                                       {"fsdp_transpose", 1},
                                       {"tensor", s.tensor}}},
                                     outputs);
  o.pipeline = {s.stages, s.microbatches == 0 ? s.stages : s.microbatches, s.repeats};
  o.shape.dtype = dtype;
  o.optimizer.clip = 0;  // by a norm whose parts are added up otherwise
  return o;
}

Result<std::map<std::string, Whole>> native(const plan::ProgramOptions& options, int64_t steps = 1) {
  LIGNUM_ASSIGN_OR_RETURN(const Step step, make_step(options));
  LIGNUM_ASSIGN_OR_RETURN(const NativeRun run, run_native(step, {.steps = steps}));
  return assemble(step, outputs_of(run));
}

// Every tensor's bits, but the gradient's norm: its parts are added up otherwise.
void expect_same_bits(const std::map<std::string, Whole>& a, const std::map<std::string, Whole>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, whole] : a) {
    EXPECT_TRUE(whole.agreed) << name;
    if (name == "grad_norm") continue;
    EXPECT_EQ(whole.data, b.at(name).data) << name;
  }
}

TEST(Pipeline, HasTheBitsOfDataParallelism) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& s : {Shape{.stages = 2}, Shape{.stages = 2, .repeats = 2}, Shape{.stages = 4}}) {
      SCOPED_TRACE(fmt::format("{} stages, {} repeats, {}", s.stages, s.repeats, dtype_name(dtype)));
      const auto data = native(with({.data = s.stages}, plan::Outputs::state, dtype), 2);
      const auto stages = native(with(s, plan::Outputs::state, dtype), 2);
      ASSERT_OK(data.status());
      ASSERT_OK(stages.status());
      expect_same_bits(*stages, *data);
    }
  }
}

// More microbatches than stages, tied tables, and levers that promise the same bits.
TEST(Pipeline, IsTheRunOfOneRank) {
  plan::ProgramOptions one = with({}, plan::Outputs::grads);
  one.model.tie_embeddings = true;
  const auto want = native(one);
  ASSERT_OK(want.status());
  for (const Shape& s :
       {Shape{.stages = 2, .microbatches = 4}, Shape{.stages = 2, .microbatches = 4, .repeats = 2},
        Shape{.stages = 2, .fsdp = 2}, Shape{.stages = 2, .tensor = 2}}) {
    SCOPED_TRACE(fmt::format("{} microbatches, {} repeats, fsdp {}, tensor {}", s.microbatches, s.repeats,
                             s.fsdp, s.tensor));
    plan::ProgramOptions o = with(s, plan::Outputs::grads);
    o.model.tie_embeddings = true;
    const auto got = native(o);
    ASSERT_OK(got.status());
    ASSERT_OK(compare(*want, *got));
    for (const char* remat : {"none", "minimal"}) {
      o.remat = passes::remat_policy(remat).value();
      o.schedule.overlap = std::string_view(remat) == "none";
      const auto other = native(o);
      ASSERT_OK(other.status());
      expect_same_bits(*other, *got);
    }
  }
}

// Layers whose number the stages do not divide stand outside of them.
TEST(Pipeline, RunsTheRestOfThePatternOutside) {
  plan::ProgramOptions one = with({}, plan::Outputs::grads);
  one.model.layers = 5;
  one.model.window = 8;
  one.model.sliding = {true, false, true, false, true};
  plan::ProgramOptions two = one;
  two.mesh.axes[1].size = 2;
  two.pipeline = {2, 2, 1};
  const auto want = native(one), got = native(two);
  ASSERT_OK(want.status());
  ASSERT_OK(got.status());
  ASSERT_OK(compare(*want, *got));
}

// The inputs of a stage's layers are written into the stack of all ticks, and read out of it, one at a time:
// never those of a tick at once, which XLA would keep a second time.
TEST(Pipeline, TicksKeepNoStackOfTheirOwn) {
  plan::ProgramOptions o = with({.stages = 2}, plan::Outputs::grads);
  o.xla = true;
  const auto step = make_step(o);
  ASSERT_OK(step.status());
  const auto text = pjrt::print_stablehlo(*step->program.local, train::print_options(o.mesh));
  ASSERT_TRUE(text.ok()) << text.status().message();
  int64_t layers = 0, ticks = 0;  // rows moved out of 3 ticks of 2 layers: one, and two at once
  for (const std::string_view line : tracer::text::lines(*text)) {
    const auto has = [&](std::string_view part) { return line.find(part) != std::string_view::npos; };
    if (!has("stablehlo.dynamic_") || !has(" (tensor<3x2x")) continue;
    layers += has("tensor<1x1x") ? 1 : 0;
    ticks += has("tensor<1x2x") ? 1 : 0;
  }
  EXPECT_EQ(layers, 2);
  EXPECT_EQ(ticks, 0);
}

class OnXla : public OnCpuPlugin<4> {
 protected:
  static Status both(plan::ProgramOptions options) {
    options.xla = true;
    LIGNUM_ASSIGN_OR_RETURN(const Step step, make_step(std::move(options)));
    return on_both(step);
  }
};

TEST_F(OnXla, AgreesWithTheNativeStep) {
  for (const Shape& s : {Shape{.stages = 2, .microbatches = 4}, Shape{.stages = 2, .repeats = 2},
                         Shape{.stages = 2, .fsdp = 2}, Shape{.stages = 2, .tensor = 2}}) {
    SCOPED_TRACE(fmt::format("{} microbatches, {} repeats, fsdp {}, tensor {}", s.microbatches, s.repeats,
                             s.fsdp, s.tensor));
    ASSERT_OK(both(with(s, plan::Outputs::state)));
  }
}

// GPipe and circular, for eight devices.
TEST(PipelineForTpu, Compiles) {
  auto plugin = pjrt::Plugin::load(pjrt::PluginKind::tpu);
  if (!plugin.ok()) GTEST_SKIP() << "libtpu: " << plugin.status().message();
  const auto topology = pjrt::Topology::create(*plugin, "tpu7x:2x2x1");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  for (const int64_t repeats : {1, 2}) {
    plan::ProgramOptions o =
        with({.stages = 2, .fsdp = 4, .repeats = repeats}, plan::Outputs::state, DType::bf16);
    o.shape.batch = 8;
    o.xla = true;
    const auto step = make_step(o);
    ASSERT_OK(step.status());
    const auto compiled = pjrt::compile_step(*topology, *step->program.local, train::print_options(o.mesh));
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    EXPECT_NE(compiled->text.find("stablehlo.collective_permute"), std::string::npos);
  }
}

}  // namespace
}  // namespace lignum::pipelines
