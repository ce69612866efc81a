// The loss on held-out rows.
#pragma once

#include <functional>
#include <optional>

#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/rank_executor.h"

namespace lignum::train {

// What all ranks share: made once, read by each.
struct Evaluation {
  plan::Program program;  // outputs = loss
  std::vector<EvalData> sets;
  static Result<Evaluation> make(const config::Config& config, const Setup& setup);
};

// One rank's part. Every rank makes the same calls.
class Evaluator {
 public:
  static Result<std::unique_ptr<Evaluator>> create(const Setup& setup, const Evaluation& evaluation,
                                                   const Ranks& ranks, Parallel& pool, int64_t budget);

  exec::Executor& executor() { return *executor_; }
  RankShards shards() const { return {evaluation_.program, setup_.step.mesh, ranks_.rank()}; }
  // The parameters of a training executor on the same mesh.
  Status copy_parameters(exec::Executor& from);
  // The mean loss over all supervised tokens, the same on every rank: batch sums added in double, in order.
  // `stop` is asked before each batch and answers the same on every rank; true leaves the evaluation undone.
  using Stop = std::function<Result<bool>()>;
  Result<std::optional<EvalMetrics>> run(int64_t step, const Stop& stop);

 private:
  Evaluator(const Setup& setup, const Evaluation& evaluation, const Ranks& ranks)
      : setup_(setup), evaluation_(evaluation), ranks_(ranks), batch_(setup.batch.rows, setup.batch.seq) {}

  const Setup& setup_;
  const Evaluation& evaluation_;
  const Ranks& ranks_;
  std::unique_ptr<exec::Executor> executor_;
  Batch batch_;
};

// Evaluates a folder's weights (a Hugging Face folder, or a checkpoint of any mesh), or the initial weights
// where `folder` is empty. Where ranks are processes, each calls it, and all get the same loss.
Result<EvalMetrics> evaluate(const config::Config& config, const std::string& folder, int64_t step,
                             const Processes& processes = {});

}  // namespace lignum::train
