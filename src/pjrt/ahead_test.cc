// Compilation for TPU7x with libtpu, on a machine without a TPU.
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstring>
#include <optional>

#include "pjrt/client.h"
#include "pjrt/hlo.h"
#include "pjrt/program.h"

namespace lignum::pjrt {
namespace {

constexpr int64_t kUsableBytes = 101'724'450'816;  // of one TPU7x device, as libtpu 0.0.52 reports it

// A layer loop as the printer writes it, small: 4 layers whose weights are stacked shards; a slice, a gather,
// and dots, of which the first two need nothing that is gathered.
constexpr const char* kLoop = R"(
module @step attributes {mhlo.num_replicas = 8 : i32, mhlo.num_partitions = 1 : i32} {
  func.func @main(%x: tensor<256x1024xbf16>, %w: tensor<4x128x1024xbf16>) -> tensor<256x1024xbf16> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.constant dense<4> : tensor<i32>
    %r:3 = stablehlo.while(%i = %zero, %h = %x, %ws = %w) : tensor<i32>, tensor<256x1024xbf16>, tensor<4x128x1024xbf16>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %s = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 128, 1024]
          : (tensor<4x128x1024xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x128x1024xbf16>
      %t = stablehlo.reshape %s : (tensor<1x128x1024xbf16>) -> tensor<128x1024xbf16>
      %g = "stablehlo.all_gather"(%t) <{all_gather_dim = 0 : i64,
          replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}> : (tensor<128x1024xbf16>) -> tensor<1024x1024xbf16>
      %a = stablehlo.dot_general %h, %h, contracting_dims = [0] x [0]
          : (tensor<256x1024xbf16>, tensor<256x1024xbf16>) -> tensor<1024x1024xbf16>
      %b = stablehlo.dot_general %h, %a, contracting_dims = [1] x [0]
          : (tensor<256x1024xbf16>, tensor<1024x1024xbf16>) -> tensor<256x1024xbf16>
      %y = stablehlo.dot_general %b, %g, contracting_dims = [1] x [0]
          : (tensor<256x1024xbf16>, tensor<1024x1024xbf16>) -> tensor<256x1024xbf16>
      %i1 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %i1, %y, %ws : tensor<i32>, tensor<256x1024xbf16>, tensor<4x128x1024xbf16>
    }
    return %r#1 : tensor<256x1024xbf16>
  }
}
)";

// What the signals did before any plug-in was loaded (a sanitizer has handlers of its own).
constexpr std::array kSignals = {SIGTERM, SIGHUP, SIGINT, SIGPIPE, SIGSEGV, SIGABRT};
auto handler_of(int signal) {
  struct sigaction action{};
  LIGNUM_CHECK(sigaction(signal, nullptr, &action) == 0, "signal {}", signal);
  return action.sa_handler;
}
// Before a plug-in is loaded: it must be static. NOLINTNEXTLINE(bugprone-throwing-static-initialization)
const auto kHandlersAtStart = [] {
  std::array<decltype(handler_of(0)), kSignals.size()> handlers{};
  for (size_t i = 0; i < kSignals.size(); ++i) handlers[i] = handler_of(kSignals[i]);
  return handlers;
}();

class Ahead : public testing::Test {
 protected:
  void SetUp() override {
    auto plugin = Plugin::load(PluginKind::tpu);
    if (!plugin.ok()) GTEST_SKIP() << "libtpu: " << plugin.status().message();
    plugin_.emplace(*plugin);
  }
  std::optional<Plugin> plugin_;
};

TEST_F(Ahead, TopologyOfFourChips) {
  auto topology = Topology::create(*plugin_, "tpu7x:2x2x1");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const auto& devices = topology->devices();
  ASSERT_EQ(devices.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(devices[i].id, i);
    EXPECT_EQ(devices[i].kind, "TPU7x");
    EXPECT_EQ(devices[i].core_on_chip, i % 2);
    EXPECT_EQ(devices[i].coords, (std::vector<int64_t>{i / 2 % 2, i / 4, 0}));
    EXPECT_EQ(devices[i].slice_index, 0);
    EXPECT_EQ(devices[i].memory_bytes, kUsableBytes);
  }
}

