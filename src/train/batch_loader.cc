#include "train/batch_loader.h"

namespace lignum::train {

// A step's micro-steps may be ready while another is read.
BatchLoader::BatchLoader(const TrainData& data, int64_t rank, int64_t first_row, int workers)
    : data_(data),
      rank_(rank),
      first_row_(first_row),
      batches_(static_cast<size_t>(exec::ReadAhead::slots(workers, data.shape().micro_steps)),
               Batch(data.shape().rows, data.shape().seq)),
      ahead_(workers, data.shape().micro_steps,
             [this](int64_t number, int64_t slot) { fill(number, batches_[static_cast<size_t>(slot)]); }) {}

void BatchLoader::fill(int64_t number, Batch& batch) const {
  const BatchShape& shape = data_.shape();
  const int64_t step = number / shape.micro_steps;
  data_.fill(first_row_ + step * shape.global_rows(), rank_, number % shape.micro_steps, batch);
}

}  // namespace lignum::train
