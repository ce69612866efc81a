// What a run does about a step that went wrong, and when it ends before `steps`. All of it follows from
// losses and gradient norms, the same numbers on every rank, and from what a checkpoint keeps: so a resume
// decides as an uninterrupted run does.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace lignum::train {

// What a checkpoint keeps.
struct PolicyState {
  struct Skipped {
    int64_t step = 0;
    std::string why;  // "loss 9.1 above 5.2"
  };
  int64_t skipped_steps = 0;              // steps whose update was left out
  std::vector<Skipped> newest;            // the last of these, at most kNewest, ascending
  std::vector<float> losses, grad_norms;  // of the last skip_step_interval finite steps, oldest first
  std::optional<double> best_eval_loss;
  int64_t evals_since_best = 0;
  int64_t evaluated_step = 0;  // of the newest evaluation that counts
  static constexpr size_t kNewest = 100;
};
nlohmann::json to_json(const PolicyState&);
// A field that is not there has its default: an older checkpoint. `what` is named in errors.
Result<PolicyState> policy_state_from(const nlohmann::json&, const std::string& what);

class StepPolicy {
 public:
  StepPolicy() = default;
  StepPolicy(const config::Config& config, PolicyState state);

  // With skip_step_on_spikes: what the next step's loss and gradient norm may be at most, mean + factor x
  // standard deviation (of n - 1) of the last skip_step_interval steps, skipped ones among them, so that a
  // lasting change becomes the usual. +infinity without it, and before half of them, and two, are there.
  struct Limits {
    float loss, grad_norm;
  };
  Limits limits() const;

  enum class Verdict : uint8_t { update, skip, abort };
  struct Judgement {
    Verdict verdict = Verdict::update;
    std::string why;  // unless update
  };
  // What became of a step, whose update was left out where loss or norm was above limits() or not finite (see
  // passes/update.h). NaN: abort_on_nan_loss aborts, else the step is skipped; infinity: abort_on_inf_loss.
  // To be called once a step, with the limits that it had.
  Judgement judge(int64_t step, float loss, float grad_norm);

  // Updates done in `steps` steps: what the optimizer counts by.
  int64_t updates(int64_t steps) const { return steps - state_.skipped_steps; }

  // The held-out loss after `step` steps. Those of every eval_interval steps count; one at a run's end is
  // where a longer run has none.
  void add_evaluation(int64_t step, double loss);
  // Whether a run that stopped after `step` steps did so just before an evaluation that counts.
  bool owes_evaluation(int64_t step) const;
  // Why the run is over, by target_eval_loss or eval_patience; "" while it is not.
  std::string end_reason() const;

  const PolicyState& state() const { return state_; }

 private:
  bool abort_on_nan_ = true, abort_on_inf_ = true, skip_spikes_ = false;
  size_t interval_ = 2;
  double factor_ = 0, target_ = 0;
  int64_t patience_ = 0, eval_interval_ = -1;
  PolicyState state_;
};

}  // namespace lignum::train
