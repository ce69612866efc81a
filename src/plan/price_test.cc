#include "plan/price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "hw/cpu_spec_builder.h"
#include "ops/op.h"
#include "plan/engines.h"
#include "plan/node_time.h"
#include "plan/report.h"
#include "plan/reuse.h"

namespace lignum::plan {
namespace {

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

hw::Measurement took(double seconds) {
  hw::Measurement m;
  m.seconds = m.min = m.median = seconds;
  m.n = 1;
  return m;
}

// Every product at 1 GFLOP/s a thread, every byte at 1 GB/s whatever the threads, every collective between
// two ranks at `link` byte/s, a dispatch of 1 us.
hw::Spec box(double link, int cores = 8) {
  hw::CpuSpecBuilder b("box", {"Some CPU", cores, "avx512", "2026-11-29T15:00:00Z", "abc1234"});
  b.memory(16e9, 1 << 20).copy_bandwidth(1e9);
  for (int t = 1; t <= cores; t *= 2) {
    for (const DType dtype : {DType::f32, DType::bf16})
      b.gemm(dtype, t, 100, 100, 100, took(2e6 / (1e9 * t)));
    b.stream(t, 1 << 20, took((1 << 20) / 1e9));
    b.dispatch(t, took(1e-6));
    b.rows("elementwise:exp", DType::f32, t, 1000, took(1000 * 50e-9 / t));
    b.rows("cross_entropy", DType::f32, t, 1000, took(1000 * 10e-9 / t));
    b.rows("cross_entropy_grad", DType::f32, t, 1000, took(1000 * 5e-9 / t));
  }
  for (const hw::Collective op :
       {hw::Collective::all_gather, hw::Collective::reduce_scatter, hw::Collective::all_reduce})
    b.collective(op, 2, 1 << 20, took((1 << 20) / link));
  const Result<std::string> text = b.build();
  EXPECT_TRUE(text.ok()) << text.status().message();
  Result<hw::Spec> spec = hw::Spec::parse(*text, "box.json");
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return std::move(spec).value();
}

// Three layers, each of which gathers a weight, multiplies by it, and scatters a gradient.
constexpr const char* kLoop = R"(graph loop stage=local {
  %0 = param() {name="w"} : f32[3,256,128]
  %1 = param() {name="x"} : f32[64,256]
  %2 = scan(%1, %0) {carry=1, invariant=0, reversed=false, sliced=1, stacked=1, trip=3} : f32[64,256], f32[3,256,128] @ "layers" forward layers=0:3 body {
    %0 = param() {name="x"} : f32[64,256]
    %1 = param() {name="w"} : f32[256,128]
    %2 = all_gather(%1) {axis="fsdp", dim=1, group=2, size=256} : async f32[256,256] @ "wi" forward layers=0:3
    %3 = await(%2) : f32[256,256] @ "wi" forward layers=0:3
    %4 = matmul(%0, %3) {batch_a=[], batch_b=[], contract_a=[1], contract_b=[1]} : f32[64,256] @ "wi" forward layers=0:3
    %5 = matmul(%4, %0) {batch_a=[], batch_b=[], contract_a=[0], contract_b=[0]} : f32[256,256] @ "wi" wgrad layers=0:3
    %6 = reduce_scatter(%5) {axis="fsdp", dim=1, group=2} : async f32[256,128] @ "wi" wgrad layers=0:3
    %7 = await(%6) : f32[256,128] @ "wi" wgrad layers=0:3
    %8 = elementwise(%4) {fn="exp"} : f32[64,256] @ "exp" forward layers=0:3
    return %8 as "x", %7 as "d_w"
  }
  return %2 as "x", %2#1 as "d_w"
}
)";

passes::Scheduled scheduled(const std::string& text, passes::ScheduleOptions options = {}) {
  Result<ir::Graph> graph = ir::parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  const Status types = ops::verify(*graph);
  EXPECT_TRUE(types.ok()) << types.message();
  return passes::schedule(std::make_shared<const ir::Graph>(std::move(*graph)), options);
}

const passes::Mesh& two() {
  static const passes::Mesh mesh{{{"fsdp", 2}}};
  return mesh;
}

