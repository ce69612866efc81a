#include "train/rank_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "comm/paced.h"
#include "exec/thread_pool.h"
#include "train/batch_loader.h"
#include "train/event_file.h"
#include "train/quantization_log.h"

namespace lignum::train {
namespace {

// A NonFinite that can go from rank to rank.
struct Culprit {
  bool found = false;
  ir::Role role = ir::Role::forward;
  int64_t layer = -1, rank = -1;
  double value = 0;
  decltype(exec::NonFinite::when) when{};
  char kind[64] = {}, path[256] = {};
};

Culprit culprit_of(const std::optional<exec::NonFinite>& n, int64_t rank) {
  Culprit c;
  if (!n) return c;
  c.found = true;
  c.role = n->role;
  c.layer = n->layer;
  c.rank = rank;
  c.value = n->value;
  c.when = n->when;
  n->kind.copy(c.kind, sizeof(c.kind) - 1);
  n->path.copy(c.path, sizeof(c.path) - 1);
  return c;
}

// The most that this process has held in memory, by the kernel's count.
Result<int64_t> process_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return internal_error("/proc/self/status has no VmHWM");
}

std::string describe(const Culprit& c) {
  if (!c.found) return "no result of the step itself is: a sum over ranks or the update overflows";
  const std::string layer = c.layer >= 0 ? fmt::format(", layer {}", c.layer) : "";
  return fmt::format("the first value that is not finite is {} in the result of {} at {}{} ({}, rank {})",
                     c.value, c.kind, c.path, layer, ir::role_name(c.role), c.rank);
}

class RankLoop {
 public:
  RankLoop(const Run& run, const Ranks& ranks, TrainSummary& summary, Profile& profile)
      : run_(run), ranks_(ranks), summary_(summary), profile_(profile) {}

  Status start() {
    LIGNUM_ASSIGN_OR_RETURN(pool_, exec::ThreadPool::create(run_.setup.threads));
    LIGNUM_ASSIGN_OR_RETURN(executor_, make_executor(run_.setup, run_.program, ranks_, *pool_, run_.budget));
    if (run_.evaluation) {
      const int64_t left = left_for_evaluation(run_.budget, run_.program.memory.arena_bytes);
      LIGNUM_ASSIGN_OR_RETURN(evaluator_,
                              Evaluator::create(run_.setup, *run_.evaluation, ranks_, *pool_, left));
    }
    LIGNUM_RETURN_IF_ERROR(load_state());
    loader_.emplace(run_.data, row_group(run_.setup.step.mesh, ranks_.rank()), rows_consumed_,
                    static_cast<int>(run_.config.integer("grain_worker_count")));
    if (ranks_.is_first()) {
      LIGNUM_ASSIGN_OR_RETURN(metrics_, MetricsFile::open(join_path(run_.folder, "metrics.jsonl"), step_));
      if (run_.setup.step.watch.errors) {
        LIGNUM_ASSIGN_OR_RETURN(quantization_,
                                MetricsFile::open(join_path(run_.folder, "quantization.jsonl"), step_));
      }
      if (run_.setup.step.watch.ranges)
        ranges_.emplace(run_.program, run_.setup.step.accumulation, run_.setup.model.layers);
      EventFile::Options events;
      events.first_step = step_;
      events.ranks = ranks_.size();
      events.clip = run_.config.real("gradient_clipping_threshold");
      LIGNUM_ASSIGN_OR_RETURN(events_, EventFile::create(join_path(run_.folder, "tensorboard"), events));
      const auto all = static_cast<double>(ranks_.size());
      model_flops_ =
          models::training_flops(run_.setup.model, run_.setup.batch.global_rows(), run_.setup.batch.seq);
      hardware_flops_ = model_flops_ + all * plan::recomputed_flops(run_.program.scheduled);
      if (const hw::Spec* spec = run_.options.spec; spec != nullptr) {
        const Result<double> peak = spec->peak_matmul_flops(run_.setup.step.shape.dtype);
        if (peak.ok()) peak_ = *peak;
      }
      summary_.first_step = step_;
    }
    return ranks_.barrier();
  }

