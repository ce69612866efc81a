#include "exec/read_ahead.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace lignum::exec {

int64_t ReadAhead::slots(int workers, int64_t ready) {
  // One is read, and each worker makes one.
  return workers == 0 ? 1 : 1 + std::max<int64_t>(workers, ready);
}

ReadAhead::ReadAhead(int workers, int64_t ready, Make make)
    : make_(std::move(make)), numbers_(static_cast<size_t>(slots(workers, ready)), -1) {
  LIGNUM_CHECK(workers >= 0 && ready >= 0, "{} workers, {} ready", workers, ready);
  for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  emptied_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t ReadAhead::next() {
  if (workers_.empty()) {
    make_(given_++, 0);
    return 0;
  }
  std::unique_lock lock(mutex_);
  const int64_t number = given_++;
  const auto slot = static_cast<size_t>(number) % numbers_.size();
  emptied_.notify_all();  // the item before this one
  filled_.wait(lock, [&] { return numbers_[slot] == number; });
  return static_cast<int64_t>(slot);
}

void ReadAhead::work() {
  const auto slots = static_cast<int64_t>(numbers_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    // Item n may go where item n - slots was, once next() has gone past that one.
    emptied_.wait(lock, [&] { return stop_ || taken_ < given_ + slots - 1; });
    if (stop_) return;
    const int64_t number = taken_++;
    lock.unlock();
    make_(number, number % slots);
    lock.lock();
    numbers_[static_cast<size_t>(number % slots)] = number;
    filled_.notify_all();
  }
}

}  // namespace lignum::exec
