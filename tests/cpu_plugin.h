// Tests that run on XLA's CPU plug-in.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "pjrt/client.h"
#include "pjrt/plugin.h"

namespace lignum::tests {

// One client for the tests of a suite; they are skipped where there is no plug-in.
template <int kClientDevices>
class CpuPlugin : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto plugin = pjrt::Plugin::load(pjrt::PluginKind::cpu);
    if (!plugin.ok()) {
      missing_ = plugin.status().message();
      return;
    }
    auto client = pjrt::Client::create(*plugin, {.cpu_device_count = kClientDevices});
    ASSERT_TRUE(client.ok()) << client.status().message();
    client_.emplace(*client);
  }
  static void TearDownTestSuite() { client_.reset(); }
  void SetUp() override {
    if (!client_) GTEST_SKIP() << "CPU plug-in: " << missing_;
  }

  inline static std::optional<pjrt::Client> client_;
  inline static std::string missing_;
};

}  // namespace lignum::tests