Price priced(const passes::Scheduled& step, const hw::Spec& spec, const passes::Mesh& mesh = two(),
             const PriceOptions& options = {}) {
  Result<Price> p = price(step, mesh, spec, options);
  EXPECT_TRUE(p.ok()) << p.status().message();
  return p.ok() ? std::move(*p) : Price{};
}

void expect_sums(const Price& p) {
  EXPECT_NEAR(p.step_seconds, p.compute_seconds + p.contention_seconds + p.exposed_seconds,
              1e-9 * p.step_seconds);
  double compute = 0, communication = 0;
  for (const NodePrice& n : p.nodes)
    (n.engine == passes::Engine::compute ? compute : communication) += n.total_seconds;
  EXPECT_NEAR(compute, p.compute_seconds, 1e-9 * p.step_seconds);
  EXPECT_NEAR(communication, p.communication_seconds, 1e-9 * p.step_seconds + 1e-15);
}

TEST(Engines, CommunicationRunsUnderComputeInOrder) {
  Engines e({}, true);
  const uint64_t first = e.submit(2), second = e.submit(3);
  e.compute(1);
  e.wait(first);  // one second left
  EXPECT_DOUBLE_EQ(e.now(), 2);
  EXPECT_DOUBLE_EQ(e.exposed_seconds(), 1);
  e.compute(10);  // the second ends meanwhile
  e.wait(second);
  EXPECT_DOUBLE_EQ(e.now(), 12);
  EXPECT_DOUBLE_EQ(e.exposed_seconds(), 1);
  EXPECT_DOUBLE_EQ(e.communication_seconds(), 5);
  EXPECT_DOUBLE_EQ(e.contention_seconds(), 0);
}

TEST(Engines, CopiesHaveAQueueOfTheirOwn) {
  Engines e({}, true);
  const uint64_t gather = e.submit(2), copy = e.submit(3, Engines::Queue::copy);
  e.compute(1);
  e.wait(gather);  // a second of each is left, then of the copy one
  EXPECT_DOUBLE_EQ(e.now(), 2);
  e.wait(copy, Engines::Queue::copy);
  EXPECT_DOUBLE_EQ(e.now(), 3);
  EXPECT_DOUBLE_EQ(e.exposed_seconds(), 2);
  EXPECT_DOUBLE_EQ(e.communication_seconds(), 2);
  EXPECT_DOUBLE_EQ(e.copy_seconds(), 3);
  // Beside one busy queue compute runs at a half, beside two at a third.
  const Engines::Speeds one = Engines::shared_cores(1, 1, 1);
  Engines shared(one, one, Engines::shared_cores(1, 1, 1, 2), true);
  shared.submit(1);
  shared.submit(2, Engines::Queue::copy);
  shared.compute(3);
  shared.drain();
  EXPECT_DOUBLE_EQ(shared.now(), 6);
}

TEST(Engines, NoOverlapRunsItWhereItIsSubmitted) {
  Engines e({}, false);
  const uint64_t ticket = e.submit(2);
  e.compute(5);
  e.wait(ticket);
  EXPECT_DOUBLE_EQ(e.now(), 7);
  EXPECT_DOUBLE_EQ(e.exposed_seconds(), 2);
}

TEST(Engines, SharedCoresSlowBothWhileBothAreBusy) {
  const Engines::Speeds half = Engines::shared_cores(2, 2, 1);
  EXPECT_DOUBLE_EQ(half.compute, 0.5);
  EXPECT_DOUBLE_EQ(half.communication, 0.5);
  const Engines::Speeds own = Engines::shared_cores(4, 2, 1);
  EXPECT_DOUBLE_EQ(own.compute, 1);
  EXPECT_DOUBLE_EQ(own.communication, 1);
  // Four ranks of one thread on two cores: half a core a rank, a quarter while both are busy.
  EXPECT_DOUBLE_EQ(Engines::shared_cores(2, 4, 1).compute, 0.5);
  // Three threads on a rank's three cores, the communication thread is a fourth.
  EXPECT_DOUBLE_EQ(Engines::shared_cores(6, 2, 3).compute, 0.75);
  EXPECT_DOUBLE_EQ(Engines::shared_cores(6, 2, 3).communication, 0.75);

  Engines e(half, true);
  e.submit(1);
  e.compute(3);  // two seconds beside communication for one of its own, then two alone
  EXPECT_DOUBLE_EQ(e.now(), 4);
  EXPECT_DOUBLE_EQ(e.contention_seconds(), 1);
  e.drain();
  EXPECT_DOUBLE_EQ(e.now(), 4);
}

