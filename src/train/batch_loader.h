// A rank's batches in order, made ahead of the step that reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/read_ahead.h"
#include "train/data.h"

namespace lignum::train {

// Which rows a batch holds does not depend on the number of workers: each takes the next batch's number and
// fills it as TrainData says. With none, next() fills it itself. One thread at a time calls next().
class BatchLoader {
 public:
  // The micro-steps of a rank from the step on that begins at first_row, up to the data's end. `data`
  // outlives the loader.
  BatchLoader(const TrainData& data, int64_t rank, int64_t first_row, int workers);
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next micro-step's batch, valid until the next call.
  const Batch& next() { return batches_[static_cast<size_t>(ahead_.next())]; }

 private:
  void fill(int64_t number, Batch& batch) const;

  const TrainData& data_;
  const int64_t rank_, first_row_;
  std::vector<Batch> batches_;
  exec::ReadAhead ahead_;  // last: its threads fill the batches
};

}  // namespace lignum::train
