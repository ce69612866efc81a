#include "plan/engines.h"

#include <algorithm>

namespace lignum::plan {

Engines::Speeds Engines::shared_cores(int cores, int ranks, int threads) {
  const double own = static_cast<double>(cores) / ranks;
  const double each = std::min(1.0, own / (threads + 1));
  return {threads * each / std::min<double>(threads, own), each / std::min(1.0, own)};
}

void Engines::compute(double seconds) {
  compute_ += seconds;
  double left = seconds;
  while (left > 0 && !queue_.empty()) {
    const double span = std::min(left / speeds_.compute, queue_.front() / speeds_.communication);
    const bool ends = queue_.front() / speeds_.communication <= span;
    now_ += span;
    contention_ += span * (1 - speeds_.compute);
    left = left / speeds_.compute <= span ? 0 : left - span * speeds_.compute;
    if (ends) {
      queue_.pop_front();
      ++completed_;
    } else {
      queue_.front() -= span * speeds_.communication;
    }
  }
  now_ += left;
}

uint64_t Engines::submit(double seconds) {
  communication_ += seconds;
  ++submitted_;
  if (overlap_) {
    queue_.push_back(seconds);
  } else {
    now_ += seconds;
    exposed_ += seconds;
    ++completed_;
  }
  return submitted_;
}

void Engines::wait(uint64_t ticket) {
  while (completed_ < ticket) {
    now_ += queue_.front();
    exposed_ += queue_.front();
    queue_.pop_front();
    ++completed_;
  }
}

}  // namespace lignum::plan