TEST(Price, OverlapHidesTheCollectiveAndDistanceZeroDoesNot) {
  // A gather or scatter of 256 KiB takes 2.6 ms; the two products of a layer take 16.8 ms.
  const hw::Spec spec = box(100e6);
  const Price ahead = priced(scheduled(kLoop, {1, true}), spec);
  const Price none = priced(scheduled(kLoop, {0, true}), spec);
  const Price serial = priced(scheduled(kLoop, {1, false}), spec);
  for (const Price* p : {&ahead, &none, &serial}) expect_sums(*p);
  const double one = 256 * 256 * 4 / 100e6;
  EXPECT_NEAR(ahead.communication_seconds, 6 * one, 1e-12);
  // Under nothing: the first gather, and of the last scatter what the exp does not cover: those before lie
  // under the next layer. With distance 0 none do.
  const double exp = 64 * 256 * 2 * 50e-9 + 1e-6;
  EXPECT_NEAR(ahead.exposed_seconds, one + (one - exp), 1e-9);
  EXPECT_NEAR(none.exposed_seconds, 3 * one + 3 * (one - exp), 1e-9);
  EXPECT_NEAR(serial.exposed_seconds, 6 * one, 1e-9);
  EXPECT_NEAR(ahead.compute_seconds, serial.compute_seconds, 1e-12);
  EXPECT_LT(ahead.step_seconds, none.step_seconds);
  EXPECT_LT(none.step_seconds, serial.step_seconds);
}

TEST(Price, CoresThatAreShortMakeContention) {
  const Price wide = priced(scheduled(kLoop), box(100e6, 8));
  const Price narrow = priced(scheduled(kLoop), box(100e6, 2));
  expect_sums(narrow);
  EXPECT_EQ(wide.contention_seconds, 0);
  EXPECT_GT(narrow.contention_seconds, 0);
  EXPECT_GT(narrow.step_seconds, wide.step_seconds);
  // What runs beside compute costs what it would have cost alone, no more: one core does both.
  PriceOptions serial;
  serial.overlap = false;
  const Price in_turn = priced(scheduled(kLoop, {1, false}), box(100e6, 2), two(), serial);
  EXPECT_NEAR(narrow.step_seconds, in_turn.step_seconds, 1e-6);
}

TEST(Price, NodesCarryTheirCostFacet) {
  const Price p = priced(scheduled(kLoop), box(100e6));
  ASSERT_EQ(p.nodes.size(), 7u);
  std::map<std::string, const NodePrice*> by;
  for (const NodePrice& n : p.nodes) by[n.kind + " " + std::string(ir::role_name(n.role))] = &n;
  const NodePrice& product = *by.at("matmul forward");
  EXPECT_EQ(product.count, 3);
  EXPECT_DOUBLE_EQ(product.flops, 2.0 * 64 * 256 * 256);
  // Two ranks of one thread: each has half of what two threads do together.
  EXPECT_NEAR(product.seconds, product.flops / 1e9 + 1e-6, 1e-12);
  EXPECT_EQ(product.bound, hw::Bound::compute);
  const NodePrice& exp = *by.at("elementwise forward");
  EXPECT_NEAR(exp.seconds, 2 * 64 * 256 * 50e-9 + 1e-6, 1e-12);  // measured under its name
  EXPECT_EQ(by.at("all_gather forward")->bound, hw::Bound::link);
  EXPECT_DOUBLE_EQ(by.at("all_gather forward")->bytes, 256.0 * 256 * 4 / 2);
  EXPECT_DOUBLE_EQ(p.executed_flops, 3 * 2 * product.flops);
  EXPECT_DOUBLE_EQ(p.dispatch_seconds, 9e-6);
  for (size_t i = 1; i < p.nodes.size(); ++i) EXPECT_LT(p.nodes[i - 1].id, p.nodes[i].id);
}

