#include "train/batch_loader.h"

#include <algorithm>

namespace lignum::train {

BatchLoader::BatchLoader(const TrainData& data, int64_t rank, int64_t first_row, int workers)
    : data_(data), rank_(rank), first_row_(first_row) {
  LIGNUM_CHECK(workers >= 0, "{} workers", workers);
  // One is read, each worker fills one, and a step's micro-steps may be ready.
  const int64_t slots = workers == 0 ? 1 : 1 + std::max<int64_t>(workers, data.shape().micro_steps);
  for (int64_t i = 0; i < slots; ++i) slots_.push_back({Batch(data.shape().rows, data.shape().seq)});
  for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  emptied_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void BatchLoader::fill(int64_t number, Batch& batch) const {
  const BatchShape& shape = data_.shape();
  const int64_t step = number / shape.micro_steps;
  data_.fill(first_row_ + step * shape.global_rows(), rank_, number % shape.micro_steps, batch);
}

const Batch& BatchLoader::next() {
  Slot& slot = slots_[static_cast<size_t>(given_) % slots_.size()];
  if (workers_.empty()) {
    fill(given_++, slot.batch);
    return slot.batch;
  }
  std::unique_lock lock(mutex_);
  const int64_t number = given_++;
  emptied_.notify_all();  // the batch before this one
  filled_.wait(lock, [&] { return slot.number == number; });
  return slot.batch;
}

void BatchLoader::work() {
  const auto slots = static_cast<int64_t>(slots_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    // Batch n may go where batch n - slots was, once next() has gone past that one.
    emptied_.wait(lock, [&] { return stop_ || taken_ < given_ + slots - 1; });
    if (stop_) return;
    const int64_t number = taken_++;
    Slot& slot = slots_[static_cast<size_t>(number % slots)];
    lock.unlock();
    fill(number, slot.batch);
    lock.lock();
    slot.number = number;
    filled_.notify_all();
  }
}

}  // namespace lignum::train
