// A rank's executor, and the batch that goes into it.
#pragma once

#include <memory>

#include "exec/executor.h"
#include "train/data.h"
#include "train/ranks.h"
#include "train/setup.h"

namespace lignum::train {

// budget: bytes the arena may take, 0: any. All arguments outlive the executor.
Result<std::unique_ptr<exec::Executor>> make_executor(const Setup& setup, const plan::Program& program,
                                                      const Ranks& ranks, Parallel& pool, int64_t budget);

// The i32 params of a step, [micro_steps, rows, seq] or [rows, seq].
class BatchInputs {
 public:
  explicit BatchInputs(exec::Executor& executor);
  void put(const Batch& batch, int64_t micro_step) const;

 private:
  int32_t *ids_, *labels_, *positions_;
  int32_t* segments_ = nullptr;  // null: the step has none
};

inline float read_scalar(const exec::Executor& executor, std::string_view output) {
  return *reinterpret_cast<const float*>(executor.output(output));
}

}  // namespace lignum::train
