// The tracer: one small Llama step through every reader. Priced, run natively, run by XLA on virtual CPU
// devices, compiled for TPU7x; and faults planted into it, which the same checks must see.
#include "tracer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "faults.h"
#include "plan/price.h"
#include "quick_compile.h"
#include "stablehlo_loops.h"
#include "tracer_plugin.h"

namespace lignum::tracer {
namespace {

constexpr int64_t kLayers = 4;
constexpr int64_t kLayerWeights = 7;  // q, k, v, o, gate, up, down: what FSDP shards of a layer

#define ASSERT_OK(expr)                             \
  do {                                              \
    const Status status_ = (expr);                  \
    ASSERT_TRUE(status_.ok()) << status_.message(); \
  } while (false)
#define ASSERT_VALUE(lhs, expr)                              \
  auto lhs##_or = (expr);                                    \
  ASSERT_TRUE(lhs##_or.ok()) << lhs##_or.status().message(); \
  auto& lhs = *lhs##_or
#define EXPECT_FAULT(expr, part)                                                     \
  do {                                                                               \
    const Status status_ = (expr);                                                   \
    EXPECT_FALSE(status_.ok()) << "the fault was not seen";                          \
    EXPECT_NE(status_.message().find(part), std::string::npos) << status_.message(); \
  } while (false)

const passes::Mesh kOne{{{"data", 1}, {"fsdp", 1}}};
const passes::Mesh kFsdp2{{{"data", 1}, {"fsdp", 2}}};
const passes::Mesh kData2{{{"data", 2}, {"fsdp", 1}}};

// --- natively and through XLA
// -------------------------------------------------------------------------------------

class OnCpu : public OnCpuPlugin<2> {};

TEST_F(OnCpu, GradientsOfOneRank) {
  ASSERT_VALUE(step, make_step(tiny_step(kOne, plan::Outputs::grads)));
  ASSERT_OK(on_both(step));
}

TEST_F(OnCpu, GradientsOfTwoDataRanks) {
  ASSERT_VALUE(step, make_step(tiny_step(kData2, plan::Outputs::grads, "minimal")));
  ASSERT_OK(on_both(step));
}

TEST_F(OnCpu, StateOfOneRank) {
  ASSERT_VALUE(step, make_step(tiny_step(kOne, plan::Outputs::state, "none")));
  ASSERT_OK(on_both(step));
}

// In bf16 neither is the yardstick: each may be from the exact value at most twice as far as the graph itself
// is with every bf16 edge rounded, and 1e-4 of the norm more.
TEST_F(OnCpu, Bf16GradientsOfOneRank) {
  plan::ProgramOptions options = tiny_step(kOne, plan::Outputs::grads);
  options.shape.dtype = DType::bf16;
  ASSERT_VALUE(step, make_step(options));
  ASSERT_VALUE(native, run_native(step));
  ASSERT_VALUE(loaded, load(step, train::print_options(kOne)));
  ASSERT_VALUE(xla, run_loaded(loaded, params_of(native)));
  const auto exact = interpreted(step, native[0].params, {});
  const auto rounded = interpreted(step, native[0].params, {.round_edges = true, .round_f32 = false});
  ASSERT_OK(compare_rounded(exact, rounded, assemble(step, outputs_of(native))));
  ASSERT_OK(compare_rounded(exact, rounded, assemble(step, xla)));
}

// 8-bit dots are held to the same bound, with every 8-bit edge rounded as well. Two ranks find the scales of
// weights, activations and gradients together, natively and through XLA.
TEST_F(OnCpu, Fp8GradientsOfTwoFsdpRanks) {
  const auto options = [&](const passes::Mesh& mesh) {
    plan::ProgramOptions o = tiny_step(mesh, plan::Outputs::grads);
    o.shape.dtype = DType::bf16;
    passes::QuantizationRule rule{.module_path = "decoder/.*layers.*"};
    rule.weight_dtype = rule.act_dtype = DType::f8e4m3fn;
    rule.bwd_dtype = DType::f8e5m2;
    rule.act = ops::parse_calibration("absmax,0.8").value();
    o.quantization = {rule};
    return o;
  };
  ASSERT_VALUE(alone, make_step(options(kOne)));
  ASSERT_VALUE(one, run_native(alone));
  ASSERT_VALUE(step, make_step(options(kFsdp2)));
  ASSERT_VALUE(native, run_native(step));
  ASSERT_VALUE(loaded, load(step, train::print_options(kFsdp2)));
  ASSERT_VALUE(xla, run_loaded(loaded, params_of(native)));
  const auto exact = interpreted(alone, one[0].params, {});
  const auto rounded = interpreted(alone, one[0].params, {.round_edges = true, .round_f32 = false});
  ASSERT_OK(compare_rounded(exact, rounded, assemble(step, outputs_of(native)), 0x1p-4));
  ASSERT_OK(compare_rounded(exact, rounded, assemble(step, xla), 0x1p-4));
}

// Loops in a loop: two micro-steps around the layers; tied embeddings and biases besides.
TEST_F(OnCpu, StateOfTwoFsdpRanksWithAccumulation) {
  plan::ProgramOptions options = tiny_step(kFsdp2, plan::Outputs::state);
  options.accumulation = 2;
  options.model.tie_embeddings = true;
  options.model.attention_bias = true;
  options.model.hidden = 63;  // padded on the second rank
  ASSERT_VALUE(step, make_step(options));
  ASSERT_OK(on_both(step));
}

// Two ranks have a half of each row's tokens, with keys gathered or passed round: against one rank, and
// through XLA.
TEST_F(OnCpu, GradientsOfTwoContextRanks) {
  ASSERT_VALUE(alone, make_step(tiny_step(kOne, plan::Outputs::grads)));
  ASSERT_VALUE(native_alone, run_native(alone));
  for (const bool ring : {false, true}) {
    SCOPED_TRACE(ring ? "ring" : "all_gather");
    const passes::Mesh mesh{{{"data", 1}, {"context", 2}}, true, ring};
    ASSERT_VALUE(step, make_step(tiny_step(mesh, plan::Outputs::grads)));
    ASSERT_VALUE(native, run_native(step));
    ASSERT_OK(compare(assemble(alone, outputs_of(native_alone)), assemble(step, outputs_of(native))));
    ASSERT_VALUE(loaded, load(step, train::print_options(mesh)));
    ASSERT_VALUE(xla, run_loaded(loaded, params_of(native)));
    ASSERT_OK(compare(assemble(step, outputs_of(native)), assemble(step, xla)));
  }
}

// Two ranks hold the model in halves: against one rank, and through XLA; and what must not go unseen.
TEST_F(OnCpu, GradientsOfTwoFsdpRanksAndFaults) {
  ASSERT_VALUE(step, make_step(tiny_step(kFsdp2, plan::Outputs::grads)));
  ASSERT_VALUE(native, run_native(step));
  const auto want = assemble(step, outputs_of(native));
  ASSERT_VALUE(alone, make_step(tiny_step(kOne, plan::Outputs::grads)));
  ASSERT_VALUE(native_alone, run_native(alone));
  ASSERT_OK(compare(assemble(alone, outputs_of(native_alone)), want));

  const pjrt::PrintOptions options = train::print_options(kFsdp2);
  ASSERT_VALUE(loaded, load(step, options));
  const std::vector<Arrays> params = params_of(native);
  const auto check = [&](const pjrt::LoadedStep& program, const std::vector<Arrays>& arguments) -> Status {
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<Arrays> outputs, run_loaded(program, arguments));
    return compare(want, assemble(step, outputs));
  };
  ASSERT_OK(check(loaded, params));

  {
    SCOPED_TRACE("weights given to the wrong ranks");
    std::vector<Arrays> swapped = params;
    const size_t weights = models::parameters(step.options.model).size();
    for (size_t i = 0; i < weights; ++i) std::swap(swapped[0][i], swapped[1][i]);
    EXPECT_FAULT(check(loaded, swapped), "error");
  }
  {
    SCOPED_TRACE("ranks in another order in the groups");
    pjrt::PrintOptions reversed = options;
    for (pjrt::ReplicaAxis& axis : reversed.axes)
      for (auto& group : axis.groups) std::reverse(group.begin(), group.end());
    ASSERT_VALUE(other, load(step, reversed));
    EXPECT_FAULT(check(other, params), "error");
  }
  {
    SCOPED_TRACE("1 % error in one weight");
    std::vector<Arrays> wrong = params;
    for (HostArray& a : wrong[1]) {
      if (a.dims != step.program.local->type(step.program.local->param_value(2)).dims) continue;
      auto* w = reinterpret_cast<float*>(a.data.data());
      float* largest =
          std::max_element(w, w + a.size(), [](float x, float y) { return std::fabs(x) < std::fabs(y); });
      *largest *= 1.01F;
      break;
    }
    EXPECT_FAULT(check(loaded, wrong), "error");
  }
}

// --- the trace
// ----------------------------------------------------------------------------------------------------

// In every loop of one rank's step: gathers of the next iteration that were started before the last
// computation of this one, and those that also were under way in it by the clock.
struct Prefetched {
  int64_t gathers = 0;    // of iterations after the first
  int64_t started = 0;    // of these, before the iteration before had computed all
  int64_t under_way = 0;  // of these, begun by the communication engine before that end
};
std::map<const ir::Graph*, Prefetched> prefetched(const std::vector<exec::Event>& events) {
  struct Last {
    size_t position = 0;
    int64_t end_ns = 0;
  };
  std::map<std::pair<const ir::Graph*, int64_t>, Last> last;  // computation of (loop, iteration)
  const auto kind = [](const exec::Event& e) -> const std::string& { return e.graph->node(e.node).kind; };
  const auto computes = [&](const exec::Event& e) {
    // What leads to the next layer's gathers runs early itself: matmuls are this layer's work.
    return e.engine == passes::Engine::compute && e.iteration >= 0 && kind(e) == "matmul";
  };
  for (size_t i = 0; i < events.size(); ++i)
    if (computes(events[i])) last[{events[i].graph, events[i].iteration}] = {i, events[i].time.end_ns};
  std::map<const ir::Graph*, Prefetched> out;
  for (size_t i = 0; i < events.size(); ++i) {
    const exec::Event& e = events[i];
    if (e.engine != passes::Engine::communication || kind(e) != "all_gather" || e.iteration < 1) continue;
    Prefetched& p = out[e.graph];
    ++p.gathers;
    const Last& before = last.at({e.graph, e.iteration - 1});
    if (i > before.position) continue;
    ++p.started;
    if (e.time.start_ns < before.end_ns) ++p.under_way;
  }
  return out;
}

// With a distance, every layer's gathers start under the layer before, in both loops; without, none does.
Status check_prefetch(const std::vector<exec::Event>& events, int64_t distance) {
  const auto loops = prefetched(events);
  if (loops.size() != 2) return check_failed("{} loops gather, not 2", loops.size());
  for (const auto& [graph, p] : loops) {
    if (p.gathers != kLayerWeights * (kLayers - 1))
      return check_failed("{}: {} gathers after the first layer", graph->name, p.gathers);
    if (p.started != (distance > 0 ? p.gathers : 0))
      return check_failed("{}: {} of {} gathers started under the layer before", graph->name, p.started,
                          p.gathers);
  }
  return {};
}

TEST(Trace, NextLayersGathersRunUnderThisLayer) {
  plan::ProgramOptions options = tiny_step(kFsdp2, plan::Outputs::grads);
  options.schedule.prefetch_distance = 1;
  ASSERT_VALUE(ahead, make_step(options));
  // Whether the engine's thread got a core in time is the machine's business: some step of these shows it.
  bool under_way = false;
  for (int attempt = 0; attempt < 20 && !under_way; ++attempt) {
    ASSERT_VALUE(run, run_native(ahead));
    for (const RankRun& rank : run) {
      ASSERT_OK(check_prefetch(rank.events, 1));
      EXPECT_FAULT(check_prefetch(rank.events, 0), "started under the layer before");
      for (const auto& [graph, p] : prefetched(rank.events)) under_way = under_way || p.under_way > 0;
    }
  }
  EXPECT_TRUE(under_way);
}

TEST(Trace, NoGatherRunsEarlyWithoutADistance) {
  plan::ProgramOptions options = tiny_step(kFsdp2, plan::Outputs::grads);
  options.schedule.prefetch_distance = 0;
  ASSERT_VALUE(none, make_step(options));
  ASSERT_VALUE(run, run_native(none));
  for (const RankRun& rank : run) {
    ASSERT_OK(check_prefetch(rank.events, 0));
    EXPECT_FAULT(check_prefetch(rank.events, 1), "0 of 21 gathers");
  }
}

// --- for TPU7x
// ----------------------------------------------------------------------------------------------------

// Large enough that libtpu keeps every gather an asynchronous one, small enough that compiling takes seconds.
plan::ProgramOptions tpu_step(const char* remat) {
  plan::ProgramOptions o;
  o.model = tiny_llama();
  o.model.hidden = 256;
  o.model.head_dim = 64;
  o.model.mlp = 512;
  o.model.vocab_size = 256;
  o.shape = {8, 128, DType::bf16};
  o.mesh.axes = {{"data", 1}, {"fsdp", 8}};
  o.remat = passes::remat_policy(remat).value();
  return o;
}

// The forward and the backward loop gather their layer's weights in the body; the backward loop computes the
// forward pass again, behind a barrier.
Status check_loops(std::string_view stablehlo) {
  LIGNUM_ASSIGN_OR_RETURN(const Loops loops, read_loops(stablehlo));
  if (loops.bodies.size() != 2) return check_failed("{} loops, not 2", loops.bodies.size());
  const LoopBody& forward = loops.bodies[0];
  const LoopBody& backward = loops.bodies[1];
  for (const LoopBody& body : loops.bodies)
    if (body.gathers != kLayerWeights || body.other_gathers != 0)
      return check_failed("{} gathers of the layer's weights in the {} body, {} others", body.gathers,
                          &body == &forward ? "forward" : "backward", body.other_gathers);
  // All but the last projection, whose result no gradient needs.
  if (backward.recomputed < forward.dots - 1)
    return check_failed("{} of {} forward dots are recomputed in the backward body", backward.recomputed,
                        forward.dots);
  if (backward.barriers == 0 || backward.unprotected != 0)
    return check_failed("{} barriers; {} recomputed dots are not behind one", backward.barriers,
                        backward.unprotected);
  return {};
}

// Both loops stand in the optimised program, and in each asynchronous gathers run under matmuls.
Status check_optimized(const pjrt::HloProgram& program) {
  int64_t loops = 0;
  for (const pjrt::HloComputation* body : program.while_bodies()) {
    int64_t gathers = 0, hidden = 0;
    for (const pjrt::AsyncCollective& c : program.async_collectives(*body)) {
      if (c.collective != "all-gather") continue;
      ++gathers;
      if (c.dots_between > 0) ++hidden;
    }
    if (program.count_dots(*body) == 0) continue;  // no layer
    ++loops;
    if (gathers == 0 || hidden == 0)
      return check_failed("{}: {} asynchronous gathers, {} with matmuls between start and done", body->name,
                          gathers, hidden);
    fmt::print("  {}: {} dots, {} asynchronous gathers, {} under matmuls\n", body->name,
               program.count_dots(*body), gathers, hidden);
  }
  if (loops != 2) return check_failed("{} loops with matmuls, not 2", loops);
  return {};
}

int64_t all_dots(const pjrt::HloProgram& program) { return program.count_dots(program.entry()); }

class ForTpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto plugin = pjrt::Plugin::load(pjrt::PluginKind::tpu);
    if (!plugin.ok()) {
      missing_ = plugin.status().message();
      return;
    }
    auto topology = pjrt::Topology::create(*plugin, "tpu7x:2x2x1");
    ASSERT_TRUE(topology.ok()) << topology.status().message();
    topology_.emplace(*topology);
  }
  static void TearDownTestSuite() { topology_.reset(); }
  void SetUp() override {
    if (!topology_) GTEST_SKIP() << "libtpu: " << missing_;
  }
  static Result<pjrt::CompiledStep> compile(const Step& step, const ir::Graph& local) {
    return pjrt::compile_step(*topology_, local, train::print_options(step.options.mesh));
  }
  static std::optional<pjrt::Topology> topology_;
  static std::string missing_;
};
std::optional<pjrt::Topology> ForTpu::topology_;
std::string ForTpu::missing_;

