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

BatchInputs::BatchInputs(exec::Executor& executor, const plan::Program& program, const passes::Mesh& mesh,
                         int64_t rank) {
  const ir::Graph& global = program.global;
  for (const auto& [name, input] : {std::pair{"input_ids", &ids_}, std::pair{"labels", &labels_},
                                    std::pair{"positions", &positions_}, std::pair{"segments", &segments_}}) {
    if (!executor.has_param(name)) continue;
    input->data = reinterpret_cast<int32_t*>(executor.param(name));
    for (size_t i = 0; i < program.params.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (global.param_name(at) != name) continue;
      const int64_t seq = global.type(global.param_value(at)).dims.back();
      input->tokens = passes::token_ranges(seq, program.params[i].dims.back(), mesh, rank);
    }
  }
}

void BatchInputs::put(const Batch& batch, int64_t micro_step) const {
  put(batch.ids, batch, micro_step, ids_);
  put(batch.labels, batch, micro_step, labels_);
  put(batch.positions, batch, micro_step, positions_);
  put(batch.segments, batch, micro_step, segments_);
}

void BatchInputs::put(const std::vector<int32_t>& from, const Batch& batch, int64_t micro_step,
                      const Input& to) {
  if (to.data == nullptr) return;
  int64_t count = 0;
  for (const passes::Range& range : to.tokens) count += range.end - range.begin;
  int32_t* at = to.data + micro_step * batch.rows * count;
  for (int64_t r = 0; r < batch.rows; ++r)
    for (const passes::Range& range : to.tokens)
      at = std::copy_n(from.begin() + r * batch.seq + range.begin, range.end - range.begin, at);
}

void put_rows(const TrainData& data, int64_t first_row, const Setup& setup, const plan::Program& program,
              int64_t rank, exec::Executor& executor) {
  const BatchInputs inputs(executor, program, setup.step.mesh, rank);
  Batch batch(setup.batch.rows, setup.batch.seq);
  for (int64_t m = 0; m < setup.batch.micro_steps; ++m) {
    data.fill(first_row, row_group(setup.step.mesh, rank), m, batch);
    inputs.put(batch, m);
  }
}

}  // namespace lignum::train
