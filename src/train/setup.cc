#include "train/setup.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/file.h"
#include "comm/threads.h"
#include "plan/report.h"
#include "tokenizer/regex.h"

namespace lignum::train {
namespace {

// The parameters that a pattern of adamw_mask is found in.
Result<std::set<std::string>> masked_names(const config::Config& config, const config::ModelConfig& model) {
  std::set<std::string> names;
  for (const std::string& text : config.list("adamw_mask")) {
    const Result<tokenizer::Regex> pattern = tokenizer::Regex::compile(text);
    if (!pattern.ok()) return pattern.status().with_context("adamw_mask");
    for (const models::Parameter& p : models::parameters(model)) {
      const auto found = [&](size_t, size_t) { names.insert(p.pattern); };
      LIGNUM_RETURN_IF_ERROR(pattern->find(p.pattern, found).with_context("adamw_mask"));
    }
  }
  return names;
}

Result<int> threads_of_a_rank(const config::Config& config, int64_t ranks) {
  const int64_t threads = config.integer("threads");
  if (threads > 0) return static_cast<int>(threads);
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return static_cast<int>(std::max<int64_t>(1, cores / ranks));
}

// Bytes of RAM; 0 where the system does not tell.
int64_t physical_memory() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 0;
}

}  // namespace

Result<plan::ProgramOptions> step_options(const config::Config& config, const config::ModelConfig& model,
                                          int64_t ranks) {
  LIGNUM_ASSIGN_OR_RETURN(plan::ProgramOptions o, plan::program_options(config, model, ranks));
  LIGNUM_ASSIGN_OR_RETURN(std::set<std::string> masked, masked_names(config, model));
  o.optimizer.decays = [masked = std::move(masked)](const std::string& name) {
    return !masked.contains(name);
  };
  return o;
}

std::vector<std::string> not_decayed(const config::ModelConfig& model, const passes::Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const models::Parameter& p : models::parameters(model))
    if (!optimizer.decays(p.pattern)) names.push_back(p.pattern);
  return names;
}

Result<Setup> make_setup(const config::Config& config, const hw::Spec* spec, const Processes& processes) {
  if (config.text("target") != "cpu") {
    return user_error("target={}: training and evaluation run on the CPU's own kernels; set target=cpu",
                      config.text("target"));
  }
  Setup s;
  LIGNUM_ASSIGN_OR_RETURN(s.model, config::model_from_config(config));
  s.ranks = config.ranks();
  if (s.ranks > comm::ThreadWorld::kMaxRanks) {
    return user_error(
        "{} ranks (`ranks`, or the product of the ici_* and dcn_* axes): a run takes at most {}", s.ranks,
        comm::ThreadWorld::kMaxRanks);
  }
  if (processes.transport != nullptr && processes.transport->size() != s.ranks) {
    return user_error(
        "{} ranks (`ranks`, or the product of the ici_* and dcn_* axes), but {} processes: they must be as "
        "many",
        s.ranks, processes.transport->size());
  }
  s.ranks_here = processes.transport != nullptr ? processes.here : s.ranks;
  LIGNUM_ASSIGN_OR_RETURN(s.threads, threads_of_a_rank(config, s.ranks_here));
  LIGNUM_ASSIGN_OR_RETURN(s.kernels, choose_kernels(config, spec));
  LIGNUM_ASSIGN_OR_RETURN(s.step, step_options(config, s.model, s.ranks));
  s.step.threads = s.threads;
  s.step.bf16_dot = kernels::bf16_dot_name(s.kernels.choice.bf16_dot);
  s.step.fp16_sums = s.kernels.choice.fp8_accumulation == kernels::Fp8Accumulation::fp16_64;
  const int64_t groups = s.ranks / s.step.mesh.row_sharers();
  s.batch = {s.step.shape.batch / groups, s.step.shape.sequence, groups, s.step.accumulation};
  s.schedule = LearningRateSchedule::from(config);
  s.host_memory = config.text("host_memory");
  LIGNUM_ASSIGN_OR_RETURN(s.tokenizer, find_tokenizer(config, s.model.vocab_size));
  return s;
}

Status share_kernels(const Ranks& processes, Setup& s) {
  kernels::Choice& choice = s.kernels.choice;
  LIGNUM_RETURN_IF_ERROR(processes.agree({{"the kernels", kernels::isa_name(choice.isa)}}));
  std::string way(kernels::bf16_dot_name(choice.bf16_dot));
  LIGNUM_RETURN_IF_ERROR(processes.share_text(way));
  const std::optional<kernels::Bf16Dot> shared = kernels::bf16_dot_from_name(way);
  LIGNUM_CHECK(shared, "a way of bf16 dots called {}", way);
  if (*shared == choice.bf16_dot) return {};
  if (const char* why = kernels::bf16_dot_refusal(*shared, choice.isa); why != nullptr)
    return user_error("bf16_dot: the first rank takes {}, this one cannot: {}; set bf16_dot=fma", way, why);
  choice.bf16_dot = *shared;
  s.step.bf16_dot = way;
  return {};
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
  return physical_memory() / ranks_here;
}

Status check_host_memory(const Setup& s, int64_t host_bytes, int64_t arena_bytes) {
  if (host_bytes == 0) return {};
  constexpr std::string_view kFile = "file:";
  const auto text = [](int64_t bytes) { return plan::bytes_text(static_cast<double>(bytes)); };
  if (s.host_memory.starts_with(kFile)) {
    const std::string folder = s.host_memory.substr(kFile.size());
    struct statvfs disk{};
    if (::statvfs(folder.c_str(), &disk) != 0)
      return user_error("host_memory={}: {}; name a folder on a disk with room", s.host_memory,
                        std::strerror(errno));
    const auto room = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (room / s.ranks_here >= host_bytes) return {};
    return user_error(
        "host_memory={}: the step offloads {} a rank, and that disk has {} for each of {}; name another, or "
        "offload less",
        s.host_memory, text(host_bytes), text(room / s.ranks_here), s.ranks_here);
  }
  const int64_t room = physical_memory() / s.ranks_here - arena_bytes;
  if (room >= host_bytes || physical_memory() == 0) return {};
  return user_error(
      "host_memory=ram: the step offloads {} a rank, and beside the {} that it keeps this machine has {}; "
      "set "
      "host_memory=file:FOLDER, or offload less",
      text(host_bytes), text(arena_bytes), text(std::max<int64_t>(0, room)));
}

int64_t left_for_evaluation(int64_t budget, int64_t arena_bytes) {
  return budget == 0 ? 0 : std::max<int64_t>(1, budget - arena_bytes);
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
