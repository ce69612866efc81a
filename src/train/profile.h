// Where a step's time goes: the events of traced steps of one rank, summed up by node.
#pragma once

#include <vector>

#include "exec/trace.h"
#include "plan/price.h"
#include "report/run_record.h"

namespace lignum::train {

class Profile {
 public:
  // Room for the events of one step; `step` outlives the profile. Nothing is allocated later.
  explicit Profile(const passes::Scheduled& step);

  // For Executor::set_trace before a step that is to be traced, empty, and add() after it.
  exec::Trace& begin() {
    trace_.clear();
    return trace_;
  }
  void add(double step_seconds);
  const exec::Trace& last() const { return trace_; }  // of the step that was added last

  int64_t steps() const { return steps_; }
  double step_seconds() const { return steps_ > 0 ? seconds_ / static_cast<double>(steps_) : 0; }  // mean
  // Every node of the schedule with what it costs and took, and what `price` (null: none) says of it; then
  // the copies that loops make for themselves, which only a price knows.
  std::vector<report::OpRecord> ops(const plan::Price* price) const;

 private:
  void add_ops(const passes::Scheduled& step, int64_t times, std::vector<report::OpRecord>& out) const;

  struct Sum {
    int64_t ns = 0, runs = 0;
  };
  const passes::Scheduled& step_;
  exec::Trace trace_;
  std::vector<Sum> sums_;  // by SCHEDULED id
  int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace lignum::train
