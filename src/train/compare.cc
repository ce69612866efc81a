#include "train/compare.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "train/data.h"
#include "train/parameters.h"
#include "train/rank_executor.h"

namespace lignum::train {
namespace {

struct Outcome {
  double loss = 0;
  WholeTensors gradients;
  std::vector<OperandLosses> operands;
};

class Side {
 public:
  Side(const config::Config& config, const Setup& setup, const TrainData& data, const ModelFiles* files)
      : config_(config), setup_(setup), data_(data), files_(files) {}

  Result<Outcome> run() {
    LIGNUM_ASSIGN_OR_RETURN(program_, plan::make_program(setup_.step));
    Outcome out;
    out.gradients = zero_tensors(setup_.model);
    LIGNUM_RETURN_IF_ERROR(
        comm::ThreadWorld(static_cast<int>(setup_.ranks)).run([&](comm::Transport& transport) -> Status {
          LIGNUM_ASSIGN_OR_RETURN(const Ranks ranks, Ranks::join(transport));
          const Status status = rank(ranks, out);
          return status.ok() ? status : ranks.give_up(status);
        }));
    return out;
  }

 private:
  // Ranks write disjoint parts of the gradients, the first one the rest.
  Status rank(const Ranks& ranks, Outcome& out) const {
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(setup_.threads));
    LIGNUM_ASSIGN_OR_RETURN(
        const auto executor,
        make_executor(setup_, program_, ranks, *pool, memory_budget(config_, nullptr, setup_.ranks_here)));
    const RankShards shards{program_, setup_.step.mesh, ranks.rank()};
    if (files_ != nullptr) {
      LIGNUM_RETURN_IF_ERROR(load_parameters(setup_.model, *files_, shards, *executor));
    } else {
      LIGNUM_RETURN_IF_ERROR(init_parameters(setup_.model, shards, *executor,
                                             static_cast<uint64_t>(config_.integer("init_weights_seed"))));
    }
    put_rows(data_, 0, setup_, program_, ranks.rank(), *executor);
    LIGNUM_RETURN_IF_ERROR(executor->step());
    gather_gradients(setup_.model, shards, *executor, out.gradients);
    if (!ranks.is_first()) return {};
    out.loss = static_cast<double>(read_scalar(*executor, "loss"));
    out.operands = quantization_losses(program_, setup_.step.accumulation, *executor);
    return {};
  }

  const config::Config& config_;
  const Setup& setup_;
  const TrainData& data_;
  const ModelFiles* files_;
  plan::Program program_;
};

// Tensor by tensor, layer by layer.
void compare(const config::ModelConfig& model, const WholeTensors& plain, const WholeTensors& quantised,
             StepDifference& out) {
  double plain_squares = 0, quantised_squares = 0, error_squares = 0;
  const std::vector<models::Parameter> parameters = models::parameters(model);
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t rows = parameters[p].stacked ? parameters[p].dims[0] : 1;
    const size_t each = plain[p].size() / static_cast<size_t>(rows);
    for (int64_t row = 0; row < rows; ++row) {
      double error = 0, norm = 0;
      for (size_t i = static_cast<size_t>(row) * each; i < static_cast<size_t>(row + 1) * each; ++i) {
        const double a = static_cast<double>(plain[p][i]), b = static_cast<double>(quantised[p][i]);
        error += (b - a) * (b - a);
        norm += a * a;
        quantised_squares += b * b;
      }
      error_squares += error;
      plain_squares += norm;
      out.gradients.push_back({parameters[p].file_name(row), std::sqrt(error), std::sqrt(norm)});
    }
  }
  out.error = std::sqrt(error_squares);
  out.plain_norm = std::sqrt(plain_squares);
  out.quantised_norm = std::sqrt(quantised_squares);
}

}  // namespace

Result<StepDifference> compare_precisions(const config::Config& config, const std::string& weights) {
  if (config.text("comm") == "mpi")
    return user_error("comm=mpi: a comparison runs its ranks as threads of one process; set comm=threads");
  LIGNUM_ASSIGN_OR_RETURN(Setup setup, make_setup(config, nullptr));
  if (setup.step.pipeline.stages > 1)
    return user_error(
        "ici_pipeline_parallelism={}: operands are not looked at on a pipeline; compare on a mesh without "
        "one",
        setup.step.pipeline.stages);
  if (setup.step.quantization.empty())
    return user_error(
        "nothing is quantised: set use_qwix_quantization=true quantization=fp8_full, or a file of "
        "quantization_rules");
  std::optional<ModelFiles> files;
  if (!weights.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(setup.tokenizer,
                            tokenizer_of_weights(weights, setup.tokenizer, config, setup.model.vocab_size));
    LIGNUM_ASSIGN_OR_RETURN(files, ModelFiles::open(weights));
  }
  LIGNUM_ASSIGN_OR_RETURN(const TrainData data,
                          TrainData::open(config, setup.model.vocab_size, setup.batch, setup.tokenizer));
  setup.step.outputs = plan::Outputs::grads;
  setup.step.watch = {.errors = true};
  Setup plain_setup = setup;
  plain_setup.step.quantization.clear();
  plain_setup.step.ranges.clear();
  plain_setup.step.watch = {};
  const ModelFiles* from = files ? &*files : nullptr;
  LIGNUM_ASSIGN_OR_RETURN(const Outcome plain, Side(config, plain_setup, data, from).run());
  LIGNUM_ASSIGN_OR_RETURN(Outcome quantised, Side(config, setup, data, from).run());
  StepDifference out;
  out.dtype = setup.step.shape.dtype;
  out.plain_loss = plain.loss;
  out.quantised_loss = quantised.loss;
  out.operands = std::move(quantised.operands);
  compare(setup.model, plain.gradients, quantised.gradients, out);
  return out;
}

}  // namespace lignum::train
