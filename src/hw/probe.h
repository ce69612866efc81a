// Timing on a machine that others use too. Variants are interleaved, so that a slow spell hits all of them;
// each is summed up by the median of its fastest share, because interference only ever adds time.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"

namespace lignum::hw {

struct ProbeOptions {
  int min_repeats = 5;
  int max_repeats = 200;
  double min_seconds = 0.2;  // of measuring per callable; stops at max_repeats
  double sample_seconds =
      1e-3;  // a sample loops the callable until it lasts at least this long: the clock's share is small
  double best_share = 0.3;  // (0, 1]: the fastest share of the samples that the median is taken of
  int warmup = 1;           // untimed calls first
};

struct Measurement {
  double seconds = 0;  // median of the best share, of one call
  double min = 0;
  double median = 0;  // of all samples
  double spread = 0;  // (slowest - fastest of the best share) / seconds
  int n = 0;          // samples
};

Measurement measure(const std::function<void()>& call, const ProbeOptions& options = {});
// One measurement a callable, in their order; samples taken in turn.
std::vector<Measurement> measure_interleaved(const std::vector<std::function<void()>>& calls,
                                             const ProbeOptions& options = {});
// From samples (seconds of one call each, any order, at least one). What measure() does with its samples.
Measurement summarize(std::vector<double> samples, double best_share);

// Percent-of-roofline companion: `fma_loop` does `flops` FLOPs in registers. FLOP/s.
double probe_roofline(const std::function<void()>& fma_loop, double flops, const ProbeOptions& options = {});

}  // namespace lignum::hw
