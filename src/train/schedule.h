// The learning rate of a step, as MaxText's create_learning_rate_schedule with lr_schedule_type=cosine
// (2026-08):
//   W = int(N * warmup_steps_fraction), N = learning_rate_schedule_steps, C = N - W
//   step < W:        peak * step / W                          (step 0 has learning rate 0)
//   W <= step < N:   peak * (a + final_fraction * (1 - a)),   a = (cos(pi * (step - W) / (C - 1)) + 1) / 2; a
//   = 0 if C = 1 step >= N:       0
// Step N - 1 has exactly peak * final_fraction.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace lignum::train {

struct LearningRateSchedule {
  double peak = 0;
  double final_fraction = 0;
  int64_t warmup_steps = 0;    // W
  int64_t schedule_steps = 0;  // N >= W

  static LearningRateSchedule from(const config::Config& config);
  double at(int64_t step) const;  // step >= 0
};

}  // namespace lignum::train
