#include "train/step_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace lignum::train {
namespace {

using Verdict = StepPolicy::Verdict;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

StepPolicy with(const std::vector<std::string>& words, PolicyState state = {}) {
  const auto config = config::Config::parse("", "", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return {*config, std::move(state)};
}

TEST(StepPolicy, ASpikeIsFarAboveTheStepsBefore) {
  const std::vector<std::string> words = {"skip_step_on_spikes=true", "skip_step_interval=8",
                                          "skip_step_scaling_factor=3"};
  StepPolicy p = with(words);
  for (int k = 0; k < 4; ++k) {
    EXPECT_EQ(p.limits().loss, kInf) << k;  // half of the interval is not there yet
    EXPECT_EQ(p.judge(k, static_cast<float>(k + 1), 2).verdict, Verdict::update);
  }
  // 1, 2, 3, 4: mean 2.5, squared deviations 5, over n - 1.
  EXPECT_FLOAT_EQ(p.limits().loss, static_cast<float>(2.5 + 3 * std::sqrt(5.0 / 3)));
  EXPECT_EQ(p.limits().grad_norm, 2);
  EXPECT_EQ(p.judge(4, 6.25F, 2).verdict, Verdict::update);
  const auto loss = p.judge(5, 100, 2), norm = p.judge(6, 3, 2.5F);
  EXPECT_EQ(loss.verdict, Verdict::skip);
  EXPECT_EQ(loss.why.substr(0, 15), "loss 100 above ");
  EXPECT_EQ(norm.verdict, Verdict::skip);
  EXPECT_EQ(norm.why.substr(0, 20), "grad_norm 2.5 above ");
  EXPECT_EQ(p.updates(7), 5);
  EXPECT_EQ(p.state().newest[1].step, 6);
  // A skipped step counts among those before, so that a new level becomes the usual; eight are kept.
  for (int k = 7; k < 20; ++k) p.judge(k, 100, 2);
  EXPECT_EQ(p.state().losses, std::vector<float>(8, 100));
  EXPECT_EQ(p.judge(20, 100, 2).verdict, Verdict::update);
  EXPECT_EQ(with({}).limits().loss, kInf);
}

TEST(StepPolicy, WhatACheckpointKeepsDecidesAlike) {
  const std::vector<std::string> words = {"skip_step_on_spikes=true", "skip_step_interval=5",
                                          "skip_step_scaling_factor=0.1"};
  StepPolicy whole = with(words);
  for (int k = 0; k < 40; ++k) {
    const std::string saved = to_json(whole.state()).dump();
    StepPolicy resumed = with(words, *policy_state_from(nlohmann::json::parse(saved), "state"));
    const float loss = 2 + std::sin(static_cast<float>(k)), norm = 1 + std::cos(static_cast<float>(3 * k));
    EXPECT_EQ(resumed.limits().loss, whole.limits().loss);
    EXPECT_EQ(resumed.limits().grad_norm, whole.limits().grad_norm);
    const auto a = whole.judge(k, loss, norm), b = resumed.judge(k, loss, norm);
    EXPECT_EQ(a.verdict, b.verdict);
    EXPECT_EQ(a.why, b.why);
    EXPECT_EQ(to_json(resumed.state()), to_json(whole.state()));
  }
  EXPECT_GT(whole.state().skipped_steps, 5);
  EXPECT_EQ(to_json(*policy_state_from(nlohmann::json::object(), "state")), to_json(PolicyState()));
}

TEST(StepPolicy, NanAndInfinityAbortOrAreSkipped) {
  struct Case {
    float loss, norm;
    bool nan;
  };
  for (const Case& c :
       {Case{kNaN, 1, true}, {1, kNaN, true}, {kInf, kNaN, true}, {kInf, 1, false}, {1, -kInf, false}}) {
    EXPECT_EQ(with({}).judge(0, c.loss, c.norm).verdict, Verdict::abort);
    StepPolicy nan = with({"abort_on_nan_loss=false"}), inf = with({"abort_on_inf_loss=false"});
    EXPECT_EQ(nan.judge(0, c.loss, c.norm).verdict, c.nan ? Verdict::skip : Verdict::abort);
    EXPECT_EQ(inf.judge(0, c.loss, c.norm).verdict, c.nan ? Verdict::abort : Verdict::skip);
    EXPECT_EQ(nan.state().skipped_steps + inf.state().skipped_steps, 1);
    EXPECT_TRUE(nan.state().losses.empty());
  }
  StepPolicy p = with({"abort_on_nan_loss=false"});
  for (int k = 0; k < 150; ++k) p.judge(k, kNaN, 1);
  EXPECT_EQ(p.state().skipped_steps, 150);
  EXPECT_EQ(p.state().newest.size(), PolicyState::kNewest);
  EXPECT_EQ(p.state().newest.back().step, 149);
}

TEST(StepPolicy, HeldOutLossEndsARun) {
  StepPolicy target = with({"target_eval_loss=3", "eval_interval=1"});
  target.add_evaluation(1, 3.01);
  EXPECT_EQ(target.end_reason(), "");
  target.add_evaluation(2, 3);
  EXPECT_EQ(target.end_reason(), "held-out loss 3.0000 reaches target_eval_loss=3");

  StepPolicy patient = with({"eval_patience=2", "eval_interval=10"});
  int64_t step = 0;
  for (const double loss : {5.0, 6.0, 4.5, 4.5}) patient.add_evaluation(step += 10, loss);
  EXPECT_EQ(patient.end_reason(), "");
  patient.add_evaluation(45, 9);  // a run's end
  patient.add_evaluation(40, 9);  // counted already
  EXPECT_EQ(patient.end_reason(), "");
  EXPECT_FALSE(patient.owes_evaluation(40));
  EXPECT_TRUE(patient.owes_evaluation(50));
  patient.add_evaluation(50, std::numeric_limits<double>::quiet_NaN());
  EXPECT_NE(patient.end_reason().find("eval_patience=2"), std::string::npos);
  EXPECT_EQ(with({"eval_patience=3", "eval_interval=10"}, patient.state()).end_reason(), "");

  StepPolicy neither = with({"eval_interval=1"});
  for (int k = 1; k < 10; ++k) neither.add_evaluation(k, 0);
  EXPECT_EQ(neither.end_reason(), "");
}

}  // namespace
}  // namespace lignum::train
