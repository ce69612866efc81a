#include "report/axis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lignum::report {
namespace {

// With as many decimals as the step has; large numbers in thousands.
std::string tick_text(double value, double step) {
  if (std::abs(value) < step * 1e-6) return "0";
  if (step >= 1e6) return fmt::format("{:g} M", value / 1e6);
  if (step >= 1e3) return fmt::format("{:g} k", value / 1e3);
  if (step < 1e-5) return fmt::format("{:.4g}", value);
  return fmt::format("{:.{}f}", value, std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9))));
}

// mantissa x 10^exponent, mantissa 1, 2 or 5.
std::string prefixed_text(int mantissa, int exponent) {
  constexpr const char* kPrefixes[] = {"n", "u", "m", "", "k", "M", "G", "T", "P"};
  const int group = static_cast<int>(std::floor(exponent / 3.0));
  if (group < -3 || group > 5) return fmt::format("{}e{}", mantissa, exponent);
  const char* prefix = kPrefixes[group + 3];
  return fmt::format("{:.0f}{}{}", mantissa * std::pow(10, exponent - 3 * group), *prefix != '\0' ? " " : "",
                     prefix);
}

}  // namespace

double Axis::share(double value) const {
  if (!log) return (value - low) / (high - low);
  return std::log(value / low) / std::log(high / low);
}

Axis linear_axis(double low, double high, int count) {
  if (!(high > low)) {
    const double around = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= around;
    high += around;
  }
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double round : {5.0, 2.0, 1.0})
    if (round * power >= rough) step = round * power;
  Axis a;
  const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9)),
             last = static_cast<int64_t>(std::ceil(high / step - 1e-9));
  for (int64_t i = first; i <= last; ++i) {
    a.ticks.push_back(static_cast<double>(i) * step);
    a.labels.push_back(tick_text(a.ticks.back(), step));
  }
  a.low = a.ticks.front();
  a.high = a.ticks.back();
  return a;
}

Axis log_axis(double low, double high) {
  constexpr size_t kMostLabels = 12;
  struct Tick {
    int mantissa, exponent;
    double value() const { return mantissa * std::pow(10, exponent); }
  };
  std::vector<Tick> ticks;
  const int first = static_cast<int>(std::floor(std::log10(low))),
            last = static_cast<int>(std::ceil(std::log10(high)));
  for (int e = first; e <= last; ++e)
    for (const int m : {1, 2, 5}) ticks.push_back({m, e});
  constexpr double kSlack = 1e-9;
  while (ticks.size() > 2 && ticks[1].value() <= low * (1 + kSlack)) ticks.erase(ticks.begin());
  while (ticks.size() > 2 && ticks[ticks.size() - 2].value() >= high * (1 - kSlack)) ticks.pop_back();
  Axis a;
  a.log = true;
  a.low = ticks.front().value();
  a.high = ticks.back().value();
  const bool all = ticks.size() <= kMostLabels;
  for (const Tick& t : ticks) {
    if (!all && t.mantissa != 1) continue;
    a.ticks.push_back(t.value());
    a.labels.push_back(prefixed_text(t.mantissa, t.exponent));
  }
  return a;
}

std::string number_text(double value) { return fmt::format("{:.4g}", value); }

}  // namespace lignum::report
