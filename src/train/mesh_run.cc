#include "train/mesh_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/rng.h"
#include "base/text.h"
#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "models/files.h"
#include "train/rank_executor.h"
#include "train/replicas.h"

namespace lignum::train {
namespace {

// Keys that say how a mesh is used, and leave the rest of the run as it is.
constexpr std::array<std::string_view, 9> kMeshKeys = {
    "context_parallel_strategy", "context_parallel_load_balance",
    "pipeline_schedule",         "num_pipeline_microbatches",
    "num_pipeline_repeats",      "num_layers_per_pipeline_stage",
    "shard_optimizer_over_data", "overlap",
    "prefetch_distance"};

struct NamedMesh {
  std::map<std::string, int64_t, std::less<>> axes;
  std::map<std::string, std::string, std::less<>> keys;  // as given: Config says what is wrong with values
  int64_t size(std::string_view axis) const {
    const auto at = axes.find(axis);
    return at == axes.end() ? 1 : at->second;
  }
  int64_t ranks() const {
    int64_t all = 1;
    for (const auto& [axis, size] : axes) all *= size;
    return all;
  }
};

Status read_item(const std::string& item, NamedMesh& out) {
  const size_t equals = item.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == item.size())
    return user_error("'{}' is not AXIS=SIZE or KEY=VALUE", shown(item));
  const std::string name = item.substr(0, equals), value = item.substr(equals + 1);
  if (out.axes.contains(name) || out.keys.contains(name)) return user_error("{} is given twice", shown(name));
  if (std::ranges::find(config::kMeshAxes, name) != config::kMeshAxes.end()) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (error != std::errc{} || end != value.data() + value.size() || size < 1 ||
        size > comm::ThreadWorld::kMaxRanks)
      return user_error("{}: the size of an axis is 1 to {}", shown(item), comm::ThreadWorld::kMaxRanks);
    out.axes[name] = size;
    return {};
  }
  if (std::ranges::find(kMeshKeys, name) == kMeshKeys.end())
    return user_error(
        "{}: neither an axis ({}) nor a key that says how a mesh is used ({}); what is to hold for all runs "
        "stands behind the verb",
        shown(item), fmt::join(config::kMeshAxes, ", "), fmt::join(kMeshKeys, ", "));
  out.keys[name] = value;
  return {};
}

Result<NamedMesh> read_mesh(const std::string& mesh) {
  NamedMesh out;
  for (size_t at = 0; at <= mesh.size();) {
    const size_t comma = std::min(mesh.find(',', at), mesh.size());
    LIGNUM_RETURN_IF_ERROR(read_item(mesh.substr(at, comma - at), out));
    if (out.ranks() > comm::ThreadWorld::kMaxRanks)
      return user_error("more than {} ranks", comm::ThreadWorld::kMaxRanks);
    at = comma + 1;
  }
  if (out.ranks() == 1) return user_error("one rank, with which meshes are compared; fsdp=2, say");
  return out;
}

// The words that put a run of `rows` rows a micro-step on a mesh.
Result<std::vector<std::string>> mesh_words(const NamedMesh& mesh, double rows) {
  const int64_t ranks = mesh.ranks(), groups = ranks / (mesh.size("context") * mesh.size("tensor"));
  if (std::fmod(rows, static_cast<double>(groups)) != 0)
    return user_error(
        "per_device_batch_size={}: the rows of one rank, which {} groups of ranks share; set a multiple of "
        "{}",
        rows, groups, groups);
  std::map<std::string, std::string, std::less<>> keys = mesh.keys;
  for (const std::string_view axis : config::kMeshAxes) {
    keys[fmt::format("ici_{}_parallelism", axis)] = std::to_string(mesh.size(axis));
    // What ranks compute does not depend on which of them share a slice.
    keys[fmt::format("dcn_{}_parallelism", axis)] = "1";
  }
  keys["target"] = "cpu";  // which reads the keys alike
  keys["ranks"] = "-1";
  keys["per_device_batch_size"] = fmt::format("{}", rows / static_cast<double>(ranks));
  std::vector<std::string> words;
  for (const auto& [key, value] : keys) words.push_back(fmt::format("{}={}", key, value));
  return words;
}

