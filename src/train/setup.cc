#include "train/setup.h"

#include <unistd.h>

#include <ctime>
#include <regex>
#include <thread>

#include "base/file.h"
#include "comm/threads.h"

namespace lignum::train {
namespace {

Result<std::vector<std::regex>> mask_patterns(const config::Config& config) {
  std::vector<std::regex> patterns;
  for (const std::string& text : config.list("adamw_mask")) {
    try {
      patterns.emplace_back(text, std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error& e) {
      return user_error("adamw_mask: '{}' is no regular expression ({})", text, e.what());
    }
  }
  return patterns;
}

Result<int> threads_of_a_rank(const config::Config& config, int64_t ranks) {
  const int64_t threads = config.integer("threads");
  if (threads > 0) return static_cast<int>(threads);
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return static_cast<int>(std::max<int64_t>(1, cores / ranks));
}

}  // namespace

Result<plan::ProgramOptions> step_options(const config::Config& config, const config::ModelConfig& model,
                                          int64_t ranks) {
  LIGNUM_ASSIGN_OR_RETURN(plan::ProgramOptions o, plan::program_options(config, model, ranks));
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::regex> patterns, mask_patterns(config));
  o.adamw.decays = [patterns](const std::string& name) {
    for (const std::regex& p : patterns)
      if (std::regex_search(name, p)) return false;
    return true;
  };
  return o;
}

std::vector<std::string> not_decayed(const config::ModelConfig& model, const passes::AdamW& adamw) {
  std::vector<std::string> names;
  for (const models::Parameter& p : models::parameters(model))
    if (!adamw.decays(p.pattern)) names.push_back(p.pattern);
  return names;
}

Result<Setup> make_setup(const config::Config& config, const Processes& processes) {
  if (config.text("target") != "cpu") {
    return user_error("target={}: training and evaluation run on the CPU's own kernels; set target=cpu",
                      config.text("target"));
  }
  Setup s;
  LIGNUM_ASSIGN_OR_RETURN(s.model, config::model_from_config(config));
  s.ranks = config.ranks();
  if (s.ranks > comm::ThreadWorld::kMaxRanks) {
    return user_error("{} ranks (`ranks`, or the product of ici_*_parallelism): a run takes at most {}",
                      s.ranks, comm::ThreadWorld::kMaxRanks);
  }
  if (processes.transport != nullptr && processes.transport->size() != s.ranks) {
    return user_error(
        "{} ranks (`ranks`, or the product of ici_*_parallelism), but {} processes: they must be as many",
        s.ranks, processes.transport->size());
  }
  s.ranks_here = processes.transport != nullptr ? processes.here : s.ranks;
  LIGNUM_ASSIGN_OR_RETURN(s.threads, threads_of_a_rank(config, s.ranks_here));
  LIGNUM_ASSIGN_OR_RETURN(s.choice, kernels::choose(kernels::isa_from_name(config.text("isa"))));
  LIGNUM_ASSIGN_OR_RETURN(s.step, step_options(config, s.model, s.ranks));
  s.step.threads = s.threads;
  s.batch = {config.rows_per_device(), s.step.shape.sequence, s.ranks, s.step.accumulation};
  s.schedule = LearningRateSchedule::from(config);
  return s;
}

plan::ProgramOptions eval_options(const Setup& setup) {
  plan::ProgramOptions o = setup.step;
  o.accumulation = 1;
  o.outputs = plan::Outputs::loss;
  return o;
}

int64_t memory_budget(const config::Config& config, const hw::Spec* spec, int64_t ranks_here) {
  if (const int64_t bytes = config.integer("device_memory"); bytes > 0) return bytes;
  if (spec != nullptr) {
    const Result<double> bytes = spec->device_memory();
    if (bytes.ok()) return static_cast<int64_t>(*bytes / static_cast<double>(ranks_here));
    if (!spec->is_cpu()) return 0;
  }
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page / ranks_here : 0;
}

std::string run_folder(const config::Config& config) {
  std::string name = config.text("run_name");
  if (name.empty()) {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%d-%H%M%S", &utc);
    name = text;
  }
  return join_path(config.text("base_output_directory"), name);
}

}  // namespace lignum::train
