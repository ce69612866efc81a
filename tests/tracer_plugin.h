// Tests that run steps natively and through XLA's CPU plug-in.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "pjrt/client.h"
#include "pjrt/plugin.h"
#include "quick_compile.h"
#include "tracer.h"
#include "train/replicas.h"

namespace lignum::tracer {

// One client for the tests of a suite; they are skipped where there is no plug-in.
template <int kDevices>
class OnCpuPlugin : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto plugin = pjrt::Plugin::load(pjrt::PluginKind::cpu);
    if (!plugin.ok()) {
      missing_ = plugin.status().message();
      return;
    }
    auto client = pjrt::Client::create(*plugin, {.cpu_device_count = kDevices});
    ASSERT_TRUE(client.ok()) << client.status().message();
    client_.emplace(*client);
  }
  static void TearDownTestSuite() { client_.reset(); }
  void SetUp() override {
    if (!client_) GTEST_SKIP() << "CPU plug-in: " << missing_;
  }

  static Result<pjrt::LoadedStep> load(const Step& step, const pjrt::PrintOptions& options) {
    return pjrt::load_step(*client_, *step.program.local, options, kQuickCompile);
  }
  // The step natively and through XLA, from the same shards.
  static Status on_both(const Step& step) {
    LIGNUM_ASSIGN_OR_RETURN(const NativeRun native, run_native(step));
    LIGNUM_ASSIGN_OR_RETURN(const pjrt::LoadedStep loaded,
                            load(step, train::print_options(step.options.mesh)));
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<Arrays> outputs, run_loaded(loaded, params_of(native)));
    return compare(assemble(step, outputs_of(native)), assemble(step, outputs));
  }

  inline static std::optional<pjrt::Client> client_;
  inline static std::string missing_;
};

}  // namespace lignum::tracer
