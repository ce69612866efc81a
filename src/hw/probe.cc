#include "hw/probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lignum::hw {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median_of_sorted(const std::vector<double>& v, size_t n) {
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// Calls a sample loops, so that it lasts sample_seconds.
int64_t calls_per_sample(const std::function<void()>& call, double sample_seconds) {
  int64_t calls = 1;
  for (;;) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    const double took = seconds_since(start);
    constexpr int64_t kMost = int64_t{1} << 30;  // an empty call ends the search too
    if (took >= sample_seconds || calls >= kMost) return calls;
    // Doubling at least; a quarter more than the estimate, so that the next try is long enough.
    const double needed = took > 0 ? 1.25 * static_cast<double>(calls) * sample_seconds / took : 0;
    calls = std::min(kMost, std::max(2 * calls, static_cast<int64_t>(std::min(needed, 1e9))));
  }
}

}  // namespace

Measurement summarize(std::vector<double> samples, double best_share) {
  LIGNUM_CHECK(!samples.empty() && best_share > 0 && best_share <= 1, "{} samples, best share {}",
               samples.size(), best_share);
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  const size_t best = std::max<size_t>(1, static_cast<size_t>(std::ceil(best_share * n - 1e-9)));
  Measurement m;
  m.seconds = median_of_sorted(samples, best);
  m.min = samples.front();
  m.median = median_of_sorted(samples, samples.size());
  m.spread = m.seconds > 0 ? (samples[best - 1] - samples.front()) / m.seconds : 0;
  m.n = static_cast<int>(samples.size());
  return m;
}

std::vector<Measurement> measure_interleaved(const std::vector<std::function<void()>>& calls,
                                             const ProbeOptions& options) {
  LIGNUM_CHECK(options.min_repeats >= 1 && options.max_repeats >= options.min_repeats, "repeats {} to {}",
               options.min_repeats, options.max_repeats);
  const size_t n = calls.size();
  std::vector<int64_t> loops(n);
  for (size_t i = 0; i < n; ++i) {
    for (int w = 0; w < options.warmup; ++w) calls[i]();
    loops[i] = calls_per_sample(calls[i], options.sample_seconds);
  }
  std::vector<std::vector<double>> samples(n);
  std::vector<double> spent(n, 0);
  for (int round = 0; round < options.max_repeats; ++round) {
    bool all_done = true;
    for (size_t i = 0; i < n; ++i) {
      const Clock::time_point start = Clock::now();
      for (int64_t c = 0; c < loops[i]; ++c) calls[i]();
      const double took = seconds_since(start);
      spent[i] += took;
      samples[i].push_back(took / static_cast<double>(loops[i]));
      all_done = all_done && spent[i] >= options.min_seconds;
    }
    if (all_done && round + 1 >= options.min_repeats) break;
  }
  std::vector<Measurement> measurements;
  for (std::vector<double>& s : samples) measurements.push_back(summarize(std::move(s), options.best_share));
  return measurements;
}

Measurement measure(const std::function<void()>& call, const ProbeOptions& options) {
  return measure_interleaved({call}, options).front();
}

double probe_roofline(const std::function<void()>& fma_loop, double flops, const ProbeOptions& options) {
  return flops / measure(fma_loop, options).seconds;
}

}  // namespace lignum::hw
