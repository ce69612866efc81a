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

// Which rows of a global batch a rank sees: ranks of one context or tensor axis, which are the last ones, see
// the same.
inline int64_t row_group(const passes::Mesh& mesh, int64_t rank) { return rank / mesh.row_sharers(); }

// The i32 params of a step, [micro_steps, rows, seq] or [rows, seq]: of each row the tokens that the rank
// holds.
class BatchInputs {
 public:
  BatchInputs(exec::Executor& executor, const plan::Program& program, const passes::Mesh& mesh, int64_t rank);
  // The rank's rows, whole.
  void put(const Batch& batch, int64_t micro_step) const;

 private:
  struct Input {
    int32_t* data = nullptr;            // null: the step has none
    std::vector<passes::Range> tokens;  // of a row, one after the other
  };
  static void put(const std::vector<int32_t>& from, const Batch& batch, int64_t micro_step, const Input& to);
  Input ids_, labels_, positions_, segments_;
};

// The rows of all micro-steps of the step that begins at first_row.
void put_rows(const TrainData& data, int64_t first_row, const Setup& setup, const plan::Program& program,
              int64_t rank, exec::Executor& executor);

inline float read_scalar(const exec::Executor& executor, std::string_view output) {
  return *reinterpret_cast<const float*>(executor.output(output));
}

}  // namespace lignum::train
