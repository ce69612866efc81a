#include "kernels/isa.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/math.h"

namespace lignum::kernels {
namespace {

TEST(Isa, NamesRoundTrip) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_EQ(isa_from_name("sse9"), std::nullopt);
}

TEST(Isa, ScalarIsAlwaysThereAndLast) {
  ASSERT_FALSE(available_isas().empty());
  EXPECT_EQ(available_isas().back(), Isa::scalar);
  EXPECT_EQ(available_isas().front(), best_isa());
}

TEST(Isa, ChoosesTheBestUnlessToldOtherwise) {
  EXPECT_EQ(choose(std::nullopt)->isa, best_isa());
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const Result<Choice> choice = choose(isa);
    if (isa_refusal(isa) == nullptr) {
      EXPECT_EQ(choice->isa, isa);
    } else {
      EXPECT_EQ(choice.status().code(), Code::user_error);
      EXPECT_NE(choice.status().message().find(isa_refusal(isa)), std::string::npos);
    }
  }
}

TEST(Math, ExpIsWithinOneUlp) {
  double worst = 0;
  float at = 0;
  // A prime step through all bit patterns.
  for (uint64_t u = 0; u < (1ull << 32); u += 4099) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(u));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(exp_of(x)));
      continue;
    }
    const float y = exp_of(x);
    const double e = std::exp(static_cast<double>(x));
    if (e > static_cast<double>(std::numeric_limits<float>::max())) {
      EXPECT_TRUE(std::isinf(y) || std::fabs(x - 88.7228f) < 1e-4f) << x;
      continue;
    }
    int exponent = 0;
    (void)std::frexp(e, &exponent);
    const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
    if (const double error = std::fabs(static_cast<double>(y) - e) / ulp; error > worst)
      worst = error, at = x;
  }
  EXPECT_LE(worst, 1.0) << "at " << at;
}

TEST(Math, ExpAtTheEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
  EXPECT_EQ(exp_of(-kInfinity), 0.0f);
  EXPECT_EQ(exp_of(kInfinity), kInfinity);
  EXPECT_EQ(exp_of(1000.0f), kInfinity);
  EXPECT_EQ(exp_of(-1000.0f), 0.0f);
  EXPECT_GT(exp_of(-103.0f), 0.0f);
}

}  // namespace
}  // namespace lignum::kernels
