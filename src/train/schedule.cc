#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace lignum::train {

LearningRateSchedule LearningRateSchedule::from(const config::Config& config) {
  LearningRateSchedule schedule;
  schedule.peak = config.real("learning_rate");
  schedule.final_fraction = config.real("learning_rate_final_fraction");
  schedule.schedule_steps = config.schedule_steps();
  const auto part = [&](std::string_view fraction) {
    return static_cast<int64_t>(static_cast<double>(schedule.schedule_steps) * config.real(fraction));
  };
  schedule.warmup_steps = part("warmup_steps_fraction");
  const bool wsd = config.text("lr_schedule_type") == "wsd";
  schedule.decay_steps =
      wsd ? part("wsd_decay_steps_fraction") : schedule.schedule_steps - schedule.warmup_steps;
  schedule.linear_decay = wsd && config.text("wsd_decay_style") == "linear";
  return schedule;
}

double LearningRateSchedule::at(int64_t step) const {
  LIGNUM_CHECK(step >= 0 && warmup_steps + decay_steps <= schedule_steps,
               "step {}, warm-up {}, decay {} of {}", step, warmup_steps, decay_steps, schedule_steps);
  if (step < warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (step >= schedule_steps) return 0;
  const int64_t decayed = step - (schedule_steps - decay_steps);
  if (decayed < 0) return peak;
  const double part =
      decay_steps > 1 ? static_cast<double>(decayed) / static_cast<double>(decay_steps - 1) : 1.0;
  const double a = linear_decay ? 1 - part : 0.5 * (std::cos(std::numbers::pi * part) + 1);
  return peak * (a + final_fraction * (1 - a));
}

}  // namespace lignum::train
