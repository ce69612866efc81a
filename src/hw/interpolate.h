// Curves through measured points, in log space: sizes and rates of hardware span decades, and a rate's error
// is relative.
#pragma once

#include <array>
#include <map>
#include <vector>

namespace lignum::hw {

// Piecewise linear in (log x, log y); x, y > 0. Between two points y stays between theirs; outside the range
// it is the end point's. Points with the same x are averaged (geometric mean).
class LogCurve {
 public:
  void add(double x, double y);
  bool empty() const { return points_.empty(); }
  double at(double x) const;  // LIGNUM_CHECKs that the curve has a point
  double back() const;        // y at the largest x

 private:
  struct Sum {
    double log_y = 0;
    int n = 0;
  };
  std::map<double, Sum> points_;  // by log x
};

// Scattered points in two dimensions, averaged with weights 1 / distance^2 in (log x0, log x1) on log y
// (Shepard's method): exact at a point, never outside [min y, max y].
class LogScatter {
 public:
  void add(double x0, double x1, double y);
  bool empty() const { return points_.empty(); }
  double at(double x0, double x1) const;

 private:
  std::vector<std::array<double, 3>> points_;  // logs
};

}  // namespace lignum::hw