// Every weight but 0 up or down by one unit in the last place, by (seed, parameter, index).
void move_weights(exec::Executor& executor, const std::vector<models::Parameter>& parameters, uint64_t seed,
                  DType dtype) {
  const uint32_t unit = dtype == DType::bf16 ? 1U << 16 : 1U;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto* data = reinterpret_cast<float*>(executor.param(static_cast<int64_t>(i)));
    int64_t count = 1;
    for (const int64_t d : parameters[i].dims) count *= d;
    std::array<uint32_t, 4> random{};
    for (int64_t k = 0; k < count; ++k) {
      if (k % 128 == 0)
        random = philox4x32({static_cast<uint32_t>(k / 128), static_cast<uint32_t>(i), 0, 0},
                            {static_cast<uint32_t>(seed), 0x6d657368});
      auto bits = std::bit_cast<uint32_t>(data[k]);
      if ((bits << 1) < (unit << 1)) continue;
      const auto bit = static_cast<size_t>(k % 128);
      bits = (random[bit / 32] >> (bit % 32) & 1U) != 0 ? bits + unit : bits - unit;
      data[k] = std::bit_cast<float>(bits);
    }
  }
}

// A program on XLA's devices, one a rank. The ranks' executors, which do not run it, lay out what goes in and
// keep what a step leaves for the next.
class DeviceStep {
 public:
  static Result<DeviceStep> load(const MeshDevices& devices, const plan::Program& program,
                                 const passes::Mesh& mesh) {
    LIGNUM_ASSIGN_OR_RETURN(pjrt::LoadedStep loaded, pjrt::load_step(devices.client, *program.local,
                                                                     print_options(mesh), devices.flags));
    return DeviceStep(*program.local, std::move(loaded), mesh.ranks());
  }

  // By all ranks together.
  Status step(const Ranks& ranks, exec::Executor& executor) {
    const auto rank = static_cast<size_t>(ranks.rank());
    executors_[rank] = &executor;
    LIGNUM_RETURN_IF_ERROR(ranks.barrier());
    if (ranks.is_first()) status_ = run();
    LIGNUM_RETURN_IF_ERROR(ranks.barrier());
    LIGNUM_RETURN_IF_ERROR(status_);
    for (size_t i = 0; i < results_[rank].size(); ++i) {
      const std::vector<std::byte>& result = results_[rank][i].data;
      if (const int32_t param = local_->outputs()[i].alias; param >= 0)
        std::memcpy(executor.param(param), result.data(), result.size());
    }
    return {};
  }
  const std::byte* output(int64_t rank, const std::string& name) const {
    const auto at = std::find(loaded_.outputs.begin(), loaded_.outputs.end(), name);
    LIGNUM_CHECK(at != loaded_.outputs.end(), "no output {}", name);
    return results_[static_cast<size_t>(rank)][static_cast<size_t>(at - loaded_.outputs.begin())].data.data();
  }

 private:
  DeviceStep(const ir::Graph& local, pjrt::LoadedStep loaded, int64_t ranks)
      : local_(&local), loaded_(std::move(loaded)), executors_(static_cast<size_t>(ranks)) {}

  Status run() {
    std::vector<std::vector<pjrt::HostView>> arguments;
    for (exec::Executor* executor : executors_) {
      arguments.emplace_back();
      for (int64_t p = 0; p < static_cast<int64_t>(local_->params().size()); ++p) {
        const ir::Type& type = local_->type(local_->param_value(p));
        arguments.back().push_back({type.dtype, type.dims, executor->param(p)});
      }
    }
    LIGNUM_ASSIGN_OR_RETURN(results_, loaded_.run(arguments));
    return {};
  }

  const ir::Graph* local_;
  pjrt::LoadedStep loaded_;
  std::vector<exec::Executor*> executors_;             // of the ranks
  std::vector<std::vector<pjrt::HostArray>> results_;  // [rank][output]
  Status status_;
};

