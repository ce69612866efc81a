// Two engines of one rank in time: compute works through its list, communication through its queue.
#pragma once

#include <cstdint>
#include <deque>

namespace lignum::plan {

class Engines {
 public:
  // Speeds while both are busy, relative to each alone; 1: they share nothing.
  struct Speeds {
    double compute = 1, communication = 1;
  };
  // A rank has cores / ranks cores for its pool's threads and its communication thread; each thread gets the
  // same part of what there is.
  static Speeds shared_cores(int cores, int ranks, int threads);

  // overlap false: compute runs each collective itself where it is submitted.
  Engines(Speeds speeds, bool overlap) : speeds_(speeds), overlap_(overlap) {}

  void compute(double seconds);     // seconds it takes alone
  uint64_t submit(double seconds);  // a ticket; they run one after the other
  void wait(uint64_t ticket);
  void drain() { wait(submitted_); }

  double now() const { return now_; }
  double compute_seconds() const { return compute_; }
  double communication_seconds() const { return communication_; }
  double exposed_seconds() const { return exposed_; }
  double contention_seconds() const { return contention_; }

 private:
  const Speeds speeds_;
  const bool overlap_;
  double now_ = 0, compute_ = 0, communication_ = 0, exposed_ = 0, contention_ = 0;
  std::deque<double> queue_;  // seconds left of each, the running one first
  uint64_t submitted_ = 0, completed_ = 0;
};

}  // namespace lignum::plan
