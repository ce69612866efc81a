// Collectives between thread ranks of this process, timed as the executor issues them: through a
// communication engine a rank, submit then wait.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "hw/cpu_curves.h"
#include "hw/probe.h"

namespace lignum::tune {

// Of all that calibrate times, the median of this fastest share counts. On a machine that others used, the
// default of hw/probe.h (0.3) made points of few samples up to four times too slow.
inline constexpr double kBestShare = 0.1;

// `bytes` (f32) as in hw::collective_time(): gathered, before it is scattered, reduced. At least one sample,
// then until `seconds` have gone by (rank 0's clock decides for all).
Result<hw::Measurement> measure_collective(hw::Collective op, int ranks, int64_t bytes, double seconds);

}  // namespace lignum::tune