TEST(Price, MfuAndTokensFromWhatIsGiven) {
  const passes::Scheduled step = scheduled(kLoop);
  const Price bare = priced(step, box(100e6));
  EXPECT_FALSE(bare.mfu || bare.tokens_per_second || bare.model_flop_rate);
  PriceOptions options;
  options.model_flops = 1e7;
  options.tokens = 128;
  const Price p = priced(step, box(100e6), two(), options);
  EXPECT_DOUBLE_EQ(*p.tokens_per_second, 128 / p.step_seconds);
  // The machine's best product: eight threads, 250 us and a dispatch.
  EXPECT_NEAR(*p.mfu, 1e7 / p.step_seconds / (2e6 / 251e-6), 1e-9 * *p.mfu);
  options.operands = DType::i32;
  EXPECT_FALSE(priced(step, box(100e6), two(), options).mfu);
}

TEST(Price, LoopsCopiesArePriced) {
  const passes::Scheduled step = scheduled(kLoop);
  const passes::MemoryPlan memory = passes::plan_memory(step, {});
  PriceOptions options;
  options.memory = &memory;
  const Price p = priced(step, box(100e6), two(), options);
  expect_sums(p);
  int64_t bytes = 0;
  for (const passes::Copy& c : memory.layout.at_end) bytes += c.bytes;
  for (const auto& [id, copies] : memory.layout.before)
    for (const passes::Copy& c : copies) bytes += c.bytes;
  for (const auto& [id, body] : memory.layout.bodies)
    for (const passes::Copy& c : body.at_end) bytes += 3 * c.bytes;
  double priced_bytes = 0;
  for (const NodePrice& n : p.nodes)
    if (n.id < 0) priced_bytes += static_cast<double>(n.count) * n.bytes;
  EXPECT_DOUBLE_EQ(priced_bytes, 2.0 * static_cast<double>(bytes));
}

TEST(Price, RefusesWhatTheSpecificationCannotSay) {
  const passes::Scheduled step = scheduled(kLoop);
  PriceOptions many;
  many.threads = 16;
  const Result<Price> threads = price(step, two(), box(1e9), many);
  ASSERT_FALSE(threads.ok());
  EXPECT_SAYS(threads.status().message(), "not 16");
  const Result<hw::Spec> tpu = hw::Spec::load("tpu7x");
  ASSERT_TRUE(tpu.ok());
  const Result<Price> slice = price(step, two(), *tpu, {});
  ASSERT_FALSE(slice.ok());
  EXPECT_SAYS(slice.status().message(), "compile_topology");
  PriceOptions eight;
  eight.topology = *hw::parse_topology("tpu7x-8", *tpu);
  const Result<Price> devices = price(step, two(), *tpu, eight);
  ASSERT_FALSE(devices.ok());
  EXPECT_SAYS(devices.status().message(), "8 devices, the mesh has 2");
}

// A gather over an axis of two: the cores of a chip, or a core in each of two slices.
TEST(Price, AnAxisOverSlicesTakesTheDataCentreNetwork) {
  const passes::Scheduled step = scheduled(kLoop);
  const Result<hw::Spec> tpu = hw::Spec::load("tpu7x");
  ASSERT_TRUE(tpu.ok());
  PriceOptions options;
  options.topology = *hw::parse_topology("tpu7x:1x1x1", *tpu, 2);
  const auto gather = [&](const passes::Mesh& mesh) {
    const Price p = priced(step, *tpu, mesh, options);
    const auto n = std::find_if(p.nodes.begin(), p.nodes.end(),
                                [](const NodePrice& node) { return node.kind == "all_gather"; });
    return n->seconds;
  };
  const double half = 256.0 * 256 * 4 / 2;  // what a device lacks
  EXPECT_DOUBLE_EQ(gather({{{"data", 2, 2}, {"fsdp", 2}}}), half / 600e9);
  EXPECT_DOUBLE_EQ(gather({{{"data", 2}, {"fsdp", 2, 2}}}), half / (12.5e9 / 2));
}

