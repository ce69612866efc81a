#include "plan/engines.h"

#include <algorithm>
#include <limits>

namespace lignum::plan {

Engines::Speeds Engines::shared_cores(int cores, int ranks, int threads, double busy) {
  const double own = static_cast<double>(cores) / ranks;
  const double each = std::min(1.0, own / (threads + busy));
  return {threads * each / std::min<double>(threads, own), each / std::min(1.0, own)};
}

bool Engines::busy() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const Jobs& q) { return !q.left.empty(); });
}

const Engines::Speeds& Engines::speeds() const {
  const bool communication = !queues_[0].left.empty(), copy = !queues_[1].left.empty();
  return speeds_[communication && copy ? 2 : copy ? 1 : 0];
}

double Engines::next_end() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Jobs& q : queues_)
    if (!q.left.empty()) least = std::min(least, q.left.front());
  return least;
}

// Every running job comes on by that much work.
void Engines::advance(double work) {
  for (Jobs& q : queues_) {
    if (q.left.empty()) continue;
    if (q.left.front() <= work) {
      q.left.pop_front();
      ++q.completed;
    } else {
      q.left.front() -= work;
    }
  }
}

void Engines::compute(double seconds) {
  compute_ += seconds;
  double left = seconds;
  while (left > 0 && busy()) {
    const Speeds& both = speeds();
    const double end = next_end() / both.communication;
    const double span = std::min(left / both.compute, end);
    now_ += span;
    contention_ += span * (1 - both.compute);
    left = left / both.compute <= span ? 0 : left - span * both.compute;
    advance(end <= span ? next_end() : span * both.communication);
  }
  now_ += left;
}

uint64_t Engines::submit(double seconds, Queue queue) {
  Jobs& q = queues_[static_cast<size_t>(queue)];
  q.seconds += seconds;
  ++q.submitted;
  if (overlap_) {
    q.left.push_back(seconds);
  } else {
    now_ += seconds;
    exposed_ += seconds;
    ++q.completed;
  }
  return q.submitted;
}

void Engines::wait(uint64_t ticket, Queue queue) {
  while (queues_[static_cast<size_t>(queue)].completed < ticket) {
    const double span = next_end();
    now_ += span;
    exposed_ += span;
    advance(span);
  }
}

void Engines::drain() {
  for (const Queue queue : {Queue::communication, Queue::copy})
    wait(queues_[static_cast<size_t>(queue)].submitted, queue);
}

}  // namespace lignum::plan