TEST_F(ForTpu, LoopsGatherAndRecompute) {
  ASSERT_VALUE(full, make_step(tpu_step("full")));
  ASSERT_VALUE(none, make_step(tpu_step("none")));
  ASSERT_VALUE(compiled, compile(full, *full.program.local));
  ASSERT_OK(check_loops(compiled.text));
  ASSERT_OK(check_optimized(compiled.program));

  ASSERT_VALUE(saved, compile(none, *none.program.local));
  EXPECT_FAULT(check_loops(saved.text), "are recomputed in the backward body");
  ASSERT_OK(check_optimized(saved.program));
  EXPECT_LT(all_dots(saved.program), all_dots(compiled.program));
  // State is donated: all outputs but the scalars lie in their arguments' memory.
  EXPECT_GT(compiled.memory.aliased, 0);
  EXPECT_LT(compiled.memory.outputs - compiled.memory.aliased, 1 << 16);

  const ir::Graph hoisted = HoistGathers::run(*full.program.local);
  ASSERT_OK(ops::verify(hoisted));
  ASSERT_VALUE(outside, compile(full, hoisted));
  EXPECT_FAULT(check_loops(outside.text), "0 gathers of the layer's weights in the forward body");
  EXPECT_FAULT(check_optimized(outside.program), "0 asynchronous gathers");
}

