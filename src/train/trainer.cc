#include "train/trainer.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/file_lock.h"
#include "comm/threads.h"
#include "exec/arena.h"
#include "plan/budget.h"
#include "plan/price.h"
#include "plan/report.h"
#include "report/report.h"
#include "train/parameters.h"
#include "train/rank_loop.h"
#include "train/run_files.h"

namespace lignum::train {
namespace {

bool same_mesh(const std::vector<passes::MeshAxis>& a, const std::vector<passes::MeshAxis>& b) {
  return mesh_text(a) == mesh_text(b);
}

// The newest checkpoint of the run, checked; nothing where there is none.
Result<std::optional<Checkpoint>> newest_checkpoint(const std::string& folder) {
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, list_checkpoints(folder));
  if (steps.empty()) return std::optional<Checkpoint>();
  LIGNUM_ASSIGN_OR_RETURN(Checkpoint c, open_checkpoint(checkpoint_folder(folder, steps.back())));
  if (c.state.step != steps.back())
    return user_error("checkpoint {} is damaged: its state.json says step {}", c.folder, c.state.step);
  return std::optional<Checkpoint>(std::move(c));
}

// What the checkpoint was trained with and this run is not: allowed, and said.
void log_changes(const Checkpoint& c, const Run& run) {
  const Result<config::Config> before = config::Config::parse(c.state.config, c.folder + "/state.json", {});
  if (!before.ok()) {
    run.log(fmt::format("what changed since is not known: {}", before.status().message()));
  } else if (const std::vector<std::string> changes = run.config.changes_since(*before); !changes.empty()) {
    run.log(fmt::format("changed since: {}", fmt::join(changes, ", ")));
  }
}

// Whether the run may go on from it, and with which kernels. Says what differs.
Status adopt(const Checkpoint& c, const config::Config& config, const TrainData& data, Setup& setup,
             const TrainOptions& options) {
  if (!(c.model == setup.model)) {
    return user_error("{} holds another model than the configuration describes; use another run_name",
                      c.folder);
  }
  if (c.state.data != data.fingerprint()) {
    return user_error("{} was trained on other rows ({}) than these ({}); use another run_name", c.folder,
                      c.state.data, data.fingerprint());
  }
  const bool exact = config.text("resume_kernels") == "exact";
  const auto differs = [&](const std::string& what) -> Status {
    if (exact) return user_error("resume_kernels=exact: {}: {}", c.folder, what);
    if (options.log) options.log(what + ": the bits will differ from an uninterrupted run's");
    return {};
  };
  AdoptedKernels adopted = adopt_kernels(config, c.state.isa, c.state.bf16_dot, setup.kernels);
  for (const std::string& what : adopted.differs) LIGNUM_RETURN_IF_ERROR(differs(what));
  setup.kernels = std::move(adopted.kernels);
  setup.step.bf16_dot = kernels::bf16_dot_name(setup.kernels.choice.bf16_dot);
  if (!same_mesh(c.state.mesh, setup.step.mesh.axes)) {
    return differs(fmt::format("written on a mesh of {}, now {}", mesh_text(c.state.mesh),
                               mesh_text(setup.step.mesh.axes)));
  }
  return {};
}

std::string decay_text(const Setup& s) {
  const passes::Optimizer& o = s.step.optimizer;
  if (o.kind != passes::Optimizer::Kind::adamw || o.weight_decay == 0) return "; no weight decay";
  const std::vector<std::string> kept = not_decayed(s.model, o);
  return kept.empty() ? "; weight decay: every parameter"
                      : fmt::format("; weight decay: every parameter but {}", fmt::join(kept, ", "));
}

void log_start(const Run& run) {
  const Setup& s = run.setup;
  run.log(fmt::format("run {}: {} parameters, {}, {} threads a rank, {}", run.folder, s.model.parameters(),
                      mesh_text(s.step.mesh.axes), s.threads, describe(s.kernels)));
  const passes::MemoryPlan& memory = run.program.memory;
  run.log(fmt::format("{} rows of {} tokens a step; planned memory {} a rank", s.batch.global_rows(),
                      s.batch.seq, plan::bytes_text(static_cast<double>(memory.arena_bytes))));
  if (memory.host_bytes > 0)
    run.log(fmt::format("{} a rank offloaded to {}", plan::bytes_text(static_cast<double>(memory.host_bytes)),
                        s.host_memory));
  if (s.tokenizer) {
    run.log(fmt::format("{}: {} tokens, {:.2f} bytes of text a token", s.tokenizer->path,
                        s.tokenizer->tokenizer.vocab_size(), run.data.bytes_per_token()));
  }
  run.log(describe(s.step.optimizer) + decay_text(s));
  for (const std::string& note : run.config.notes()) run.log(note);
  for (const std::string& note : run.program.notes) run.log(note);
  if (run.resume) {
    run.log(fmt::format("resumes from {}", run.resume->folder));
    log_changes(*run.resume, run);
  } else if (!run.weights.empty()) {
    run.log(fmt::format("weights from {}", run.weights));
  }
}

// The data may end before the steps do.
Status limit_steps(Run& run) {
  const int64_t step = run.resume ? run.resume->state.step : 0;
  const int64_t row = run.resume ? run.resume->state.rows_consumed : 0;
  LIGNUM_RETURN_IF_ERROR(run.data.check_steps(row, run.steps - step));
  if (run.data.end_row() == TrainData::kEndless) return {};
  const int64_t left = std::max<int64_t>(0, run.data.end_row() - row) / run.setup.batch.global_rows();
  if (left == 0 && !run.resume) {
    return user_error(
        "end_of_data=stop: train_files have {} rows in num_epoch epochs, a step needs {}; lower "
        "per_device_batch_size or gradient_accumulation_steps, or set end_of_data=repeat",
        run.data.end_row(), run.setup.batch.global_rows());
  }
  if (step + left < run.steps) {
    run.steps = step + left;
    run.log(fmt::format("end_of_data=stop: the data is enough for {} steps", run.steps));
  }
  return {};
}

std::optional<plan::Price> predict(const Run& run, TrainSummary& summary) {
  summary.planned_bytes = run.program.memory.arena_bytes;
  if (run.options.spec == nullptr) {
    summary.no_prediction = run.options.no_spec;
    return {};
  }
  Result<plan::Price> price = plan::price(run.program, run.setup.step, *run.options.spec);
  if (!price.ok()) {
    summary.no_prediction = price.status().message();
    return {};
  }
  summary.predicted_step_seconds = price->step_seconds;
  return std::move(price).value();
}

// What was promised beside what was seen.
void log_end(const Run& run, const TrainSummary& s) {
  const auto percent = [](double predicted, double measured) { return 100 * (predicted / measured - 1); };
  if (s.steps == 0) return;
  run.log(fmt::format("memory     predicted {:>10}  measured {:>10}  {:+.1f} %",
                      plan::bytes_text(static_cast<double>(s.planned_bytes)),
                      plan::bytes_text(static_cast<double>(s.resident_bytes)),
                      percent(static_cast<double>(s.planned_bytes), static_cast<double>(s.resident_bytes))));
  for (size_t rank = 0; rank < s.process_bytes.size(); ++rank) {
    run.log(fmt::format("rank {:<5} at most {} resident, all of the process", rank,
                        plan::bytes_text(static_cast<double>(s.process_bytes[rank]))));
  }
  if (s.predicted_step_seconds) {
    run.log(fmt::format("step time  predicted {:>10}  measured {:>10}  {:+.1f} %",
                        plan::seconds_text(*s.predicted_step_seconds),
                        plan::seconds_text(s.median_step_seconds),
                        percent(*s.predicted_step_seconds, s.median_step_seconds)));
  } else {
    run.log(fmt::format("step time  measured {} (no prediction: {})",
                        plan::seconds_text(s.median_step_seconds), s.no_prediction));
  }
  run.log(fmt::format("report {}", s.report));
}

}  // namespace

