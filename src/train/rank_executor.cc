#include "train/rank_executor.h"

#include <algorithm>

namespace lignum::train {

Result<std::unique_ptr<exec::Executor>> make_executor(const Setup& setup, const plan::Program& program,
                                                      const Ranks& ranks, Parallel& pool, int64_t budget) {
  exec::ExecutorOptions e;
  e.step = &program.scheduled;
  e.plan = &program.memory;
  e.mesh = &setup.step.mesh;
  e.transport = ranks.transport();
  e.parallel = &pool;
  e.choice = setup.kernels.choice;
  e.overlap = setup.step.schedule.overlap;
  e.device_memory = budget;
  e.host_memory = setup.host_memory;
  return exec::Executor::create(e);
}

BatchInputs::BatchInputs(exec::Executor& executor)
    : ids_(reinterpret_cast<int32_t*>(executor.param("input_ids"))),
      labels_(reinterpret_cast<int32_t*>(executor.param("labels"))),
      positions_(reinterpret_cast<int32_t*>(executor.param("positions"))) {
  if (executor.has_param("segments")) segments_ = reinterpret_cast<int32_t*>(executor.param("segments"));
}

void BatchInputs::put(const Batch& batch, int64_t micro_step) const {
  const int64_t at = micro_step * batch.rows * batch.seq;
  std::copy(batch.ids.begin(), batch.ids.end(), ids_ + at);
  std::copy(batch.labels.begin(), batch.labels.end(), labels_ + at);
  std::copy(batch.positions.begin(), batch.positions.end(), positions_ + at);
  if (segments_ != nullptr) std::copy(batch.segments.begin(), batch.segments.end(), segments_ + at);
}

}  // namespace lignum::train
