// Axes: round ticks, and numbers as people write them.
#pragma once

#include <string>
#include <vector>

namespace lignum::report {

struct Axis {
  double low = 0, high = 1;  // low < high; both > 0 where log
  bool log = false;
  std::vector<double> ticks;         // inside [low, high], ascending
  std::vector<std::string> labels;   // one a tick
  double share(double value) const;  // 0 at low, 1 at high
};

// Covers [low, high] with about `count` round steps (1, 2, 5 x 10^k); a range without width gets one.
Axis linear_axis(double low, double high, int count);
// Covers [low, high] from and to 1, 2 or 5 x 10^k; the labels have SI prefixes (200 m, 10, 5 k), at decades
// alone where all would be too many.
Axis log_axis(double low, double high);

// Four significant digits without trailing zeros: 2.051, 12000, 0.0004.
std::string number_text(double value);

}  // namespace lignum::report