  Status run() {
    const int64_t steps = run_.steps, eval_interval = run_.config.integer("eval_interval"),
                  period = run_.config.integer("checkpoint_period");
    LIGNUM_ASSIGN_OR_RETURN(int stop, asked_to_stop());  // a signal may have come while the run was prepared
    if (stop != 0 && run_.checkpoints) LIGNUM_RETURN_IF_ERROR(save());
    std::string ended;
    if (evaluator_ && stop == 0 && policy_.owes_evaluation(step_)) {
      LIGNUM_RETURN_IF_ERROR(evaluate(stop));
      ended = policy_.end_reason();
    }
    while (step_ < steps && stop == 0 && ended.empty()) {
      LIGNUM_RETURN_IF_ERROR(one_step());
      LIGNUM_ASSIGN_OR_RETURN(stop, asked_to_stop());
      // Before the save, which keeps what the evaluation showed.
      if (evaluator_ && stop == 0 && (step_ == steps || step_ % eval_interval == 0)) {
        LIGNUM_RETURN_IF_ERROR(evaluate(stop));
        if (step_ < steps) ended = policy_.end_reason();
      }
      const bool last = step_ == steps || stop != 0 || !ended.empty();
      if (run_.checkpoints && (last || step_ % period == 0)) LIGNUM_RETURN_IF_ERROR(save());
    }
    if (!ended.empty() && ranks_.is_first()) {
      summary_.ended_early = ended;
      run_.log(fmt::format("ends after {} of {} steps: {}", step_, steps, ended));
    }
    LIGNUM_RETURN_IF_ERROR(measure_processes());
    if (ranks_.is_first()) return finish(stop);
    return {};
  }

 private:
  RankShards shards() const { return {run_.program, run_.setup.step.mesh, ranks_.rank()}; }
  RankState state() const {
    return {run_.setup.model, run_.setup.step.optimizer.moments(), shards(), *executor_, ranks_};
  }

  // The same on every rank, so that all stop after the same step. Where ranks are processes the signal may
  // have come to any of them.
  Result<int> asked_to_stop() const {
    const bool listens = ranks_.is_first() || run_.options.processes.transport != nullptr;
    const int own = listens && run_.options.stop != nullptr ? run_.options.stop->load() : 0;
    LIGNUM_ASSIGN_OR_RETURN(const int32_t asked, ranks_.count(own != 0));
    if (asked == 0) return 0;
    return own != 0 ? own : SIGTERM;
  }

  Status measure_processes() {
    if (run_.options.processes.transport == nullptr) return {};
    for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
      LIGNUM_ASSIGN_OR_RETURN(int64_t bytes, process_peak_bytes());
      LIGNUM_RETURN_IF_ERROR(ranks_.share(bytes, rank));
      if (ranks_.is_first()) summary_.process_bytes.push_back(bytes);
    }
    return {};
  }