// The head in tiles: a third loop, whose products are a tile's; nowhere the logits of all of a device's
// tokens.
TEST_F(ForTpu, HeadInTilesHoldsNoLogits) {
  plan::ProgramOptions options = tpu_step("full");
  options.model.vocab_size = 384;
  options.vocab_tiling = 4;  // 128 tokens a device: 4 x 32
  ASSERT_VALUE(step, make_step(options));
  ASSERT_VALUE(compiled, compile(step, *step.program.local));
  ASSERT_VALUE(loops, read_loops(compiled.text));
  ASSERT_EQ(loops.bodies.size(), 3U);
  EXPECT_EQ(loops.bodies[1].dots, 3);
  EXPECT_EQ(loops.bodies[1].gathers + loops.bodies[1].other_gathers, 0);
  EXPECT_NE(compiled.text.find("tensor<32x384xf32>"), std::string::npos);
  EXPECT_EQ(compiled.text.find("tensor<128x384x"), std::string::npos);
  options.vocab_tiling = 1;
  ASSERT_VALUE(whole, make_step(options));
  ASSERT_VALUE(held, compile(whole, *whole.program.local));
  EXPECT_LT(all_dots(compiled.program), all_dots(held.program) + 1);
  EXPECT_NE(held.text.find("tensor<1x128x384x"), std::string::npos);
}

