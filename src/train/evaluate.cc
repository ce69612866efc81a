#include "train/evaluate.h"

#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "comm/threads.h"
#include "exec/thread_pool.h"

namespace lignum::train {

Result<Evaluation> Evaluation::make(const config::Config& config, const Setup& setup) {
  LIGNUM_ASSIGN_OR_RETURN(plan::Program program, plan::make_program(eval_options(setup)));
  BatchShape shape = setup.batch;
  shape.micro_steps = 1;
  LIGNUM_ASSIGN_OR_RETURN(std::vector<EvalData> sets,
                          EvalData::open(config, setup.model.vocab_size, shape, setup.tokenizer));
  return Evaluation{std::move(program), std::move(sets)};
}

Result<std::unique_ptr<Evaluator>> Evaluator::create(const Setup& setup, const Evaluation& evaluation,
                                                     const Ranks& ranks, Parallel& pool, int64_t budget) {
  std::unique_ptr<Evaluator> e(new Evaluator(setup, evaluation, ranks));
  LIGNUM_ASSIGN_OR_RETURN(e->executor_, make_executor(setup, evaluation.program, ranks, pool, budget));
  return e;
}

Status Evaluator::copy_parameters(exec::Executor& from) {
  const auto count = static_cast<int64_t>(models::parameters(setup_.model).size());
  for (int64_t i = 0; i < count; ++i) {
    exec::ParamView source(from, evaluation_.program.local->param_name(i)), copy(*executor_, i);
    const int64_t row = std::max<int64_t>(1, std::min(source.row_bytes(), copy.row_bytes()));
    for (int64_t at = 0; at < copy.bytes(); at += row)
      std::memcpy(copy.write(at), source.read(at), static_cast<size_t>(row));
    LIGNUM_RETURN_IF_ERROR(source.finish());
    LIGNUM_RETURN_IF_ERROR(copy.finish());
  }
  return {};
}

Result<std::optional<EvalMetrics>> Evaluator::run(int64_t step, const Stop& stop) {
  const auto begin = std::chrono::steady_clock::now();
  const passes::Mesh& mesh = setup_.step.mesh;
  const BatchInputs inputs(*executor_, evaluation_.program, mesh, ranks_.rank());
  EvalMetrics m;
  m.step = step;
  double all_loss = 0, all_tokens = 0, all_bytes = 0;
  bool has_bytes = true;
  for (const EvalData& data : evaluation_.sets) {
    double loss = 0, tokens = 0;
    for (int64_t b = 0; b < data.batches(); ++b) {
      LIGNUM_ASSIGN_OR_RETURN(const bool stopped, stop());
      if (stopped) return std::optional<EvalMetrics>();
      data.fill(b, row_group(mesh, ranks_.rank()), batch_);
      inputs.put(batch_, 0);
      LIGNUM_RETURN_IF_ERROR(executor_->step().with_context(fmt::format("evaluation, batch {}", b)));
      loss += static_cast<double>(read_scalar(*executor_, "loss_sum"));
      tokens += static_cast<double>(read_scalar(*executor_, "tokens"));
    }
    EvalMetrics::Set set{data.name(), tokens > 0 ? loss / tokens : 0, {}, static_cast<int64_t>(tokens)};
    const double bytes = data.rows().bytes_per_token();
    if (bytes > 0) set.loss_per_byte = set.loss / bytes;
    all_loss += loss;
    all_tokens += tokens;
    all_bytes += tokens * bytes;
    has_bytes = has_bytes && bytes > 0;
    m.sets.push_back(std::move(set));
  }
  if (m.sets.size() == 1 && m.sets[0].name.empty()) {
    m.loss_per_byte = m.sets[0].loss_per_byte;
    m.sets.clear();
  } else if (has_bytes && all_bytes > 0) {
    m.loss_per_byte = all_loss / all_bytes;
  }
  m.loss = all_tokens > 0 ? all_loss / all_tokens : 0;
  m.tokens = static_cast<int64_t>(all_tokens);
  m.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return std::optional(std::move(m));
}

namespace {

Result<EvalMetrics> evaluate_on(const Ranks& own, const config::Config& config, const std::string& folder,
                                int64_t step, const Processes& processes) {
  LIGNUM_RETURN_IF_ERROR(own.agree(config.to_json()));
  LIGNUM_ASSIGN_OR_RETURN(Setup setup, make_setup(config, nullptr, processes));
  if (!folder.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(setup.tokenizer,
                            tokenizer_of_weights(folder, setup.tokenizer, config, setup.model.vocab_size));
  }
  LIGNUM_RETURN_IF_ERROR(share_kernels(own, setup));
  LIGNUM_RETURN_IF_ERROR(own.agree({{"the weights", folder}}));
  LIGNUM_ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluation::make(config, setup));
  std::optional<ModelFiles> files;
  if (!folder.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(files, ModelFiles::open(folder));
  }
  EvalMetrics result;
  const auto body = [&](comm::Transport& transport) -> Status {
    LIGNUM_ASSIGN_OR_RETURN(const Ranks ranks, Ranks::join(transport));
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(setup.threads));
    LIGNUM_ASSIGN_OR_RETURN(
        const auto evaluator,
        Evaluator::create(setup, evaluation, ranks, *pool, memory_budget(config, nullptr, setup.ranks_here)));
    const Status loaded = [&]() -> Status {
      if (files) return load_parameters(setup.model, *files, evaluator->shards(), evaluator->executor());
      return init_parameters(setup.model, evaluator->shards(), evaluator->executor(),
                             static_cast<uint64_t>(config.integer("init_weights_seed")));
    }();
    if (!loaded.ok()) return ranks.give_up(loaded);
    const auto metrics = evaluator->run(step, [] { return Result<bool>(false); });
    if (!metrics.ok()) return ranks.give_up(metrics.status());
    if (ranks.is_first() || processes.transport != nullptr) result = metrics->value();
    return {};
  };
  LIGNUM_RETURN_IF_ERROR(processes.transport != nullptr
                             ? body(*processes.transport)
                             : comm::ThreadWorld(static_cast<int>(setup.ranks)).run(body));
  return result;
}

}  // namespace

Result<EvalMetrics> evaluate(const config::Config& config, const std::string& folder, int64_t step,
                             const Processes& processes) {
  LIGNUM_ASSIGN_OR_RETURN(const Ranks own, Ranks::join(processes));
  Result<EvalMetrics> metrics = evaluate_on(own, config, folder, step, processes);
  if (!metrics.ok()) static_cast<void>(own.give_up(metrics.status()));
  return metrics;
}

}  // namespace lignum::train
