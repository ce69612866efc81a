// What of a call's time is dispatch, which the planner adds for the node, and what is the call's own work.
#pragma once

#include <algorithm>

#include "base/parallel.h"

namespace lignum::tune {

// A pool that remembers whether a call handed work to its threads. The kernels alone know: small products and
// rows they keep to one.
class WatchedPool final : public Parallel {
 public:
  explicit WatchedPool(Parallel& pool) : pool_(pool) {}
  int threads() const override { return pool_.threads(); }
  void run(int64_t tasks, FunctionRef<void(int64_t, int)> fn) override {
    handed_over_ = handed_over_ || (tasks > 1 && threads() > 1);
    pool_.run(tasks, fn);
  }
  bool handed_over() const { return handed_over_; }

 private:
  Parallel& pool_;
  bool handed_over_ = false;
};

// Of a call that handed work over and took `seconds`; one thread takes `alone` for it. Dispatch was timed at
// another moment, and on a busy machine it may have been slower than all of the call: no threads do the work
// in less than their share of what one takes.
inline double work_seconds(double seconds, double dispatch, int threads, double alone) {
  return std::max(seconds - dispatch, std::min(seconds, alone / threads));
}

}  // namespace lignum::tune