TEST_F(Ahead, TwoSlicesHaveIdsOfTheirOwn) {
  auto topology = Topology::create(*plugin_, "tpu7x:2x2x1", {.num_slices = 2});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const auto& devices = topology->devices();
  ASSERT_EQ(devices.size(), 16u);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(devices[i].id, 100000 * (i / 8 + 1) + i % 8);
    EXPECT_EQ(devices[i].slice_index, i / 8);
  }
  // Ids from 0 would be refused: the assignment takes the topology's.
  CompileOptions options;
  options.num_replicas = 16;
  auto compiled =
      compile_ahead(*topology,
                    "module @m attributes {mhlo.num_replicas = 16 : i32} {\n"
                    "  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
                    "    %y = stablehlo.add %x, %x : tensor<4xf32>\n    return %y : tensor<4xf32>\n  }\n}\n",
                    options);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
}

// Where replicas are placed decides what crosses the data-centre network.
TEST_F(Ahead, PlacesDecideWhatCrossesSlices) {
  auto topology = Topology::create(*plugin_, "tpu7x:1x1x1", {.num_slices = 2});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const auto sends = [&](std::vector<int64_t> places) -> int64_t {
    CompileOptions options;
    options.num_replicas = 4;
    options.places = std::move(places);
    auto compiled = compile_ahead(*topology,
                                  "module @m attributes {mhlo.num_replicas = 4 : i32} {\n"
                                  "  func.func @main(%x: tensor<1024xf32>) -> tensor<2048xf32> {\n"
                                  "    %y = \"stablehlo.all_gather\"(%x) <{all_gather_dim = 0 : i64,\n"
                                  "        replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}>\n"
                                  "        : (tensor<1024xf32>) -> tensor<2048xf32>\n"
                                  "    return %y : tensor<2048xf32>\n  }\n}\n",
                                  options);
    EXPECT_TRUE(compiled.ok()) << compiled.status().message();
    if (!compiled.ok()) return -1;
    const auto program = HloProgram::decode(*compiled->optimized_program());
    EXPECT_TRUE(program.ok()) << program.status().message();
    const auto counts = program->count_collectives();
    return counts.contains("send") ? counts.at("send") : 0;
  };
  EXPECT_EQ(sends({}), 0);
  EXPECT_EQ(sends({1, 0, 3, 2}), 0);
  EXPECT_GT(sends({0, 2, 1, 3}), 0);
}

TEST_F(Ahead, RefusesAnUnknownTopology) {
  auto topology = Topology::create(*plugin_, "tpu99:2x2x1");
  EXPECT_EQ(topology.status().code(), Code::user_error) << topology.status().message();
  EXPECT_NE(topology.status().message().find("tpu99"), std::string::npos);
}

