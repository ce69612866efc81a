// Collectives between thread ranks of this process, timed as the executor issues them: through a
// communication engine a rank, submit then wait.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "hw/cpu_curves.h"
#include "hw/probe.h"

namespace lignum::tune {

// Of all that calibrate times, the median of this fastest share counts: all of it. What is predicted is a
// run's median step, so each part is its median too. With the fastest tenth a shared machine's steps were
// predicted at 0.62 of their median (the quickstart's: 127 ms against 204 ms, whose own fastest tenth was 170
// ms).
inline constexpr double kBestShare = 1.0;

// `bytes` (f32) as in hw::collective_time(): gathered, before it is scattered, reduced. At least one sample,
// then until `seconds` have gone by (rank 0's clock decides for all).
Result<hw::Measurement> measure_collective(hw::Collective op, int ranks, int64_t bytes, double seconds);

}  // namespace lignum::tune
