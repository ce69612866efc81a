// The tiny models of tests/golden against what PyTorch computed for them, through the same code as `lignum
// verify-model`.
#include <gtest/gtest.h>

#include "train/verify_model.h"

namespace lignum::train {
namespace {

class Golden : public testing::TestWithParam<std::string> {};

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

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("llama_rope_llama3", "llama_tied_linear", "llama_yarn", "qwen3",
                                         "mistral_window", "gemma2", "gemma3"),
                         [](const auto& info) { return info.param; });

TEST(Golden, ErrorsNameWhatIsMissing) {
  const auto absent = verify_model(LIGNUM_SOURCE_DIR "/tests/golden/absent", {});
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), Code::user_error);
  EXPECT_NE(absent.status().message().find("absent"), std::string::npos);
}

}  // namespace
}  // namespace lignum::train