TEST_F(Ahead, LoopGathersBehindItsDots) {
  auto topology = Topology::create(*plugin_, "tpu7x:2x2x1");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  CompileOptions options;
  options.num_replicas = 8;
  auto compiled = compile_ahead(*topology, kLoop, options);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();

  auto stats = compiled->memory_stats();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  const int64_t x_bytes = int64_t{256} * 1024 * 2;
  const int64_t w_bytes = int64_t{4} * 128 * 1024 * 2;
  EXPECT_EQ(stats->arguments, x_bytes + w_bytes);
  EXPECT_EQ(stats->outputs, x_bytes);
  EXPECT_GT(stats->temporaries, 1024 * 1024 * 2);  // at least one gathered layer
  EXPECT_GT(stats->code, 0);
  EXPECT_GE(stats->peak, stats->arguments + stats->outputs);
  EXPECT_LT(stats->peak, kUsableBytes);
  auto cost = compiled->cost_analysis();
  ASSERT_TRUE(cost.ok()) << cost.status().message();
  // libtpu counts a loop body once; each of its three dots is 2 * 256 * 1024 * 1024 operations.
  EXPECT_NEAR(std::get<float>(cost->at("flops")), 3 * 2.0 * 256 * 1024 * 1024, 1e5);
  EXPECT_GT(*compiled->serialized_size(), 100'000);

  auto bytes = compiled->optimized_program();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  auto program = HloProgram::decode(*bytes);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const auto bodies = program->while_bodies();
  ASSERT_EQ(bodies.size(), 1u) << program->to_text();
  EXPECT_TRUE(bodies[0]->scheduled);
  EXPECT_EQ(program->count_dots(*bodies[0]), 3) << program->to_text();
  const auto collectives = program->async_collectives(*bodies[0]);
  ASSERT_EQ(collectives.size(), 1u) << program->to_text();
  EXPECT_EQ(collectives[0].collective, "all-gather");
  EXPECT_EQ(bodies[0]->instructions[collectives[0].start].async_thread, "sparsecore");
  EXPECT_LT(collectives[0].issue, collectives[0].done);
  EXPECT_GE(collectives[0].dots_between, 1) << program->to_text();
  bool priced = false;
  for (const HloInstruction& i : bodies[0]->instructions) {
    priced |= program->count_dots(i) > 0 && i.estimated_cycles.value_or(0) > 0;
  }
  EXPECT_TRUE(priced) << program->to_text();
}

// The same program with the SparseCore's gather off by an override: the flag reaches the compiler.
TEST_F(Ahead, OverridesReachTheCompiler) {
  auto topology = Topology::create(*plugin_, "tpu7x:2x2x1");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  CompileOptions options;
  options.num_replicas = 8;
  options.overrides["xla_tpu_enable_sparse_core_offload_of_nothing"] = true;
  auto unknown = compile_ahead(*topology, kLoop, options);
  EXPECT_EQ(unknown.status().code(), Code::user_error);
  EXPECT_NE(unknown.status().message().find("xla_tpu_enable_sparse_core_offload_of_nothing"),
            std::string::npos)
      << unknown.status().message();

  options.overrides.clear();
  options.overrides["xla_tpu_enable_sparse_core_collective_offload_all_gather"] = false;
  auto compiled = compile_ahead(*topology, kLoop, options);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  auto program = HloProgram::decode(*compiled->optimized_program());
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->to_text().find("thread=sparsecore"), std::string::npos) << program->to_text();
}

TEST_F(Ahead, ErrorsCarryTheCompilersWords) {
  auto topology = Topology::create(*plugin_, "tpu7x:2x2x1");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  CompileOptions options;
  auto wrong = compile_ahead(
      *topology, "func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n  return %x : tensor<2xf32>\n}\n",
      options);
  EXPECT_NE(wrong.status().message().find("tensor<3xf32>"), std::string::npos) << wrong.status().message();
  options.num_replicas = 16;
  auto many = compile_ahead(*topology, kLoop, options);
  EXPECT_NE(many.status().message().find("asks for 16 devices, there are 8"), std::string::npos)
      << many.status().message();
  auto client = Client::create(*plugin_);
  if (!client.ok()) {  // no TPU here
    EXPECT_EQ(client.status().code(), Code::user_error);
    EXPECT_NE(client.status().message().find("PJRT_Client_Create"), std::string::npos);
  }
}

TEST_F(Ahead, LeavesTheProcessItsSignals) {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    EXPECT_EQ(handler_of(kSignals[i]), kHandlersAtStart[i]) << strsignal(kSignals[i]);
  }
}

// Both plug-ins in one process, in use by turns.
TEST_F(Ahead, SharesAProcessWithTheCpuPlugin) {
  auto cpu = Plugin::load(PluginKind::cpu);
  if (!cpu.ok()) GTEST_SKIP() << "CPU plug-in: " << cpu.status().message();
  auto client = Client::create(*cpu, {.cpu_device_count = 2});
  ASSERT_TRUE(client.ok()) << client.status().message();
  auto topology = Topology::create(*plugin_, "tpu7x:2x2x1");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const std::string text =
      "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  %y = stablehlo.add %x, %x : tensor<4xf32>\n"
      "  return %y : tensor<4xf32>\n}\n";
  auto ahead = compile_ahead(*topology, text, {});
  ASSERT_TRUE(ahead.ok()) << ahead.status().message();
  auto executable = client->compile(text, {});
  ASSERT_TRUE(executable.ok()) << executable.status().message();
  const std::vector<float> x = {1, 2, 3, 4};
  auto results = executable->run({{{DType::f32, {4}, x.data()}}});
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ((*results)[0][0].as<float>()[3], 8.0f);
  EXPECT_GT(ahead->memory_stats()->code, 0);
}

}  // namespace
}  // namespace lignum::pjrt