// The stacks of what is offloaded lie in host memory, as planned; a plug-in without one gets no placement.
TEST_F(ForTpu, OffloadedActivationsLieInHostMemory) {
  ASSERT_VALUE(step, make_step(tpu_step("minimal_offloaded")));
  pjrt::PrintOptions options = train::print_options(step.options.mesh);
  ASSERT_VALUE(plain, pjrt::print_stablehlo(*step.program.local, options));
  EXPECT_EQ(plain.find("annotate_device_placement"), std::string::npos);
  options.host_memory = true;
  ASSERT_VALUE(compiled, pjrt::compile_step(*topology_, *step.program.local, options));
  int64_t planned = 0;
  for (const passes::MemoryPart& part : step.program.memory.offloaded) planned += part.bytes;
  EXPECT_EQ(planned, step.program.memory.host_bytes);
  EXPECT_GT(planned, 0);
  EXPECT_EQ(compiled.memory.host_temporaries, planned);
}

// Likewise parameters and moments: arguments there, updated in their place.
TEST_F(ForTpu, StateLiesInHostMemory) {
  plan::ProgramOptions in_host = tpu_step("full");
  in_host.optimizer.offloaded = true;
  in_host.host_parameters = true;
  ASSERT_VALUE(step, make_step(in_host));
  pjrt::PrintOptions options = train::print_options(step.options.mesh);
  options.host_memory = true;
  ASSERT_VALUE(compiled, pjrt::compile_step(*topology_, *step.program.local, options));
  const ir::Graph& local = *step.program.local;
  int64_t state = 0, planned = 0;  // planned: in whole blocks of a file
  for (int64_t i = 0; i < static_cast<int64_t>(local.params().size()); ++i)
    if (const ir::Type& type = local.type(local.param_value(i)); type.host) state += type.bytes();
  for (const passes::MemoryPart& part : step.program.memory.host_state) planned += part.bytes;
  EXPECT_EQ(planned, step.program.memory.host_state_bytes);
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(state), 0.03 * static_cast<double>(state));
  EXPECT_EQ(compiled.memory.host_arguments, state);
  EXPECT_EQ(compiled.memory.host_aliased, state);
  EXPECT_EQ(compiled.memory.host_temporaries, 0);
}