  Status load_state() {
    policy_ = StepPolicy(run_.config, run_.resume ? run_.resume->state.policy : PolicyState());
    if (run_.resume) {
      step_ = run_.resume->state.step;
      rows_consumed_ = run_.resume->state.rows_consumed;
      return read_checkpoint(*run_.resume, state());
    }
    if (!run_.weights.empty()) {
      // Closed on return: a mapping that stayed would count as the run's memory to its end.
      LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(run_.weights));
      return load_parameters(run_.setup.model, files, shards(), *executor_);
    }
    return init_parameters(run_.setup.model, shards(), *executor_,
                           static_cast<uint64_t>(run_.config.integer("init_weights_seed")));
  }

  void put_inputs(float learning_rate) {
    const BatchInputs inputs(*executor_, run_.program, run_.setup.step.mesh, ranks_.rank());
    for (int64_t m = 0; m < run_.setup.batch.micro_steps; ++m) inputs.put(loader_->next(), m);
    const auto updates = static_cast<int32_t>(policy_.updates(step_));
    std::memcpy(executor_->param("learning_rate"), &learning_rate, sizeof(learning_rate));
    std::memcpy(executor_->param("step"), &updates, sizeof(updates));
    if (run_.setup.step.optimizer.limits) {
      const StepPolicy::Limits limits = policy_.limits();
      std::memcpy(executor_->param("loss_limit"), &limits.loss, sizeof(limits.loss));
      std::memcpy(executor_->param("grad_norm_limit"), &limits.grad_norm, sizeof(limits.grad_norm));
    }
  }

  Status one_step() {
    const auto learning_rate = static_cast<float>(run_.setup.schedule.at(step_));
    put_inputs(learning_rate);
    const bool traced = is_traced();
    executor_->set_trace(traced ? &profile_.begin() : nullptr);
    const auto begin = std::chrono::steady_clock::now();
    LIGNUM_RETURN_IF_ERROR(executor_->step().with_context(fmt::format("step {}", step_)));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const float loss = read_scalar(*executor_, "loss"), norm = read_scalar(*executor_, "grad_norm");
    // Both are the same number on every rank, and so is what follows from them.
    const StepPolicy::Judgement judged = policy_.judge(step_, loss, norm);
    if (judged.verdict == StepPolicy::Verdict::abort) return stop_non_finite(loss, norm);
    if (traced) profile_.add(seconds);
    if (ranks_.is_first()) LIGNUM_RETURN_IF_ERROR(report(loss, norm, learning_rate, seconds, judged.why));
    ++step_;
    rows_consumed_ += run_.setup.batch.global_rows();
    return {};
  }

  // A line is due: those steps are traced too, from the third of this call on, when all is warm.
  bool has_line() const { return step_ % run_.config.integer("log_period") == 0 || step_ + 1 == run_.steps; }
  bool is_traced() const {
    return ranks_.is_first() && seconds_.size() >= 2 && (seconds_.size() == 2 || has_line());
  }

  Status report(float loss, float norm, float learning_rate, double seconds, const std::string& skipped) {
    StepMetrics m;
    m.step = step_;
    m.skipped = skipped;
    if (!skipped.empty()) run_.log(fmt::format("step {} is skipped, no update: {}", step_, skipped));
    m.loss = loss;
    m.grad_norm = norm;
    m.learning_rate = learning_rate;
    if (run_.setup.step.shape.z_loss > 0) m.z_loss = read_scalar(*executor_, "z_loss");
    m.tokens = static_cast<int64_t>(read_scalar(*executor_, "tokens"));
    m.seconds = seconds;
    m.tokens_per_s = static_cast<double>(m.tokens) / seconds;
    const Setup& s = run_.setup;
    m.tflops = model_flops_ / seconds / static_cast<double>(s.ranks) * 1e-12;
    if (peak_) {
      m.mfu = model_flops_ / seconds / *peak_;
      m.hfu = hardware_flops_ / seconds / *peak_;
    }
    const int64_t steps = run_.steps;
    m.eta_seconds = eta(steps);
    const bool last = step_ + 1 == steps, line = has_line();
    // The arena grows by what a step touches first: two steps touch all. Reading the kernel's count takes a
    // while.
    if (seconds_.size() < 2 || line) {
      LIGNUM_ASSIGN_OR_RETURN(resident_, executor_->arena().resident_bytes());
      LIGNUM_ASSIGN_OR_RETURN(process_, process_resident_bytes());
    }
    m.memory_bytes = resident_;
    m.process_bytes = process_;
    if (ranges_ && skipped.empty()) ranges_->add(*executor_);
    if (line && quantization_) {
      const std::vector<OperandLosses> losses =
          quantization_losses(run_.program, s.step.accumulation, *executor_);
      m.quantization = worst_of(losses);
      LIGNUM_RETURN_IF_ERROR(quantization_->append(to_json(step_, losses)));
    }
    seconds_.push_back(seconds);
    summary_.last = m;
    if (run_.options.progress) run_.options.progress(m, steps);
    if (line && (last || !run_.options.progress)) run_.log(to_line(m));
    LIGNUM_RETURN_IF_ERROR(events_->add(m));
    return record(to_json(m));
  }

  // At the pace since the first step of this call, with evaluations and saves; the first step warms up.
  std::optional<double> eta(int64_t steps) {
    const auto now = std::chrono::steady_clock::now();
    if (seconds_.empty()) first_end_ = now;
    if (seconds_.empty() || step_ + 1 == steps) return std::nullopt;
    const double pace =
        std::chrono::duration<double>(now - first_end_).count() / static_cast<double>(seconds_.size());
    return pace * static_cast<double>(steps - step_ - 1);
  }

  Status record(const nlohmann::ordered_json& json) {
    if (run_.options.record) run_.options.record(json);
    return metrics_->append(json);
  }

  Status save() {
    CheckpointState s;
    s.step = step_;
    s.rows_consumed = rows_consumed_;
    s.data = run_.data.fingerprint();
    s.isa = kernels::isa_name(run_.setup.kernels.choice.isa);
    s.bf16_dot = kernels::bf16_dot_name(run_.setup.kernels.choice.bf16_dot);
    s.mesh = run_.setup.step.mesh.axes;
    s.policy = policy_.state();
    s.init_weights_seed = run_.config.integer("init_weights_seed");
    s.data_shuffle_seed = run_.config.integer("data_shuffle_seed");
    s.config = run_.config.to_yaml();
    if (run_.setup.tokenizer) {
      s.tokenizer = run_.setup.tokenizer->bytes;
      s.tokenizer_file = run_.setup.tokenizer->file_name;
    }
    LIGNUM_RETURN_IF_ERROR(write_checkpoint(run_.folder, s, state()));
    if (!ranks_.is_first()) return {};
    summary_.checkpoint = checkpoint_folder(run_.folder, step_);
    run_.log(fmt::format("saved {}", summary_.checkpoint));
    return {};
  }

  // A signal ends it and is in `stop`; the resume evaluates again.
  Status evaluate(int& stop) {
    LIGNUM_RETURN_IF_ERROR(evaluator_->copy_parameters(*executor_));
    const auto stopped = [&]() -> Result<bool> {
      LIGNUM_ASSIGN_OR_RETURN(stop, asked_to_stop());
      return stop != 0;
    };
    LIGNUM_ASSIGN_OR_RETURN(const std::optional<EvalMetrics> done, evaluator_->run(step_, stopped));
    if (!done) return {};
    const EvalMetrics& m = *done;
    policy_.add_evaluation(step_, m.loss);
    if (!ranks_.is_first()) return {};
    summary_.eval = m;
    run_.log(to_line(m));
    LIGNUM_RETURN_IF_ERROR(events_->add(m));
    return record(to_json(m));
  }

  // The same step again, with every result looked at: the state is still the one that made it.
  Status stop_non_finite(float loss, float norm) {
    Result<std::optional<exec::NonFinite>> own = executor_->find_non_finite();
    if (!own.ok()) return own.status();
    Culprit first;
    for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
      Culprit c = culprit_of(*own, ranks_.rank());
      LIGNUM_RETURN_IF_ERROR(ranks_.share(c, rank));
      if (c.found && (!first.found || c.when < first.when)) first = c;
    }
    std::string kept = "; parameters and moments are those before this step";
    if (run_.checkpoints) {
      LIGNUM_RETURN_IF_ERROR(save());
      kept += fmt::format(", saved in {}", checkpoint_folder(run_.folder, step_));
    }
    return check_failed("step {}: loss {}, grad_norm {}: {}{}", step_, loss, norm, describe(first), kept);
  }

  Status finish(int stop) {
    if (ranges_) {
      const std::string& path = run_.config.text("save_quant_stats_path");
      LIGNUM_RETURN_IF_ERROR(ranges_->write(path));
      run_.log(fmt::format("quantised operands' ranges in {}", path));
    }
    summary_.stopped_by = stop;
    summary_.skipped_steps = policy_.state().skipped_steps;
    summary_.steps = static_cast<int64_t>(seconds_.size());
    summary_.resident_bytes = resident_;
    std::vector<double> steady(seconds_.begin() + (seconds_.size() > 4 ? 2 : 0), seconds_.end());
    if (!steady.empty()) {
      std::nth_element(steady.begin(), steady.begin() + static_cast<std::ptrdiff_t>(steady.size() / 2),
                       steady.end());
      summary_.median_step_seconds = steady[steady.size() / 2];
    }
    return {};
  }

  const Run& run_;
  const Ranks& ranks_;
  TrainSummary& summary_;
  Profile& profile_;
  std::optional<BatchLoader> loader_;
  StepPolicy policy_;
  std::unique_ptr<exec::ThreadPool> pool_;
  std::unique_ptr<exec::Executor> executor_;
  std::unique_ptr<Evaluator> evaluator_;
  std::optional<MetricsFile> metrics_, quantization_;
  std::optional<RangeRecorder> ranges_;
  std::optional<EventFile> events_;
  double model_flops_ = 0, hardware_flops_ = 0;  // of a step, all ranks
  std::optional<double> peak_;                   // FLOP/s of the machine
  int64_t step_ = 0;                             // the next one
  int64_t rows_consumed_ = 0;                    // before it
  int64_t resident_ = 0, process_ = 0;
  std::chrono::steady_clock::time_point first_end_;  // of this call's first step
  std::vector<double> seconds_;
};

