// The engines of one rank in time: compute works through its list, communication and copies through their
// queues.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace lignum::plan {

class Engines {
 public:
  enum class Queue : uint8_t { communication, copy };
  // Speeds while compute and a queue are busy, relative to each alone; 1: they share nothing.
  struct Speeds {
    double compute = 1, communication = 1;  // communication: a queue's
  };
  // A rank has cores / ranks cores for its pool's threads and the threads of its busy queues, which want
  // `busy` cores: a thread that moves a file waits more than it computes. Each thread gets the same part of
  // what there is.
  static Speeds shared_cores(int cores, int ranks, int threads, double busy = 1);

  // Speeds while compute is busy and of the queues communication, copy, or both. overlap false: compute runs
  // each job itself where it is submitted.
  Engines(Speeds communication, Speeds copy, Speeds both, bool overlap)
      : speeds_{communication, copy, both}, overlap_(overlap) {}
  Engines(Speeds one, bool overlap) : Engines(one, one, one, overlap) {}  // with one queue

  void compute(double seconds);  // seconds it takes alone
  // A ticket of that queue, whose jobs run one after the other.
  uint64_t submit(double seconds, Queue queue = Queue::communication);
  void wait(uint64_t ticket, Queue queue = Queue::communication);
  void drain();

  double now() const { return now_; }
  double compute_seconds() const { return compute_; }
  double communication_seconds() const { return busy_seconds(Queue::communication); }
  double copy_seconds() const { return busy_seconds(Queue::copy); }
  double exposed_seconds() const { return exposed_; }  // compute waits for either
  double contention_seconds() const { return contention_; }

 private:
  struct Jobs {
    std::deque<double> left;  // seconds of each, the running one first
    uint64_t submitted = 0, completed = 0;
    double seconds = 0;  // of all
  };
  double busy_seconds(Queue queue) const { return queues_[static_cast<size_t>(queue)].seconds; }
  bool busy() const;
  const Speeds& speeds() const;  // while a queue is busy
  double next_end() const;       // seconds of work until the first running job ends
  void advance(double work);

  const std::array<Speeds, 3> speeds_;
  const bool overlap_;
  double now_ = 0, compute_ = 0, exposed_ = 0, contention_ = 0;
  std::array<Jobs, 2> queues_;
};

}  // namespace lignum::plan