// Tokens of a row over two devices, which send keys and values on.
TEST_F(ForTpu, TokensOfARowGoRound) {
  plan::ProgramOptions options = tpu_step("full");
  options.mesh = {{{"fsdp", 4}, {"context", 2}}, true, true};
  options.shape.sequence = 256;
  options.model.layers = 2;
  options.model.hidden = 128;
  options.outputs = plan::Outputs::grads;
  ASSERT_VALUE(step, make_step(options));
  ASSERT_VALUE(compiled, compile(step, *step.program.local));
  EXPECT_NE(compiled.text.find("stablehlo.collective_permute"), std::string::npos);
  EXPECT_GT(all_dots(compiled.program), 0);
}

// A width that 8 devices do not divide.
TEST_F(ForTpu, UnevenWidth) {
  plan::ProgramOptions options = tpu_step("full");
  options.model.hidden = 252;
  ASSERT_VALUE(step, make_step(options));
  ASSERT_VALUE(compiled, compile(step, *step.program.local));
  ASSERT_OK(check_loops(compiled.text));
  ASSERT_OK(check_optimized(compiled.program));
}

// What the text says needs no plug-in.
TEST(StableHlo, FaultsInTheLoopsAreSeen) {
  ASSERT_VALUE(step, make_step(tpu_step("full")));
  const pjrt::PrintOptions options = train::print_options(step.options.mesh);
  ASSERT_VALUE(text, pjrt::print_stablehlo(*step.program.local, options));
  ASSERT_OK(check_loops(text));
  ASSERT_VALUE(again, pjrt::print_stablehlo(*step.program.local, options));
  EXPECT_EQ(text, again);
  ASSERT_VALUE(open, pjrt::print_stablehlo(without_barriers(*step.program.local), options));
  EXPECT_FAULT(check_loops(open), "are not behind one");
  ASSERT_VALUE(hoisted, pjrt::print_stablehlo(HoistGathers::run(*step.program.local), options));
  EXPECT_FAULT(check_loops(hoisted), "0 gathers of the layer's weights in the forward body");
}

