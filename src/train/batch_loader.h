// A rank's batches in order, made ahead of the step that reads them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "train/data.h"

namespace lignum::train {

// Which rows a batch holds does not depend on the number of workers: each takes the next batch's number and
// fills it as TrainData says. With none, next() fills it itself. One thread at a time calls next().
class BatchLoader {
 public:
  // The micro-steps of a rank from the step on that begins at first_row, up to the data's end. `data`
  // outlives the loader.
  BatchLoader(const TrainData& data, int64_t rank, int64_t first_row, int workers);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next micro-step's batch, valid until the next call.
  const Batch& next();

 private:
  struct Slot {
    Batch batch;
    int64_t number = -1;  // of the batch that it holds
  };
  void fill(int64_t number, Batch& batch) const;
  void work();

  const TrainData& data_;
  const int64_t rank_, first_row_;
  std::vector<Slot> slots_;  // batch n goes into slot n mod their number
  std::mutex mutex_;
  std::condition_variable filled_, emptied_;
  int64_t given_ = 0;  // batches that next() has returned: the last of them is still being read
  int64_t taken_ = 0;  // numbers that workers have taken
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lignum::train