// What a collective takes on that link.
comm::PacedTransport::Seconds paces(const hw::Link& link) {
  return [link](const comm::Collective& c, int group) {
    const auto time = [&](hw::Collective op, int64_t rows) {
      return hw::link_time(link, op, static_cast<double>(c.outer * rows * c.row_elems * dtype_size(c.dtype)),
                           group);
    };
    switch (c.kind) {
      case comm::Kind::all_gather:
        return time(hw::Collective::all_gather, c.logical_rows);
      case comm::Kind::reduce_scatter:
        return time(hw::Collective::reduce_scatter, c.logical_rows);
      case comm::Kind::all_reduce:
        return time(hw::Collective::all_reduce, c.local_rows);
      case comm::Kind::permute:
      case comm::Kind::broadcast:
        return time(hw::Collective::collective_permute, c.local_rows);
      case comm::Kind::barrier:
        return 0.0;
    }
    return 0.0;
  };
}

}  // namespace

Status run_rank(const Run& run, comm::Transport& transport, TrainSummary& summary, Profile& profile) {
  comm::PacedTransport paced(transport, paces(run.setup.step.link));
  LIGNUM_ASSIGN_OR_RETURN(const Ranks ranks,
                          Ranks::join(run.setup.step.link.bandwidth > 0 ? paced : transport));
  RankLoop loop(run, ranks, summary, profile);
  Status status = loop.start();
  if (status.ok()) status = loop.run();
  // Before the executors end: others may wait for this rank inside a step.
  return status.ok() ? status : ranks.give_up(status);
}

}  // namespace lignum::train
