#include "hw/interpolate.h"

#include <cmath>
#include <iterator>

#include "base/status.h"

namespace lignum::hw {

void LogCurve::add(double x, double y) {
  LIGNUM_CHECK(x > 0 && y > 0, "x {} y {}", x, y);
  Sum& sum = points_[std::log(x)];
  sum.log_y += std::log(y);
  ++sum.n;
}

double LogCurve::at(double x) const {
  LIGNUM_CHECK(!points_.empty() && x > 0, "{} points, x {}", points_.size(), x);
  const auto value = [](const auto& it) { return it->second.log_y / it->second.n; };
  const double log_x = std::log(x);
  const auto above = points_.lower_bound(log_x);
  if (above == points_.end()) return back();
  if (above == points_.begin()) return std::exp(value(above));
  const auto below = std::prev(above);
  const double t = (log_x - below->first) / (above->first - below->first);
  return std::exp((1 - t) * value(below) + t * value(above));
}

double LogCurve::back() const {
  LIGNUM_CHECK(!points_.empty(), "an empty curve");
  const Sum& sum = points_.rbegin()->second;
  return std::exp(sum.log_y / sum.n);
}

void LogScatter::add(double x0, double x1, double y) {
  LIGNUM_CHECK(x0 > 0 && x1 > 0 && y > 0, "x {} {} y {}", x0, x1, y);
  points_.push_back({std::log(x0), std::log(x1), std::log(y)});
}

double LogScatter::at(double x0, double x1) const {
  LIGNUM_CHECK(!points_.empty() && x0 > 0 && x1 > 0, "{} points, x {} {}", points_.size(), x0, x1);
  const double a = std::log(x0), b = std::log(x1);
  // Closer than a thousandth of an octave is the measured shape itself; several points there are averaged.
  constexpr double kSame = 5e-7;
  double weights = 0, sum = 0, hits = 0, hit_sum = 0;
  for (const auto& [pa, pb, py] : points_) {
    const double d2 = (a - pa) * (a - pa) + (b - pb) * (b - pb);
    if (d2 < kSame) {
      ++hits;
      hit_sum += py;
    } else {
      weights += 1 / d2;
      sum += py / d2;
    }
  }
  return std::exp(hits > 0 ? hit_sum / hits : sum / weights);
}

}  // namespace lignum::hw
