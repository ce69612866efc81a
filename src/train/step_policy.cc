#include "train/step_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "config/hf_fields.h"

namespace lignum::train {
namespace {

using nlohmann::json;

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

float limit_of(const std::vector<float>& values, size_t least, double factor) {
  if (values.size() < least) return kNoLimit;
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const float x : values) sum += static_cast<double>(x);
  const double mean = sum / n;
  for (const float x : values) squares += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean);
  return static_cast<float>(mean + factor * std::sqrt(squares / (n - 1)));
}

void push(std::vector<float>& values, float x, size_t most) {
  if (values.size() >= most)
    values.erase(values.begin(), values.end() - static_cast<std::ptrdiff_t>(most) + 1);
  values.push_back(x);
}

}  // namespace

json to_json(const PolicyState& s) {
  json newest = json::array();
  for (const PolicyState::Skipped& k : s.newest) newest.push_back({{"step", k.step}, {"why", k.why}});
  json j = {{"skipped_steps", s.skipped_steps},
            {"skipped", newest},
            {"losses", s.losses},
            {"grad_norms", s.grad_norms},
            {"evals_since_best", s.evals_since_best},
            {"evaluated_step", s.evaluated_step}};
  if (s.best_eval_loss) j["best_eval_loss"] = *s.best_eval_loss;
  return j;
}

Result<PolicyState> policy_state_from(const json& j, const std::string& what) {
  if (!j.is_object()) return user_error("{} is no JSON object", what);
  config::Fields f(j, what);
  PolicyState s;
  s.skipped_steps = f.integer("skipped_steps", 0);
  if (f.has("skipped")) {
    for (const json& k : f.objects("skipped")) {
      config::Fields skipped(k, what + ": skipped");
      s.newest.push_back({skipped.integer("step", {}), skipped.text("why", {})});
      f.fail(skipped.status());
    }
  }
  const auto floats = [&](const char* name, std::vector<float>& to) {
    if (!f.has(name)) return;
    for (const double x : f.reals(name)) to.push_back(static_cast<float>(x));
  };
  floats("losses", s.losses);
  floats("grad_norms", s.grad_norms);
  s.best_eval_loss = f.optional_real("best_eval_loss");
  s.evals_since_best = f.integer("evals_since_best", 0);
  s.evaluated_step = f.integer("evaluated_step", 0);
  LIGNUM_RETURN_IF_ERROR(f.status());
  return s;
}

StepPolicy::StepPolicy(const config::Config& config, PolicyState state)
    : abort_on_nan_(config.boolean("abort_on_nan_loss")),
      abort_on_inf_(config.boolean("abort_on_inf_loss")),
      skip_spikes_(config.boolean("skip_step_on_spikes")),
      interval_(static_cast<size_t>(config.integer("skip_step_interval"))),
      factor_(config.real("skip_step_scaling_factor")),
      target_(config.real("target_eval_loss")),
      patience_(config.integer("eval_patience")),
      eval_interval_(config.integer("eval_interval")),
      state_(std::move(state)) {}

StepPolicy::Limits StepPolicy::limits() const {
  if (!skip_spikes_) return {kNoLimit, kNoLimit};
  const size_t least = std::max<size_t>(2, interval_ / 2);
  return {limit_of(state_.losses, least, factor_), limit_of(state_.grad_norms, least, factor_)};
}

StepPolicy::Judgement StepPolicy::judge(int64_t step, float loss, float grad_norm) {
  const auto skipped = [&](std::string why) {
    ++state_.skipped_steps;
    state_.newest.push_back({step, why});
    if (state_.newest.size() > PolicyState::kNewest) state_.newest.erase(state_.newest.begin());
    return Judgement{Verdict::skip, std::move(why)};
  };
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
    const bool nan = std::isnan(loss) || std::isnan(grad_norm);
    std::string why = fmt::format("loss {}, grad_norm {}", loss, grad_norm);
    return (nan ? abort_on_nan_ : abort_on_inf_) ? Judgement{Verdict::abort, std::move(why)}
                                                 : skipped(std::move(why));
  }
  const Limits limit = limits();
  if (skip_spikes_) {
    push(state_.losses, loss, interval_);
    push(state_.grad_norms, grad_norm, interval_);
  }
  if (loss > limit.loss) return skipped(fmt::format("loss {} above {}", loss, limit.loss));
  if (grad_norm > limit.grad_norm)
    return skipped(fmt::format("grad_norm {} above {}", grad_norm, limit.grad_norm));
  return {};
}

bool StepPolicy::owes_evaluation(int64_t step) const {
  return eval_interval_ > 0 && step > state_.evaluated_step && step % eval_interval_ == 0;
}

void StepPolicy::add_evaluation(int64_t step, double loss) {
  if (!owes_evaluation(step)) return;
  state_.evaluated_step = step;
  if (std::isfinite(loss) && (!state_.best_eval_loss || loss < *state_.best_eval_loss)) {
    state_.best_eval_loss = loss;
    state_.evals_since_best = 0;
  } else {
    ++state_.evals_since_best;
  }
}

std::string StepPolicy::end_reason() const {
  if (target_ > 0 && state_.best_eval_loss && *state_.best_eval_loss <= target_)
    return fmt::format("held-out loss {:.4f} reaches target_eval_loss={}", *state_.best_eval_loss, target_);
  if (patience_ > 0 && state_.evals_since_best >= patience_)
    return fmt::format("{} evaluation{} without a new lowest held-out loss (eval_patience={})",
                       state_.evals_since_best, state_.evals_since_best == 1 ? "" : "s", patience_);
  return "";
}

}  // namespace lignum::train
