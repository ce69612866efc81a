// Programs on virtual devices of XLA's CPU plug-in. One client serves all tests: making one takes longer than
// most.
#include "pjrt/client.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "pjrt/hlo.h"

namespace lignum::pjrt {
namespace {

constexpr int kDevices = 4;

std::string replica_module(const std::string& arguments, const std::string& results,
                           const std::string& body) {
  return "module @m attributes {mhlo.num_replicas = 4 : i32, mhlo.num_partitions = 1 : i32} {\n"
         "  func.func @main(" +
         arguments + ") -> " + results + " {\n" + body + "  }\n}\n";
}

template <class T>
HostView view(const std::vector<T>& data, DType dtype, std::vector<int64_t> dims) {
  return {dtype, std::move(dims), data.data()};
}

template <class T>
std::vector<T> values(const HostArray& array) {
  return {array.as<T>().begin(), array.as<T>().end()};
}

class CpuClient : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto plugin = Plugin::load(PluginKind::cpu);
    if (!plugin.ok()) {
      missing_ = plugin.status().message();
      return;
    }
    auto client = Client::create(*plugin, {.cpu_device_count = kDevices});
    ASSERT_TRUE(client.ok()) << client.status().message();
    client_ = new Client(*client);
  }
  static void TearDownTestSuite() {
    delete client_;
    client_ = nullptr;
  }
  void SetUp() override {
    if (client_ == nullptr) GTEST_SKIP() << "CPU plug-in: " << missing_;
  }

  static Executable compile(const std::string& text, int replicas = kDevices) {
    CompileOptions options;
    options.num_replicas = replicas;
    auto executable = client_->compile(text, options);
    LIGNUM_CHECK(executable.ok(), "{}\n{}", executable.status().message(), text);
    return *executable;
  }

  // f32 vectors in, one a device; the first output of each device back.
  static std::vector<std::vector<float>> run(const Executable& executable,
                                             const std::vector<std::vector<float>>& inputs) {
    std::vector<std::vector<HostView>> arguments;
    for (const auto& x : inputs) arguments.push_back({view(x, DType::f32, {static_cast<int64_t>(x.size())})});
    auto results = executable.run(arguments);
    LIGNUM_CHECK(results.ok(), "{}", results.status().message());
    std::vector<std::vector<float>> out;
    for (const auto& device : *results) out.push_back(values<float>(device[0]));
    return out;
  }

  static Client* client_;
  static std::string missing_;
};
Client* CpuClient::client_ = nullptr;
std::string CpuClient::missing_;

using Rows = std::vector<std::vector<float>>;

TEST_F(CpuClient, HasItsDevices) {
  EXPECT_EQ(client_->platform(), "cpu");
  ASSERT_EQ(client_->devices().size(), kDevices);
  for (int i = 0; i < kDevices; ++i) EXPECT_EQ(client_->devices()[i].id, i);
  EXPECT_GE(client_->plugin().api_minor(), 81);
  auto attributes = client_->plugin().attributes();
  ASSERT_TRUE(attributes.ok());
  EXPECT_TRUE(attributes->contains("stablehlo_current_version"));
}

TEST_F(CpuClient, AllReduce) {
  const Executable executable = compile(replica_module("%x: tensor<2xf32>", "tensor<2xf32>", R"(
    %r = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2xf32>) -> tensor<2xf32>
    return %r : tensor<2xf32>
)"));
  EXPECT_EQ(executable.num_devices(), kDevices);
  EXPECT_EQ(executable.num_outputs(), 1);
  EXPECT_EQ(run(executable, {{0, 10}, {1, 20}, {2, 30}, {3, 40}}), Rows(4, {6, 100}));
}

TEST_F(CpuClient, AllReduceInGroups) {
  const Executable executable = compile(replica_module("%x: tensor<1xf32>", "tensor<1xf32>", R"(
    %r = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<1xf32>) -> tensor<1xf32>
    return %r : tensor<1xf32>
)"));
  EXPECT_EQ(run(executable, {{1}, {10}, {100}, {1000}}), (Rows{{101}, {1010}, {101}, {1010}}));
}

