#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace lignum::train {

LearningRateSchedule LearningRateSchedule::from(const config::Config& config) {
  LearningRateSchedule schedule;
  schedule.peak = config.real("learning_rate");
  schedule.final_fraction = config.real("learning_rate_final_fraction");
  schedule.schedule_steps = config.schedule_steps();
  schedule.warmup_steps = static_cast<int64_t>(static_cast<double>(schedule.schedule_steps) *
                                               config.real("warmup_steps_fraction"));
  return schedule;
}

double LearningRateSchedule::at(int64_t step) const {
  LIGNUM_CHECK(step >= 0 && warmup_steps <= schedule_steps, "step {}, warm-up {} of {}", step, warmup_steps,
               schedule_steps);
  if (step < warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (step >= schedule_steps) return 0;
  const int64_t cosine_steps = schedule_steps - warmup_steps;
  const double part = cosine_steps > 1
                          ? static_cast<double>(step - warmup_steps) / static_cast<double>(cosine_steps - 1)
                          : 1.0;
  const double a = 0.5 * (std::cos(std::numbers::pi * part) + 1);
  return peak * (a + final_fraction * (1 - a));
}

}  // namespace lignum::train