ProgramOptions llama(std::string_view preset, int64_t ranks, int64_t rows, int64_t sequence) {
  ProgramOptions o;
  o.model = *config::preset(preset);
  o.mesh.axes = {{"data", 1}, {"fsdp", ranks}};
  o.shape = {ranks * rows, sequence, DType::bf16};
  o.remat = *passes::remat_policy("full");
  return o;
}

// Attention of a rank of a context axis is counted as the slowest has it: balanced all have a share of the
// pairs that one rank would have; else the last has almost twice the mean; in a ring each meeting as its
// slowest has it.
TEST(Price, AttentionOfAContextAxisIsThatOfItsSlowestRank) {
  const auto pairs = [](int64_t ranks, bool balanced, bool ring) {
    ProgramOptions o = llama("lignum-tiny", 1, 2, 512);
    o.mesh = {{{"context", ranks}}, balanced, ring};
    const Result<Program> program = make_program(o);
    EXPECT_TRUE(program.ok()) << program.status().message();
    double sum = 0;
    ir::for_each_node(*program->local, [&](const ir::Graph& g, int32_t id, int) {
      if (g.node(id).kind != "attention") return;
      const ops::NodeSite site(g, g.node(id));
      sum += ops::get_op("attention").cost(site.site).transcendentals;
    });
    return sum;
  };
  const double one = pairs(1, true, false);
  EXPECT_EQ(pairs(4, true, false), one / 4);
  EXPECT_NEAR(pairs(4, false, false), one / 4 * 1.75, 0.01 * one);  // (2 - 1/4) of the mean
  EXPECT_NEAR(pairs(4, false, true), one / 4 * 1.75, 0.01 * one);
  EXPECT_NEAR(pairs(4, true, true), one / 4, 0.01 * one);
}

// The published physics of TPU7x (docs/specs.md): compute is FLOPs at 926 TFLOP/s plus attention and traffic.
TEST(Price, Llama8BOnASliceOfTpu7x) {
  const Result<hw::Spec> spec = hw::Spec::load("tpu7x");
  ASSERT_TRUE(spec.ok());
  const ProgramOptions made_with = llama("llama3.1-8b", 8, 2, 8192);
  const Result<Program> program = make_program(made_with);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Result<Price> p = price(*program, made_with, *spec, *hw::parse_topology("tpu7x-8", *spec));
  ASSERT_TRUE(p.ok()) << p.status().message();
  double matmul_flops = 0, matmul_seconds = 0, attention_seconds = 0;
  for (const NodePrice& n : p->nodes) {
    if (n.kind == "matmul") {
      matmul_flops += static_cast<double>(n.count) * n.flops;
      matmul_seconds += n.total_seconds;
    }
    if (n.kind.starts_with("attention")) attention_seconds += n.total_seconds;
  }
  EXPECT_NEAR(matmul_seconds, matmul_flops / 926e12, 0.3 * matmul_seconds);
  // 2 sequences x 32 heads x 32 layers: forward twice (recomputed), backward once.
  const double s = 8192, each = s / 2 * (2 * 1.37e-12 * (s + 2900) + 3.0e-12 * (s + 3150));
  EXPECT_NEAR(attention_seconds, 2 * 32 * 32 * each, 0.01 * attention_seconds);
  // All of it under compute but the first layer's gather.
  EXPECT_LT(p->exposed_seconds, 0.02 * p->step_seconds);
  EXPECT_GT(p->communication_seconds, 0.05 * p->step_seconds);
  EXPECT_NEAR(p->step_seconds, p->compute_seconds + p->exposed_seconds, 1e-9);
  // Published dense steps on this chip lie between; none is over 60 %.
  ASSERT_TRUE(p->mfu);
  EXPECT_GT(*p->mfu, 0.25);
  EXPECT_LT(*p->mfu, 0.65);
}