TEST_F(CpuClient, AllGather) {
  const Executable executable = compile(replica_module("%x: tensor<2xf32>", "tensor<8xf32>", R"(
    %r = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}>
        : (tensor<2xf32>) -> tensor<8xf32>
    return %r : tensor<8xf32>
)"));
  EXPECT_EQ(run(executable, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}), Rows(4, {0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(CpuClient, ReduceScatter) {
  const Executable executable = compile(replica_module("%x: tensor<4xf32>", "tensor<1xf32>", R"(
    %r = "stablehlo.reduce_scatter"(%x) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<1xf32>
    return %r : tensor<1xf32>
)"));
  EXPECT_EQ(run(executable, {{1, 2, 3, 4}, {10, 20, 30, 40}, {100, 200, 300, 400}, {1000, 2000, 3000, 4000}}),
            (Rows{{1111}, {2222}, {3333}, {4444}}));
}

// A loop over slices of a stack, with a gather in its body: the form of a layer loop.
TEST_F(CpuClient, WhileOverStackedShards) {
  const Executable executable =
      compile(replica_module("%x: tensor<1xf32>, %w: tensor<3x1xf32>", "tensor<1xf32>", R"(
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %f0 = stablehlo.constant dense<0.0> : tensor<f32>
    %r:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<1xf32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %s = stablehlo.dynamic_slice %w, %i, %zero, sizes = [1, 1] : (tensor<3x1xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>
      %t = stablehlo.reshape %s : (tensor<1x1xf32>) -> tensor<1xf32>
      %g = "stablehlo.all_gather"(%t) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}>
          : (tensor<1xf32>) -> tensor<4xf32>
      %sum = stablehlo.reduce(%g init: %f0) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      %b = stablehlo.reshape %sum : (tensor<f32>) -> tensor<1xf32>
      %y = stablehlo.multiply %h, %b : tensor<1xf32>
      %i1 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %i1, %y : tensor<i32>, tensor<1xf32>
    }
    return %r#1 : tensor<1xf32>
)"));
  // Layer l's weight on device d is 10^l + d: gathered sums 10, 46, 406.
  std::vector<std::vector<float>> x;
  std::vector<std::vector<float>> w;
  for (int d = 0; d < kDevices; ++d) {
    x.push_back({static_cast<float>(d + 1)});
    w.push_back({1.0f + d, 10.0f + d, 100.0f + d});
  }
  std::vector<std::vector<HostView>> arguments;
  for (int d = 0; d < kDevices; ++d)
    arguments.push_back({view(x[d], DType::f32, {1}), view(w[d], DType::f32, {3, 1})});
  auto results = executable.run(arguments);
  ASSERT_TRUE(results.ok()) << results.status().message();
  for (int d = 0; d < kDevices; ++d)
    EXPECT_EQ(values<float>((*results)[d][0])[0], (d + 1) * 10.0f * 46.0f * 406.0f);
}

TEST_F(CpuClient, BuffersRoundTripEveryDType) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f8e4m3fn, DType::f8e5m2, DType::i32,
                      DType::u32, DType::i64, DType::u8, DType::pred}) {
    HostArray array{dtype, {2, 3}, std::vector<std::byte>(static_cast<size_t>(6 * dtype_size(dtype)))};
    for (int i = 0; i < 6; ++i)
      store_from_double(dtype, array.data.data(), i, dtype == DType::pred ? i % 2 : i + 1);
    auto buffer = client_->upload(2, array.view());
    ASSERT_TRUE(buffer.ok()) << dtype_name(dtype) << ": " << buffer.status().message();
    auto back = buffer->fetch();
    ASSERT_TRUE(back.ok()) << dtype_name(dtype) << ": " << back.status().message();
    EXPECT_EQ(back->dtype, dtype);
    EXPECT_EQ(back->dims, array.dims);
    EXPECT_EQ(back->data, array.data) << dtype_name(dtype);
  }
  auto empty = client_->upload(0, {DType::f32, {0, 4}, nullptr});
  ASSERT_TRUE(empty.ok()) << empty.status().message();
  EXPECT_EQ(empty->fetch()->data.size(), 0u);
  std::vector<std::byte> wrong(3);
  EXPECT_EQ(empty->fetch_into(wrong).code(), Code::user_error);
}

// A transposed result must arrive row-major whatever order the device keeps.
TEST_F(CpuClient, FetchesRowMajor) {
  const Executable executable = compile(
      "func.func @main(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {\n"
      "  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>\n"
      "  return %t : tensor<3x2xf32>\n}\n",
      1);
  const std::vector<float> x = {0, 1, 2, 3, 4, 5};
  auto results = executable.run({{view(x, DType::f32, {2, 3})}});
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ(values<float>((*results)[0][0]), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

// 1 + 2^-8 rounds to 1 in bf16. XLA's CPU skips that rounding before a conversion to f32, unless it is told
// not to.
TEST_F(CpuClient, RoundsBf16EdgesWhenAskedTo) {
  const std::string text =
      "func.func @main(%x: tensor<1xbf16>, %y: tensor<1xbf16>) -> tensor<1xf32> {\n"
      "  %s = stablehlo.add %x, %y : tensor<1xbf16>\n"
      "  %f = stablehlo.convert %s : (tensor<1xbf16>) -> tensor<1xf32>\n"
      "  return %f : tensor<1xf32>\n}\n";
  const std::vector<bf16> x = {bf16(1.0f)};
  const std::vector<bf16> y = {bf16(0.00390625f)};
  for (bool excess : {false, true}) {
    CompileOptions options;
    options.overrides["xla_allow_excess_precision"] = excess;
    auto executable = client_->compile(text, options);
    ASSERT_TRUE(executable.ok()) << executable.status().message();
    auto results = executable->run({{view(x, DType::bf16, {1}), view(y, DType::bf16, {1})}});
    ASSERT_TRUE(results.ok()) << results.status().message();
    EXPECT_EQ(values<float>((*results)[0][0])[0], excess ? 1.00390625f : 1.0f);
  }
}

// State stays on the devices over steps; each step's input gives its memory to the output.
TEST_F(CpuClient, TrainsOnDeviceWithDonatedState) {
  const Executable executable =
      compile(replica_module("%w: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %g: tensor<4xf32>",
                             "(tensor<4xf32>, tensor<f32>)", R"(
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %n = stablehlo.subtract %w, %g : tensor<4xf32>
    %s = stablehlo.reduce(%n init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %n, %s : tensor<4xf32>, tensor<f32>
)"));
  auto stats = executable.program().memory_stats();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_GE(stats->aliased, 16);

  std::vector<Buffer> state;
  std::vector<Buffer> gradient;
  for (int d = 0; d < kDevices; ++d) {
    const std::vector<float> w(4, 100.0f * (d + 1));
    const std::vector<float> g(4, 1.0f);
    auto w_buffer = client_->upload(executable.device(d), view(w, DType::f32, {4}));
    auto g_buffer = client_->upload(executable.device(d), view(g, DType::f32, {4}));
    ASSERT_TRUE(w_buffer.ok() && g_buffer.ok());
    state.push_back(std::move(*w_buffer));
    gradient.push_back(std::move(*g_buffer));
  }
  const int steps = 5;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<const Buffer*>> arguments;
    for (int d = 0; d < kDevices; ++d) arguments.push_back({&state[d], &gradient[d]});
    auto results = executable.execute(arguments);
    ASSERT_TRUE(results.ok()) << results.status().message();
    for (int d = 0; d < kDevices; ++d) {
      EXPECT_TRUE(state[d].deleted());
      EXPECT_FALSE(gradient[d].deleted());
      auto sum = (*results)[d][1].fetch();
      EXPECT_EQ(values<float>(*sum)[0], 4 * (100.0f * (d + 1) - (step + 1)));
    }
    if (step == 0) {
      auto again = executable.execute(arguments);
      EXPECT_EQ(again.status().code(), Code::user_error);
      EXPECT_NE(again.status().message().find("donated"), std::string::npos);
      EXPECT_NE(state[0].fetch().status().message().find("donated"), std::string::npos);
    }
    for (int d = 0; d < kDevices; ++d) state[d] = std::move((*results)[d][0]);
  }
  EXPECT_EQ(values<float>(*state[1].fetch()), std::vector<float>(4, 195.0f));

  // keep: the caller goes on using the argument.
  std::vector<std::vector<const Buffer*>> arguments;
  for (int d = 0; d < kDevices; ++d) arguments.push_back({&state[d], &gradient[d]});
  auto kept = executable.execute(arguments, {0});
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  EXPECT_FALSE(state[0].deleted());
  EXPECT_EQ(values<float>(*state[0].fetch())[0], 95.0f);
  EXPECT_EQ(values<float>(*(*kept)[0][0].fetch())[0], 94.0f);
}

TEST_F(CpuClient, HandlesOutliveTheClientInAnyOrder) {
  auto other = Client::create(client_->plugin(), {.cpu_device_count = 1});
  ASSERT_TRUE(other.ok()) << other.status().message();
  const std::vector<float> x = {3, 4};
  auto buffer = other->upload(0, view(x, DType::f32, {2}));
  ASSERT_TRUE(buffer.ok());
  other = user_error("the client is gone");
  EXPECT_EQ(values<float>(*buffer->fetch()), x);
}

TEST_F(CpuClient, ErrorsCarryThePluginsWords) {
  CompileOptions options;
  auto nonsense = client_->compile("func.func @main( {", options);
  ASSERT_FALSE(nonsense.ok());
  EXPECT_NE(nonsense.status().message().find("PJRT_Client_Compile"), std::string::npos);
  auto untyped = client_->compile(
      "func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n  return %x : tensor<2xf32>\n}\n", options);
  ASSERT_FALSE(untyped.ok());
  EXPECT_NE(untyped.status().message().find("tensor<3xf32>"), std::string::npos)
      << untyped.status().message();

  options.overrides["xla_no_such_flag"] = true;
  auto unknown = client_->compile("func.func @main() {\n  return\n}\n", options);
  EXPECT_EQ(unknown.status().code(), Code::user_error);
  EXPECT_NE(unknown.status().message().find("xla_no_such_flag"), std::string::npos)
      << unknown.status().message();

  options = {};
  options.num_replicas = kDevices + 1;
  auto many = client_->compile("func.func @main() {\n  return\n}\n", options);
  EXPECT_NE(many.status().message().find("asks for 5 devices, there are 4"), std::string::npos)
      << many.status().message();

  const std::vector<float> x = {1};
  EXPECT_EQ(client_->upload(kDevices, view(x, DType::f32, {1})).status().code(), Code::user_error);
  const Executable executable =
      compile(replica_module("%x: tensor<1xf32>", "tensor<1xf32>", "    return %x : tensor<1xf32>\n"));
  EXPECT_EQ(executable.run({{view(x, DType::f32, {1})}}).status().code(), Code::user_error);
  // Too few arguments, and one of another shape: refused, not read beyond.
  EXPECT_FALSE(executable.run(std::vector<std::vector<HostView>>(kDevices)).ok());
  const std::vector<float> three = {1, 2, 3};
  EXPECT_FALSE(
      executable.run(std::vector<std::vector<HostView>>(kDevices, {view(three, DType::f32, {3})})).ok());
}

// The loaded executable answers the same questions as one compiled ahead of time, as far as the plug-in
// knows.
TEST_F(CpuClient, OptimizedProgramDecodes) {
  const Executable executable = compile(
      "func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
      "  %d = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, "
      "tensor<8x8xf32>) -> tensor<8x8xf32>\n"
      "  return %d : tensor<8x8xf32>\n}\n",
      1);
  auto bytes = executable.program().optimized_program();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  auto program = HloProgram::decode(*bytes);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->count_dots(program->entry()), 1) << program->to_text();
  // What this plug-in does not know comes back as its refusal.
  auto cost = executable.program().cost_analysis();
  if (!cost.ok()) {
    EXPECT_NE(cost.status().message().find("UNIMPLEMENTED"), std::string::npos) << cost.status().message();
  }
}

TEST(FindPlugin, SaysWhatWasTried) {
  auto path = find_plugin(PluginKind::cpu, "/no/such/plugin.so");
  EXPECT_EQ(path.status().code(), Code::user_error);
  EXPECT_NE(path.status().message().find("plugin=/no/such/plugin.so"), std::string::npos);
  EXPECT_EQ(find_plugin(PluginKind::other).status().code(), Code::user_error);

  const char* before = std::getenv("LIGNUM_PJRT_CPU_PLUGIN");
  const std::string saved = before == nullptr ? "" : before;
  setenv("LIGNUM_PJRT_CPU_PLUGIN", "/nowhere/cpu.so", 1);
  auto variable = find_plugin(PluginKind::cpu);
  EXPECT_EQ(variable.status().code(), Code::user_error);
  EXPECT_NE(variable.status().message().find("LIGNUM_PJRT_CPU_PLUGIN=/nowhere/cpu.so"), std::string::npos);
  if (before == nullptr) {
    unsetenv("LIGNUM_PJRT_CPU_PLUGIN");
  } else {
    setenv("LIGNUM_PJRT_CPU_PLUGIN", saved.c_str(), 1);
  }
}

TEST(LoadPlugin, RefusesWhatIsNoPlugin) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "lignum_not_a_plugin.so";
  std::ofstream(file) << "text";
  auto text = Plugin::load(PluginKind::other, file.string());
  EXPECT_EQ(text.status().code(), Code::user_error);
  EXPECT_NE(text.status().message().find(file.filename().string()), std::string::npos);
  std::filesystem::remove(file);
  auto library = Plugin::load(PluginKind::other, "/lib/x86_64-linux-gnu/libm.so.6");
  EXPECT_EQ(library.status().code(), Code::user_error);
  EXPECT_NE(library.status().message().find("GetPjrtApi"), std::string::npos);
}

}  // namespace
}  // namespace lignum::pjrt