// What runs the two programs of a case: nothing here where the ranks' executors do.
struct DeviceSteps {
  std::optional<DeviceStep> step, gradients;
};

class RankRun {
 public:
  RankRun(const MeshCase& c, const MeshRunOptions& options, const Ranks& ranks, DeviceSteps& devices,
          MeshOutcome& out)
      : case_(c), options_(options), ranks_(ranks), devices_(devices), out_(out) {}

  Status run() {
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(case_.setup.threads));
    LIGNUM_RETURN_IF_ERROR(gradients(*pool));
    if (options_.steps == 0) return ranks_.barrier();
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, start(case_.step, *pool));
    const BatchShape& shape = case_.setup.batch;
    for (int64_t step = 0; step < options_.steps; ++step) {
      put_rows(case_.data, step * shape.global_rows(), case_.setup, case_.step, ranks_.rank(), *executor);
      const auto rate = static_cast<float>(case_.setup.schedule.at(step));
      const auto updates = static_cast<int32_t>(step);
      std::memcpy(executor->param("learning_rate"), &rate, sizeof(rate));
      std::memcpy(executor->param("step"), &updates, sizeof(updates));
      LIGNUM_RETURN_IF_ERROR(take(devices_.step, *executor).with_context(fmt::format("step {}", step)));
      if (!ranks_.is_first()) continue;
      out_.losses.push_back(scalar(devices_.step, *executor, "loss"));
      out_.norms.push_back(scalar(devices_.step, *executor, "grad_norm"));
    }
    return ranks_.barrier();
  }

 private:
  Status take(std::optional<DeviceStep>& devices, exec::Executor& executor) {
    return devices ? devices->step(ranks_, executor) : executor.step();
  }
  const std::byte* output(const std::optional<DeviceStep>& devices, const exec::Executor& executor,
                          const std::string& name) const {
    return devices ? devices->output(ranks_.rank(), name) : executor.output(name);
  }
  double scalar(const std::optional<DeviceStep>& devices, const exec::Executor& executor,
                const std::string& name) const {
    float value = 0;
    std::memcpy(&value, output(devices, executor, name), sizeof(value));
    return static_cast<double>(value);
  }

  Result<std::unique_ptr<exec::Executor>> start(const plan::Program& program, Parallel& pool) {
    const Setup& s = case_.setup;
    LIGNUM_ASSIGN_OR_RETURN(auto executor, make_executor(s, program, ranks_, pool,
                                                         memory_budget(case_.config, nullptr, s.ranks)));
    const RankShards shards{program, s.step.mesh, ranks_.rank()};
    if (const std::string& weights = case_.config.text("model_path"); !weights.empty()) {
      LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(weights));
      LIGNUM_RETURN_IF_ERROR(load_parameters(s.model, files, shards, *executor));
    } else {
      LIGNUM_RETURN_IF_ERROR(init_parameters(
          s.model, shards, *executor, static_cast<uint64_t>(case_.config.integer("init_weights_seed"))));
    }
    if (options_.moved > 0)
      move_weights(*executor, models::parameters(s.model), options_.moved, s.step.shape.dtype);
    return executor;
  }

  Status gradients(Parallel& pool) {
    const Setup& s = case_.setup;
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, start(case_.gradients, pool));
    put_rows(case_.data, 0, s, case_.gradients, ranks_.rank(), *executor);
    LIGNUM_RETURN_IF_ERROR(take(devices_.gradients, *executor).with_context("the first step's gradients"));
    gather_gradients(
        s.model, {case_.gradients, s.step.mesh, ranks_.rank()},
        [&](const std::string& name) { return output(devices_.gradients, *executor, name); }, out_.gradients);
    if (options_.steps == 0 && ranks_.is_first())
      out_.losses.push_back(scalar(devices_.gradients, *executor, "loss"));
    return {};
  }

  const MeshCase& case_;
  const MeshRunOptions& options_;
  const Ranks& ranks_;
  DeviceSteps& devices_;  // of all ranks
  MeshOutcome& out_;      // likewise: each writes its own part
};

}  // namespace