// Llama-2-7B and Llama-3.1-70B, against numbers that were computed apart and published.
TEST(ModelFlops, OfPublishedSteps) {
  constexpr double kTera = 1e12, kRounding = 0.005;
  const auto flops = [](std::string_view preset, int64_t rows, int64_t sequence) {
    return models::training_flops(*config::preset(preset), rows, sequence) / kTera;
  };
  for (const auto& [sequence, matmul, attention] :
       {std::tuple{8192, 1299.00, 211.11}, std::tuple{129024, 20459.32, 52367.54}}) {
    const double all = flops("llama2-7b", 4, sequence);
    // Attention grows with the square of the length, all else with the length.
    const double squared = (flops("llama2-7b", 4, int64_t{2} * sequence) - 2 * all) / 2;
    EXPECT_NEAR(squared, attention, kRounding) << sequence;
    EXPECT_NEAR(all - squared, matmul, kRounding) << sequence;
  }
  const Result<hw::Spec> spec = hw::Spec::load("tpu7x");
  ASSERT_TRUE(spec.ok());
  const double rate = flops("llama3.1-70b", 256, 8192) / 64 / 12.20;
  EXPECT_NEAR(rate, 1206.6, 0.05);
  EXPECT_NEAR(rate * kTera / (2 * *spec->peak_matmul_flops(DType::bf16)), 0.523, 0.0005);  // two a chip
}

// What MFU counts is never more than what the step computes, so MFU stays under 100 % at any length, also
// where most positions are outside a window. Recomputing adds to what is computed and to nothing else.
TEST(ModelFlops, AreAtMostWhatIsComputed) {
  const Result<hw::Spec> spec = hw::Spec::load("tpu7x");
  ASSERT_TRUE(spec.ok());
  for (const std::string_view preset : {"llama2-7b", "mistral-7b"}) {
    for (const int64_t sequence : {2048, 131072}) {
      double model_flops = 0, without = 0;
      for (const char* policy : {"none", "full"}) {
        ProgramOptions o = llama(preset, 8, 1, sequence);
        o.remat = *passes::remat_policy(policy);
        const Result<Program> program = make_program(o);
        ASSERT_TRUE(program.ok()) << program.status().message();
        const Result<Price> p = price(*program, o, *spec, *hw::parse_topology("tpu7x-8", *spec));
        ASSERT_TRUE(p.ok()) << p.status().message();
        double computed = 0;
        for (const NodePrice& n : p->nodes) computed += 8 * static_cast<double>(n.count) * n.flops;
        const double again = 8 * recomputed_flops(program->scheduled);
        SCOPED_TRACE(fmt::format("{}, {} tokens, remat_policy={}", preset, sequence, policy));
        EXPECT_LE(p->model_flops + again, computed);
        EXPECT_LT(*p->mfu, 1);
        if (policy == std::string_view("none")) {
          model_flops = p->model_flops;
          without = computed;
          EXPECT_EQ(again, 0);
        } else {
          EXPECT_EQ(p->model_flops, model_flops);
          EXPECT_GT(computed, without);
          EXPECT_GT(again, 0.2 * model_flops);
        }
      }
    }
  }
}

TEST(Price, MonotoneInRowsAndSequence) {
  const Result<hw::Spec> spec = hw::Spec::load("tpu7x");
  ASSERT_TRUE(spec.ok());
  const auto step = [&](int64_t rows, int64_t sequence) {
    const ProgramOptions o = llama("llama3.1-8b", 8, rows, sequence);
    const Result<Program> program = make_program(o);
    EXPECT_TRUE(program.ok()) << program.status().message();
    const Result<Price> p = price(*program, o, *spec, *hw::parse_topology("tpu7x-8", *spec));
    EXPECT_TRUE(p.ok()) << p.status().message();
    return p->step_seconds;
  };
  // Few tokens: the same gathers and scatters, and nothing else is the bound.
  EXPECT_NEAR(step(1, 1024), step(1, 512), 0.05 * step(1, 512));
  EXPECT_LT(step(1, 1024), step(4, 4096));
  EXPECT_LT(2 * step(4, 4096), step(4, 8192));  // attention grows faster than the sequence
}

TEST(NodeTime, NamesRowOpsByTheirStringAttributes) {
  const ops::Attrs attrs{{"fn", std::string("exp")}};
  const std::vector<ir::Type> types = {{DType::bf16, {4, 8}, {}}};
  const ops::Site site{attrs, types, types};
  const RowWork row = row_work("elementwise", site, ops::get_op("elementwise").cost(site));
  EXPECT_EQ(row.name, "elementwise:exp");
  EXPECT_EQ(row.dtype, DType::bf16);
  EXPECT_EQ(row.elements, 64);
}

