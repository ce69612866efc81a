#include "exec/copy_engine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "passes/memory.h"

namespace lignum::exec {
namespace {

constexpr int64_t kAlign = passes::kHostAlign;

std::string folder() { return testing::TempDir(); }

std::vector<std::byte> noise(int64_t bytes, uint32_t seed) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  for (std::byte& b : out) {
    seed = seed * 1664525 + 1013904223;  // the quick generator of "Numerical Recipes"
    b = static_cast<std::byte>(seed >> 24);
  }
  return out;
}

class Copies : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static std::unique_ptr<CopyEngine> engine(int64_t bytes) {
    const auto [file, overlap] = GetParam();
    auto memory = HostMemory::create(file ? "file:" + folder() : "ram", bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    auto made = CopyEngine::create(std::move(memory).value(), {.overlap = overlap, .capacity = 4});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }
};
INSTANTIATE_TEST_SUITE_P(Where, Copies, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "File" : "Ram") +
                                  (std::get<1>(info.param) ? "Thread" : "Caller");
                         });

// Rows of odd lengths, among them none and more than one piece of a file, out and back in reverse.
TEST_P(Copies, WhatComesBackIsWhatWasMoved) {
  const std::vector<int64_t> lengths = {1, 4095, 4096, 4097, 0, 70000, (4 << 20) + 12};
  std::vector<int64_t> at;
  int64_t size = 0;
  for (const int64_t n : lengths) {
    at.push_back(size);
    size += (n + kAlign - 1) / kAlign * kAlign;
  }
  const auto copies = engine(size);
  std::vector<std::vector<std::byte>> rows, back;
  for (size_t i = 0; i < lengths.size(); ++i) {
    rows.push_back(noise(lengths[i], static_cast<uint32_t>(i)));
    back.emplace_back(rows.back().size());
  }
  comm::Timing timing;
  for (size_t i = 0; i < rows.size(); ++i)
    copies->submit({true, rows[i].data(), at[i], lengths[i]}, i == 0 ? &timing : nullptr);
  // Fetched behind what is still on its way out.
  std::vector<comm::Ticket> tickets(rows.size());
  for (size_t i = rows.size(); i-- > 0;)
    tickets[i] = copies->submit({false, back[i].data(), at[i], lengths[i]});
  for (size_t i = 0; i < rows.size(); ++i) {
    const Status done = copies->wait(tickets[i]);
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(rows[i], back[i]) << lengths[i] << " bytes";
  }
  EXPECT_GE(timing.end_ns, timing.start_ns);
  EXPECT_GT(timing.start_ns, 0);
  // A row that is written again has its new bytes.
  const auto other = noise(lengths[3], 99);
  copies->submit({true, const_cast<std::byte*>(other.data()), at[3], lengths[3]});
  ASSERT_TRUE(copies->wait(copies->submit({false, back[3].data(), at[3], lengths[3]})).ok());
  EXPECT_EQ(back[3], other);
  EXPECT_TRUE(copies->drain().ok());
}

TEST(HostMemory, LeavesNoFileBehind) {
  const std::string own = folder() + "/host";
  std::filesystem::create_directory(own);
  {
    const auto memory = HostMemory::create("file:" + own, kAlign);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_EQ((*memory)->describe().find(own), 0u);
    EXPECT_TRUE(std::filesystem::is_empty(own));
  }
  EXPECT_TRUE(std::filesystem::is_empty(own));
  std::filesystem::remove(own);
}

TEST(HostMemory, WhatCannotBeIsSaid) {
  const auto refusal = [](const std::string& where, int64_t bytes) {
    const auto memory = HostMemory::create(where, bytes);
    EXPECT_FALSE(memory.ok());
    EXPECT_EQ(memory.status().code(), Code::user_error);
    return memory.status().message();
  };
  EXPECT_NE(refusal("disk", kAlign).find("host_memory=disk: it is ram, or file:FOLDER"), std::string::npos);
  EXPECT_NE(refusal("file:/no/such/folder", kAlign).find("host_memory=file:/no/such/folder"),
            std::string::npos);
  EXPECT_NE(refusal("ram", int64_t{1} << 50).find("host_memory=file:FOLDER"), std::string::npos);
  EXPECT_NE(refusal("file:" + folder(), int64_t{1} << 55).find("room"), std::string::npos);
}

}  // namespace
}  // namespace lignum::exec