Result<std::unique_ptr<MeshCase>> prepare_mesh(const config::Config& base, const std::string& mesh,
                                               const Setup* like, bool for_xla) {
  NamedMesh named;
  if (!mesh.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(named, read_mesh(mesh));
  }
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                          mesh_words(named, base.real("per_device_batch_size")));
  LIGNUM_ASSIGN_OR_RETURN(config::Config config,
                          config::Config::parse(base.to_yaml(), "the configuration", words));
  LIGNUM_ASSIGN_OR_RETURN(Setup setup, make_setup(config, nullptr));
  if (like != nullptr) {
    setup.kernels = like->kernels;
    setup.step.bf16_dot = like->step.bf16_dot;
  }
  setup.step.xla = for_xla;
  if (setup.step.host_parameters || setup.step.optimizer.offloaded)
    return user_error(
        "{}=true: verify-mesh keeps the state on the device",
        setup.step.host_parameters ? "parameter_memory_host_offload" : "optimizer_memory_host_offload");
  LIGNUM_ASSIGN_OR_RETURN(plan::Program step, plan::make_program(setup.step));
  plan::ProgramOptions options = setup.step;
  options.outputs = plan::Outputs::grads;
  LIGNUM_ASSIGN_OR_RETURN(plan::Program gradients, plan::make_program(options));
  LIGNUM_ASSIGN_OR_RETURN(TrainData data,
                          TrainData::open(config, setup.model.vocab_size, setup.batch, setup.tokenizer));
  return std::make_unique<MeshCase>(
      MeshCase{std::move(config), std::move(setup), std::move(step), std::move(gradients), std::move(data)});
}

Result<MeshDevices> open_devices(const config::Config& config, int64_t count) {
  const std::string& path = config.text("plugin");
  LIGNUM_ASSIGN_OR_RETURN(pjrt::Overrides flags, pjrt::parse_flags(config.text("compile_xla_flags")));
  for (auto& [name, value] : flags)  // which this compiler, unlike libtpu, does not read as a word
    if (const auto* word = std::get_if<std::string>(&value); word != nullptr && path.empty())
      if (*word == "true" || *word == "false") value = *word == "true";
  LIGNUM_ASSIGN_OR_RETURN(
      const pjrt::Plugin plugin,
      pjrt::Plugin::load(path.empty() ? pjrt::PluginKind::cpu : pjrt::PluginKind::other, path));
  LIGNUM_ASSIGN_OR_RETURN(
      pjrt::Client client,
      pjrt::Client::create(plugin, {.cpu_device_count = path.empty() ? static_cast<int>(count) : 0}));
  if (const auto there = static_cast<int64_t>(client.devices().size()); there < count)
    return user_error("target=pjrt: a mesh has {} ranks, {} has {} devices; ask for smaller meshes", count,
                      plugin.path(), there);
  return MeshDevices{std::move(client), std::move(flags)};
}

Result<MeshOutcome> run_mesh(const MeshCase& c, const MeshRunOptions& options) {
  DeviceSteps devices;
  if (options.devices != nullptr) {
    const passes::Mesh& mesh = c.setup.step.mesh;
    if (options.steps > 0) {
      LIGNUM_ASSIGN_OR_RETURN(devices.step, DeviceStep::load(*options.devices, c.step, mesh));
    }
    LIGNUM_ASSIGN_OR_RETURN(devices.gradients, DeviceStep::load(*options.devices, c.gradients, mesh));
  }
  MeshOutcome out;
  out.gradients = zero_tensors(c.setup.model);
  LIGNUM_RETURN_IF_ERROR(
      comm::ThreadWorld(static_cast<int>(c.setup.ranks)).run([&](comm::Transport& t) -> Status {
        LIGNUM_ASSIGN_OR_RETURN(const Ranks ranks, Ranks::join(t));
        return RankRun(c, options, ranks, devices, out).run();
      }));
  return out;
}

}  // namespace lignum::train