TEST(NodeTime, AttentionPassAndMaskFollowFromTheCost) {
  for (const bool causal : {true, false}) {
    const ops::Attrs attrs{{"scale", 0.125}, {"causal", causal}};
    const ir::Type q{DType::bf16, {2, 64, 4, 16}, {}}, kv{DType::bf16, {2, 64, 2, 16}, {}};
    const std::vector<ir::Type> in = {q, kv, kv};
    const Result<ops::Types> out = ops::get_op("attention").infer(in, attrs);
    ASSERT_TRUE(out.ok()) << out.status().message();
    const ops::Site site{attrs, in, *out};
    const hw::AttentionWork forward = attention_work(site, ops::get_op("attention").cost(site));
    EXPECT_EQ(forward.pass, hw::AttentionPass::forward);
    EXPECT_EQ(forward.causal, causal);
    EXPECT_EQ(forward.sequences * forward.heads, 8);
    EXPECT_EQ(forward.seq, 64);
    EXPECT_EQ(forward.head_dim, 16);
    EXPECT_EQ(forward.group, 2);
  }
}

// Head and loss: three products, the loss of f32 logits, its gradient read in four bytes and written in two.
TEST(NodeTime, HeadAndLossAreProductsAndRows) {
  const ops::Attrs attrs{{"tile", int64_t{64}}, {"gradients", true}};
  const std::vector<ir::Type> in = {
      {DType::bf16, {2, 64, 32}, {}}, {DType::bf16, {256, 32}, {}}, {DType::i32, {2, 64}, {}}};
  const ops::Op& op = ops::get_op("linear_cross_entropy");
  const Result<ops::Types> out = op.infer(in, attrs);
  ASSERT_TRUE(out.ok()) << out.status().message();
  const ops::Site site{attrs, in, *out};
  const hw::Spec spec = box(1e9);
  const Result<hw::Estimate> all = node_time(spec, {1, 1}, "linear_cross_entropy", site, op.cost(site));
  const Result<hw::Estimate> products =
      hw::matmul_time(spec, {1, 1}, {DType::bf16, out->at(0).dtype, 128, 256, 32, 3});
  ASSERT_TRUE(all.ok() && products.ok());
  EXPECT_NEAR(all->seconds - products->seconds, 128 * 256 * (10e-9 + 1.5 * 5e-9), 1e-9);
}

TEST(Reuse, OperandsAreAsColdAsWhatRanInBetween) {
  // exp, then a product of other things, then exp of the first result.
  const passes::Scheduled step = scheduled(R"(graph g stage=local {
  %0 = param() {name="x"} : f32[64,64]
  %1 = param() {name="w"} : f32[256,256]
  %2 = elementwise(%0) {fn="exp"} : f32[64,64] @ "a" forward
  %3 = matmul(%1, %1) {batch_a=[], batch_b=[], contract_a=[1], contract_b=[0]} : f32[256,256] @ "b" forward
  %4 = elementwise(%2) {fn="logistic"} : f32[64,64] @ "c" forward
  return %3 as "y", %4 as "z"
}
)");
  const passes::MemoryPlan memory = passes::plan_memory(step, {});
  const auto all = reuse(step, memory.layout, 1);
  ASSERT_EQ(all.size(), 3u);
  for (const auto& slot : all) {
    double shares = 0;
    for (const Traffic& t : slot) shares += t.share;
    EXPECT_NEAR(shares, 1, 1e-12);
  }
  const double small = 2.0 * 64 * 64 * 4, product = 3.0 * 256 * 256 * 4;
  EXPECT_DOUBLE_EQ(all[2][0].distance, product + small);      // its input: the product ran since
  EXPECT_DOUBLE_EQ(all[0][0].distance, product + 2 * small);  // the step's input: since the step before
  EXPECT_DOUBLE_EQ(all[1][0].distance, product + 2 * small);

  // The same exp costs more where its operands are colder.
  hw::CpuSpecBuilder b("box", {"Some CPU", 1, "avx512", "2026-11-29T15:00:00Z", "abc1234"});
  b.memory(16e9, 1 << 20)
      .copy_bandwidth(1e9)
      .gemm(DType::f32, 1, 64, 64, 64, took(1e-4))
      .dispatch(1, took(1e-6));
  b.stream(1, 1 << 10, took((1 << 10) / 100e9)).stream(1, 1 << 20, took((1 << 20) / 10e9));
  const hw::Spec spec = *hw::Spec::parse(*b.build(), "box.json");
  PriceOptions cold;
  cold.memory = &memory;
  const passes::Mesh one;
  EXPECT_GT(priced(step, spec, one, cold).nodes[2].seconds,
            1.5 * (priced(step, spec, one).nodes[2].seconds - 1e-6));
}