std::string mesh_text(const std::vector<passes::MeshAxis>& axes) {
  std::vector<std::string> parts;
  for (const passes::MeshAxis& a : axes)
    if (a.size > 1) parts.push_back(fmt::format("{}={}", a.name, a.size));
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, " "));
}

nlohmann::ordered_json to_json(const TrainSummary& s) {
  nlohmann::ordered_json j = {{"run", s.folder},
                              {"first_step", s.first_step},
                              {"steps", s.steps},
                              {"checkpoint", s.checkpoint},
                              {"stopped_by", s.stopped_by},
                              {"skipped_steps", s.skipped_steps},
                              {"planned_bytes", s.planned_bytes},
                              {"resident_bytes", s.resident_bytes},
                              {"median_step_seconds", s.median_step_seconds}};
  if (!s.process_bytes.empty()) j["process_bytes"] = s.process_bytes;
  if (s.predicted_step_seconds) j["predicted_step_seconds"] = *s.predicted_step_seconds;
  if (!s.ended_early.empty()) j["ended_early"] = s.ended_early;
  if (s.last) j["loss"] = s.last->loss;
  if (s.eval) j["eval_loss"] = s.eval->loss;
  if (!s.report.empty()) j["report"] = s.report;
  return j;
}

namespace {

// The first process alone makes the folder, holds its lock and clears what an earlier run left half done; the
// others go on once it has.
Result<std::optional<FileLock>> take_folder(const std::string& folder, bool checkpoints,
                                            const Ranks& processes) {
  if (!processes.is_first()) {
    LIGNUM_RETURN_IF_ERROR(processes.barrier());
    return std::optional<FileLock>();
  }
  LIGNUM_RETURN_IF_ERROR(make_directories(folder));
  // Two runs in one folder would mix their records and checkpoints.
  Result<FileLock> lock = FileLock::acquire(join_path(folder, "lock"));
  if (!lock.ok())
    return lock.status().with_context(
        "the lock of the run (two processes cannot train one run: use another run_name)");
  if (checkpoints) LIGNUM_RETURN_IF_ERROR(remove_unfinished(folder));
  LIGNUM_RETURN_IF_ERROR(processes.barrier());
  return std::optional<FileLock>(std::move(lock).value());
}

// Before anything is written: what does not fit leaves no run, nor a folder of one.
Status fits(const Setup& setup, const plan::Program& step, const std::optional<Evaluation>& evaluation,
            const plan::Machine& machine) {
  LIGNUM_RETURN_IF_ERROR(plan::check_budget(setup.step, step, machine));
  if (!evaluation) return {};
  return exec::Arena::check_budget(evaluation->program.memory.arena_bytes,
                                   left_for_evaluation(machine.device_memory, step.memory.arena_bytes));
}

Result<TrainSummary> train_on(const Ranks& processes, const config::Config& config,
                              const TrainOptions& options) {
  LIGNUM_RETURN_IF_ERROR(processes.agree(config.to_json()));
  LIGNUM_ASSIGN_OR_RETURN(Setup setup, make_setup(config, options.spec, options.processes));
  LIGNUM_RETURN_IF_ERROR(share_kernels(processes, setup));
  LIGNUM_ASSIGN_OR_RETURN(TrainData data,
                          TrainData::open(config, setup.model.vocab_size, setup.batch, setup.tokenizer));
  LIGNUM_ASSIGN_OR_RETURN(plan::Program program, plan::make_program(setup.step));
  std::optional<Evaluation> evaluation;
  if (config.integer("eval_interval") > 0) {
    LIGNUM_ASSIGN_OR_RETURN(evaluation, Evaluation::make(config, setup));
  }
  const int64_t budget = memory_budget(config, options.spec, setup.ranks_here);
  LIGNUM_RETURN_IF_ERROR(fits(setup, program, evaluation, {budget, options.spec, {}}));
  int64_t host_bytes = program.memory.host_bytes, arena_bytes = program.memory.arena_bytes;
  if (evaluation) {
    host_bytes += evaluation->program.memory.host_bytes;
    arena_bytes += evaluation->program.memory.arena_bytes;
  }
  LIGNUM_RETURN_IF_ERROR(check_host_memory(setup, host_bytes, arena_bytes));
  std::string folder = run_folder(config);
  LIGNUM_RETURN_IF_ERROR(processes.share_text(folder));  // its name may come from a clock
  const bool checkpoints = config.boolean("enable_checkpointing");
  LIGNUM_ASSIGN_OR_RETURN(const std::optional<FileLock> lock, take_folder(folder, checkpoints, processes));
  std::optional<Checkpoint> resume;
  if (checkpoints) {
    LIGNUM_ASSIGN_OR_RETURN(resume, newest_checkpoint(folder));
    if (resume) LIGNUM_RETURN_IF_ERROR(adopt(*resume, config, data, setup, options));
  }
  // What a machine, its files and its view of a shared folder make of one configuration.
  LIGNUM_RETURN_IF_ERROR(processes.agree({{"the rows of train_files", data.fingerprint()},
                                          {"the newest checkpoint", resume ? resume->state.step : -1},
                                          {"the CRC of its manifest", resume ? resume->manifest : 0}}));
  const std::string weights = resume ? "" : config.text("model_path");
  if (!weights.empty() && processes.size() > 1) {
    LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(weights));
    LIGNUM_ASSIGN_OR_RETURN(const uint32_t crc, weights_fingerprint(files));
    LIGNUM_RETURN_IF_ERROR(processes.agree({{"the CRC of model_path's tensors", crc}}));
  }
  Run run{.config = config,
          .options = options,
          .setup = std::move(setup),
          .program = std::move(program),
          .data = std::move(data),
          .steps = config.integer("steps"),
          .evaluation = std::move(evaluation),
          .folder = folder,
          .checkpoints = checkpoints,
          .resume = std::move(resume),
          .weights = weights,
          .budget = budget};
  LIGNUM_RETURN_IF_ERROR(limit_steps(run));
  log_start(run);
  TrainSummary summary;
  summary.folder = folder;
  if (run.resume) summary.checkpoint = run.resume->folder;
  const std::optional<plan::Price> price = predict(run, summary);
  if (run.resume && run.resume->state.step >= run.steps) {
    run.log(run.steps < config.integer("steps")
                ? std::string("the data has ended; end_of_data=repeat or a larger num_epoch goes on")
                : fmt::format("all {} steps are done; a larger `steps` goes on", run.steps));
    summary.first_step = run.resume->state.step;
    return summary;
  }
  if (run.resume) {
    const StepPolicy policy(config, run.resume->state.policy);
    if (const std::string ended = policy.end_reason(); !ended.empty()) {
      run.log(fmt::format("the run has ended after {} steps: {}; change that key to go on",
                          run.resume->state.step, ended));
      summary.first_step = run.resume->state.step;
      summary.ended_early = ended;
      return summary;
    }
  }
  report::RunRecord record = start_record(run, price ? &*price : nullptr, summary.no_prediction);
  if (processes.is_first()) LIGNUM_RETURN_IF_ERROR(write_record(folder, record));
  Profile profile(run.program.scheduled);
  const auto body = [&](comm::Transport& t) { return run_rank(run, t, summary, profile); };
  LIGNUM_RETURN_IF_ERROR(options.processes.transport != nullptr
                             ? body(*options.processes.transport)
                             : comm::ThreadWorld(static_cast<int>(run.setup.ranks)).run(body));
  if (processes.is_first() && summary.steps > 0) {
    add_measured(summary, profile, price ? &*price : nullptr, record);
    LIGNUM_RETURN_IF_ERROR(write_record(folder, record));
    if (config.text("profiler") == "trace")
      LIGNUM_RETURN_IF_ERROR(
          write_file_atomic(join_path(folder, "trace.json"), exec::chrome_json({&profile.last()}) + "\n"));
    LIGNUM_ASSIGN_OR_RETURN(summary.report, report::write_report(folder));
  }
  log_end(run, summary);
  return summary;
}

}  // namespace

Result<TrainSummary> train(const config::Config& config, const TrainOptions& options) {
  LIGNUM_ASSIGN_OR_RETURN(const Ranks processes, Ranks::join(options.processes));
  TrainOptions own = options;
  if (!processes.is_first()) {
    own.log = nullptr;
    own.record = nullptr;
    own.progress = nullptr;
  }
  Result<TrainSummary> summary = train_on(processes, config, own);
  if (!summary.ok()) static_cast<void>(processes.give_up(summary.status()));
  return summary;
}

}  // namespace lignum::train