TEST(StableHlo, RefusesByName) {
  ASSERT_VALUE(step, make_step(tiny_step(kFsdp2, plan::Outputs::grads)));
  EXPECT_FAULT(pjrt::print_stablehlo(*step.program.local, train::print_options(kOne)).status(), "all_gather");
  EXPECT_FAULT(pjrt::print_stablehlo(step.program.global, train::print_options(kFsdp2)).status(), "LOCAL");
  pjrt::PrintOptions three = train::print_options(kFsdp2);
  three.replicas = 3;
  EXPECT_FAULT(pjrt::print_stablehlo(*step.program.local, three).status(), "3 replicas");
  pjrt::PrintOptions four;
  four.replicas = 4;
  four.axes = {{"fsdp", {{0, 1, 2, 3}}}};
  EXPECT_FAULT(pjrt::print_stablehlo(*step.program.local, four).status(), "a group of 2 ranks");
}

// --- its price
// ----------------------------------------------------------------------------------------------------

TEST(Price, OfTheStepOnFourChips) {
  ASSERT_VALUE(spec, hw::Spec::load("tpu7x"));
  ASSERT_VALUE(topology, hw::parse_topology("tpu7x:2x2x1", spec));
  ASSERT_VALUE(full, make_step(tpu_step("full")));
  ASSERT_VALUE(none, make_step(tpu_step("none")));
  ASSERT_VALUE(with_recompute, plan::price(full.program, full.options, spec, topology));
  ASSERT_VALUE(without, plan::price(none.program, none.options, spec, topology));
  EXPECT_GT(without.step_seconds, 0);
  EXPECT_GT(without.communication_seconds, 0);
  EXPECT_LT(without.compute_seconds, with_recompute.compute_seconds);
  EXPECT_LT(without.executed_flops, with_recompute.executed_flops);
  EXPECT_EQ(without.ranks, 8);
  ASSERT_TRUE(without.mfu.has_value() && with_recompute.mfu.has_value());
  EXPECT_GE(*without.mfu, *with_recompute.mfu);  // so small a step waits for its links
  EXPECT_LT(*without.mfu, 1);
  EXPECT_GT(none.program.memory.arena_bytes, full.program.memory.arena_bytes);
}

}  // namespace
}  // namespace lignum::tracer