// To a file at the file's rates, which are not RAM's; a specification without them has no price.
TEST(Price, HostMemoryInAFileHasItsOwnRate) {
  const passes::Scheduled step = scheduled(R"(graph step stage=local {
  %0 = param() {name="x"} : f32[256,256]
  %1 = offload(%0) : async host f32[256,256] @ "out" forward
  %2 = await(%1) : host f32[256,256] @ "out" forward
  %3 = fetch(%2) : async f32[256,256] @ "in" forward
  %4 = await(%3) : f32[256,256] @ "in" forward
  return %4 as "y"
})");
  hw::Spec spec = box(1e9);
  PriceOptions options;
  options.host_file = true;
  EXPECT_FALSE(price(step, {}, spec, options).ok());
  constexpr int64_t kBytes = int64_t{256} * 256 * 4;
  spec.set_host_file({{"write", "/disk", kBytes, 1e-5, 2e-3, 0}, {"read", "/disk", kBytes, 1e-5, 1e-3, 0}});
  const Price p = priced(step, spec, {}, options);
  EXPECT_NEAR(p.copy_seconds, 3e-3, 1e-12);
  EXPECT_SAYS(time_table(p, spec), "/disk");
  options.host_file = false;
  EXPECT_NE(priced(step, spec, {}, options).copy_seconds, 3e-3);
}

TEST(Report, TablesAndJsonSayTheSame) {
  const passes::Scheduled step = scheduled(kLoop);
  const passes::MemoryPlan memory = passes::plan_memory(step, {});
  const hw::Spec spec = box(100e6);
  PriceOptions options;
  options.memory = &memory;
  options.model_flops = 1e7;
  options.tokens = 128;
  const Price p = priced(step, spec, two(), options);
  ReportOptions small;
  small.top = 2;
  small.device_memory = memory.arena_bytes - 1;

  const std::string nodes = node_table(p, small);
  EXPECT_EQ(std::count(nodes.begin(), nodes.end(), '\n'), 3);
  EXPECT_SAYS(nodes, "matmul");
  EXPECT_SAYS(memory_table(memory, small), "TOO MUCH");
  small.device_memory = memory.arena_bytes;
  EXPECT_SAYS(memory_table(memory, small), "free");
  const std::string time = time_table(p, spec);
  EXPECT_SAYS(time, seconds_text(p.step_seconds));
  EXPECT_SAYS(time, "MFU");

  const nlohmann::ordered_json json = report_json(p, memory, spec, small);
  EXPECT_EQ(json["memory"]["arena_bytes"], memory.arena_bytes);
  EXPECT_EQ(json["memory"]["fits"], true);
  EXPECT_EQ(json["time"]["step_seconds"], p.step_seconds);
  EXPECT_EQ(json["nodes"].size(), p.nodes.size());
  EXPECT_EQ(json["nodes"][0]["id"], p.nodes[0].id);
  EXPECT_EQ(json["spec"]["name"], "box");
}

TEST(Report, NumbersForPeople) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(101724450816.0), "94.7 GiB");
  EXPECT_EQ(seconds_text(1.234), "1.23 s");
  EXPECT_EQ(seconds_text(4.56e-3), "4.56 ms");
  EXPECT_EQ(seconds_text(123e-6), "123 us");
  EXPECT_EQ(seconds_text(0), "0.00 us");
}

}  // namespace
}  // namespace lignum::plan
