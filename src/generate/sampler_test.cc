#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "generate/settings.h"

namespace lignum::generate {
namespace {

std::map<int32_t, double> distribution(const Sampling& s, const std::vector<float>& logits) {
  Sampler sampler(s);
  std::map<int32_t, double> out;
  const auto candidates = sampler.candidates(logits);
  for (const auto& c : candidates.value()) out[c.id] = c.probability;
  return out;
}
std::vector<int32_t> ids(const Sampling& s, const std::vector<float>& logits) {
  std::vector<int32_t> out;
  for (const auto& [id, p] : distribution(s, logits)) out.push_back(id);
  return out;
}

const std::vector<float> kLogits = {1, 3, 2, 3, -1, 2, 0.5F};

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLargest) {
  EXPECT_EQ(ids({.temperature = 0}, kLogits), std::vector<int32_t>{1});
  Sampler s({.temperature = 0, .seed = 3});
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(s.sample(kLogits, i, i).value(), 1);
}

TEST(Sampler, ProbabilitiesAreTheSoftmax) {
  const auto p = distribution({.temperature = 0.5}, kLogits);
  double sum = 0;
  for (const float x : kLogits) sum += std::exp(x / 0.5);
  ASSERT_EQ(p.size(), kLogits.size());
  for (size_t i = 0; i < kLogits.size(); ++i)
    EXPECT_NEAR(p.at(static_cast<int32_t>(i)), std::exp(kLogits[i] / 0.5) / sum, 1e-12);
}

TEST(Sampler, TopKKeepsWhatEqualsTheKth) {
  EXPECT_EQ(ids({.top_k = 1}, kLogits), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(ids({.top_k = 2}, kLogits), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(ids({.top_k = 3}, kLogits), (std::vector<int32_t>{1, 2, 3, 5}));
  EXPECT_EQ(ids({.top_k = 99}, kLogits).size(), kLogits.size());
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> quarters = {std::log(0.5F), std::log(0.25F), std::log(0.125F), std::log(0.125F)};
  EXPECT_EQ(ids({.top_p = 1e-9}, quarters), std::vector<int32_t>{0});
  EXPECT_EQ(ids({.top_p = 0.499}, quarters), std::vector<int32_t>{0});
  EXPECT_EQ(ids({.top_p = 0.6}, quarters), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ids({.top_p = 0.8}, quarters), (std::vector<int32_t>{0, 1, 2})) << "of equals the lower id stays";
  EXPECT_EQ(ids({.top_p = 0.9}, quarters), (std::vector<int32_t>{0, 1, 2, 3}));
  // Temperature comes first, and top_p sees what top_k has left.
  EXPECT_EQ(ids({.temperature = 100, .top_p = 0.3}, quarters), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ids({.top_k = 2, .top_p = 0.7}, quarters), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ids({.top_k = 2, .top_p = 0.66}, quarters), std::vector<int32_t>{0});
}

TEST(Sampler, MaskedLogitsAreNeverDrawn) {
  const std::vector<float> logits = {-INFINITY, 1, -INFINITY};
  EXPECT_EQ(ids({}, logits), std::vector<int32_t>{1});
  Sampler s({});
  EXPECT_EQ(s.sample(std::vector<float>{1, NAN}, 0, 0).status().code(), Code::check_failed);
  EXPECT_EQ(s.sample(std::vector<float>{-INFINITY}, 0, 0).status().code(), Code::check_failed);
  EXPECT_EQ(s.sample(std::vector<float>{1, INFINITY}, 0, 0).status().code(), Code::check_failed);
}

// Pearson's statistic of 20000 draws: its 0.999 quantile for 9 degrees of freedom is 27.88. The seed is
// fixed, so the test passes always or never.
TEST(Sampler, DrawsFollowTheDistribution) {
  std::vector<float> logits;
  for (int i = 0; i < 12; ++i) logits.push_back(static_cast<float>((i * 5) % 12) * 0.3F);
  const Sampling s{.temperature = 0.9, .top_k = 10, .seed = 2};
  const auto want = distribution(s, logits);
  ASSERT_EQ(want.size(), 10u);
  Sampler sampler(s);
  constexpr int kDraws = 20000;
  for (const bool by_row : {false, true}) {
    std::map<int32_t, int> drawn;
    for (int i = 0; i < kDraws; ++i) ++drawn[sampler.sample(logits, by_row ? i : 0, by_row ? 0 : i).value()];
    double statistic = 0;
    for (const auto& [id, p] : want) statistic += std::pow(drawn[id] - kDraws * p, 2) / (kDraws * p);
    EXPECT_EQ(drawn.size(), want.size());
    EXPECT_LT(statistic, 27.88) << (by_row ? "over rows" : "over the tokens of a row");
  }
}

TEST(Settings, ReadsItsKeys) {
  const Settings s = read_settings({"temperature=0.5", "top_k=7", "top_p=0.25", "seed=9", "max_new_tokens=3",
                                    "eos_ids=[4,2]", "dtype=bfloat16", "threads=2", "prefill_tokens=16"})
                         .value();
  EXPECT_EQ(s.generate.sampling.temperature, 0.5);
  EXPECT_EQ(s.generate.sampling.top_k, 7);
  EXPECT_EQ(s.generate.sampling.top_p, 0.25);
  EXPECT_EQ(s.generate.sampling.seed, 9u);
  EXPECT_EQ(s.generate.max_new_tokens, 3);
  EXPECT_EQ(s.eos_ids.value(), (std::vector<int32_t>{4, 2}));
  EXPECT_EQ(s.dtype, DType::bf16);
  EXPECT_EQ(s.threads, 2);
  EXPECT_EQ(s.prefill_tokens, 16);
  EXPECT_FALSE(read_settings({}).value().eos_ids.has_value());
  EXPECT_TRUE(read_settings({"eos_ids=[]"}).value().eos_ids->empty());
}

TEST(Settings, HostileWordsAreNamed) {
  for (const auto& [word, said] : std::map<std::string, std::string>{
           {"top_p=0", "top_p=0"},
           {"top_p=1.5", "top_p=1.5"},
           {"top_p=nan", "top_p=nan"},
           {"temperature=-1", "temperature=-1"},
           {"temperature=inf", "temperature=inf"},
           {"top_k=-1", "top_k=-1"},
           {"max_new_tokens=0", "max_new_tokens=0"},
           {"max_new_tokens=many", "max_new_tokens=many"},
           {"prefill_tokens=0", "prefill_tokens=0"},
           {"eos_ids=[a]", "a"},
           {"temprature=1", "nearest: 'temperature'"},
           {"steps=5", "unknown key 'steps'"},
           {"dtype=float16", "dtype=float16"},
           {"isa=mmx", "isa=mmx"},
           {"word", "key=value"},
       }) {
    const Result<Settings> s = read_settings({word});
    ASSERT_FALSE(s.ok()) << word;
    EXPECT_EQ(s.status().code(), Code::user_error) << word;
    EXPECT_NE(s.status().message().find(said), std::string::npos) << s.status().message();
  }
  EXPECT_NE(read_settings({"seed=1", "seed=2"}).status().message().find("twice"), std::string::npos);
}

}  // namespace
}  // namespace lignum::generate
