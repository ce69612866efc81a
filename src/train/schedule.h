// The learning rate of a step, as MaxText's create_learning_rate_schedule (2026-08):
//   N = learning_rate_schedule_steps, W = int(N * warmup_steps_fraction), D the steps that decay: N - W with
//   lr_schedule_type=cosine, int(N * wsd_decay_steps_fraction) with wsd
//   step < W:           peak * step / W                          (step 0 has learning rate 0)
//   W <= step < N - D:  peak
//   N - D <= step < N:  peak * (a + final_fraction * (1 - a)), a = (cos(pi * x) + 1) / 2, or 1 - x where
//                       wsd_decay_style=linear; x = (step - (N - D)) / (D - 1), 1 if D = 1
//   step >= N:          0
// Where D > 0, step N - 1 has exactly peak * final_fraction.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace lignum::train {

struct LearningRateSchedule {
  double peak = 0;
  double final_fraction = 0;
  bool linear_decay = false;
  int64_t warmup_steps = 0;    // W
  int64_t decay_steps = 0;     // D <= N - W
  int64_t schedule_steps = 0;  // N >= W

  static LearningRateSchedule from(const config::Config& config);
  double at(int64_t step) const;  // step >= 0
};

}  // namespace lignum::train
