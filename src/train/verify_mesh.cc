#include "train/verify_mesh.h"

#include <fmt/ranges.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "models/files.h"
#include "train/parameters.h"
#include "train/rank_executor.h"

namespace lignum::train {
namespace {

struct Outcome {
  std::vector<double> losses, norms;  // by step
  WholeTensors gradients;             // of the first step, by parameter
};

// A configuration on one mesh.
struct Case {
  config::Config config;
  Setup setup;
  plan::Program step, gradients;
  TrainData data;
};

std::vector<std::string> mesh_words(const std::string& mesh, double rows) {
  std::map<std::string, std::string, std::less<>> sizes;  // as given: Config says what is wrong with them
  for (const std::string_view axis : config::kMeshAxes) sizes.emplace(axis, "1");
  int64_t ranks = 1;
  for (size_t at = 0; at < mesh.size();) {
    const size_t comma = std::min(mesh.find(',', at), mesh.size()),
                 equals = std::min(mesh.find('=', at), comma);
    const std::string size = mesh.substr(std::min(equals + 1, comma), comma - std::min(equals + 1, comma));
    sizes[mesh.substr(at, equals - at)] = size.empty() ? "''" : size;
    int64_t number = 1;
    std::from_chars(size.data(), size.data() + size.size(), number);
    if (number > 0 && number <= comm::ThreadWorld::kMaxRanks) ranks *= number;
    at = comma + 1;
  }
  std::vector<std::string> words = {
      "ranks=-1", "comm=threads", fmt::format("per_device_batch_size={}", rows / static_cast<double>(ranks))};
  for (const auto& [axis, size] : sizes) words.push_back(fmt::format("ici_{}_parallelism={}", axis, size));
  // What ranks compute does not depend on which of them share a slice.
  for (const std::string_view axis : config::kMeshAxes)
    words.push_back(fmt::format("dcn_{}_parallelism=1", axis));
  return words;
}

Result<std::unique_ptr<Case>> prepare(const config::Config& base, const std::string& mesh,
                                      const Setup* like) {
  LIGNUM_ASSIGN_OR_RETURN(config::Config config,
                          config::Config::parse(base.to_yaml(), "the configuration",
                                                mesh_words(mesh, base.real("per_device_batch_size"))));
  LIGNUM_ASSIGN_OR_RETURN(Setup setup, make_setup(config, nullptr));
  if (like != nullptr) {  // a probe may choose otherwise the next time
    setup.kernels = like->kernels;
    setup.step.bf16_dot = like->step.bf16_dot;
  }
  LIGNUM_ASSIGN_OR_RETURN(plan::Program step, plan::make_program(setup.step));
  plan::ProgramOptions options = setup.step;
  options.outputs = plan::Outputs::grads;
  LIGNUM_ASSIGN_OR_RETURN(plan::Program gradients, plan::make_program(options));
  LIGNUM_ASSIGN_OR_RETURN(TrainData data,
                          TrainData::open(config, setup.model.vocab_size, setup.batch, setup.tokenizer));
  return std::make_unique<Case>(
      Case{std::move(config), std::move(setup), std::move(step), std::move(gradients), std::move(data)});
}

// Every weight but 0 up or down by one unit in the last place, by (seed, parameter, index).
void perturb(exec::Executor& executor, const std::vector<models::Parameter>& parameters, uint64_t seed,
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

class RankRun {
 public:
  RankRun(const Case& c, comm::Transport& transport, uint64_t seed, Outcome& out)
      : case_(c), transport_(transport), seed_(seed), out_(out) {}

  Status run(int64_t steps) {
    LIGNUM_ASSIGN_OR_RETURN(const Ranks ranks, Ranks::join(transport_));
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(case_.setup.threads));
    LIGNUM_RETURN_IF_ERROR(gradients(ranks, *pool));
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, start(case_.step, ranks, *pool));
    const BatchShape& shape = case_.setup.batch;
    for (int64_t step = 0; step < steps; ++step) {
      put_rows(case_.data, step * shape.global_rows(), case_.setup, case_.step, ranks.rank(), *executor);
      const auto rate = static_cast<float>(case_.setup.schedule.at(step));
      const auto updates = static_cast<int32_t>(step);
      std::memcpy(executor->param("learning_rate"), &rate, sizeof(rate));
      std::memcpy(executor->param("step"), &updates, sizeof(updates));
      LIGNUM_RETURN_IF_ERROR(executor->step().with_context(fmt::format("step {}", step)));
      if (!ranks.is_first()) continue;
      out_.losses.push_back(static_cast<double>(read_scalar(*executor, "loss")));
      out_.norms.push_back(static_cast<double>(read_scalar(*executor, "grad_norm")));
    }
    return ranks.barrier();
  }

 private:
  Result<std::unique_ptr<exec::Executor>> start(const plan::Program& program, const Ranks& ranks,
                                                Parallel& pool) {
    const Setup& s = case_.setup;
    LIGNUM_ASSIGN_OR_RETURN(
        auto executor, make_executor(s, program, ranks, pool, memory_budget(case_.config, nullptr, s.ranks)));
    const RankShards shards{program, s.step.mesh, ranks.rank()};
    if (const std::string& weights = case_.config.text("model_path"); !weights.empty()) {
      LIGNUM_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(weights));
      LIGNUM_RETURN_IF_ERROR(load_parameters(s.model, files, shards, *executor));
    } else {
      LIGNUM_RETURN_IF_ERROR(init_parameters(
          s.model, shards, *executor, static_cast<uint64_t>(case_.config.integer("init_weights_seed"))));
    }
    if (seed_ > 0) perturb(*executor, models::parameters(s.model), seed_, s.step.shape.dtype);
    return executor;
  }

  Status gradients(const Ranks& ranks, Parallel& pool) {
    const Setup& s = case_.setup;
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, start(case_.gradients, ranks, pool));
    put_rows(case_.data, 0, s, case_.gradients, ranks.rank(), *executor);
    LIGNUM_RETURN_IF_ERROR(executor->step().with_context("the first step's gradients"));
    gather_gradients(s.model, {case_.gradients, s.step.mesh, ranks.rank()}, *executor, out_.gradients);
    return {};
  }

  const Case& case_;
  comm::Transport& transport_;
  uint64_t seed_;
  Outcome& out_;  // of all ranks: each writes its own part
};

// seed: 0 leaves the weights as they are.
Result<Outcome> run(const Case& c, int64_t steps, uint64_t seed) {
  Outcome out;
  out.gradients = zero_tensors(c.setup.model);
  LIGNUM_RETURN_IF_ERROR(comm::ThreadWorld(static_cast<int>(c.setup.ranks)).run([&](comm::Transport& t) {
    return RankRun(c, t, seed, out).run(steps);
  }));
  return out;
}

std::pair<double, int64_t> divergence(const Outcome& a, const Outcome& one) {
  std::pair<double, int64_t> worst{0, 0};
  for (size_t step = 0; step < one.losses.size(); ++step) {
    const double loss = std::abs(a.losses[step] - one.losses[step]) / std::abs(one.losses[step]),
                 norm = std::abs(a.norms[step] - one.norms[step]) / std::abs(one.norms[step]);
    const double here = std::max(loss, norm);
    if (!(here <= worst.first)) worst = {here, static_cast<int64_t>(step)};  // NaN is the worst
  }
  return worst;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

// Meshes of data and fsdp alone have gradients of the same bits where as many ranks see rows of their own,
// and so has a pipeline alone whose microbatches are its stages' rows, but that it finds scales for each
// (docs/numerics.md).
std::string bits_class(const Setup& s) {
  if (s.step.mesh.size("fsdp_transpose") > 1 || s.step.mesh.row_sharers() > 1) return {};
  const passes::Pipeline& p = s.step.pipeline;
  if (p.stages > 1 && (s.ranks != p.stages || p.microbatches != p.stages || !s.step.quantization.empty()))
    return {};
  return fmt::format("{}", s.batch.ranks);
}

}  // namespace

std::vector<std::string> default_meshes() {
  std::vector<std::string> meshes;
  for (const std::string_view axis : config::kMeshAxes)
    for (const int size : {2, 4}) meshes.push_back(fmt::format("{}={}", axis, size));
  for (const char* mesh :
       {"pipeline=2,fsdp=2", "pipeline=2,tensor=2", "data=2,fsdp=2", "fsdp=2,fsdp_transpose=2",
        "fsdp=2,tensor=2", "fsdp_transpose=2,tensor=2", "fsdp=2,context=2", "context=2,tensor=2",
        "data=2,fsdp=2,tensor=2", "fsdp=2,context=2,tensor=2", "fsdp=2,fsdp_transpose=2,tensor=2"})
    meshes.emplace_back(mesh);
  return meshes;
}

Result<MeshReport> verify_meshes(const config::Config& config, const VerifyMeshOptions& options) {
  LIGNUM_CHECK(options.steps >= 1 && options.perturbed >= 1, "{} steps, {} runs", options.steps,
               options.perturbed);
  const auto log = [&](const std::string& line) {
    if (options.log) options.log(line);
  };
  LIGNUM_ASSIGN_OR_RETURN(const auto single, prepare(config, "", nullptr));
  // Before anything runs: what is wrong with a mesh is said at once.
  const bool own = !options.meshes.empty();
  std::vector<std::pair<std::string, Result<std::unique_ptr<Case>>>> cases;
  for (const std::string& mesh : own ? options.meshes : default_meshes()) {
    cases.emplace_back(mesh, prepare(config, mesh, &single->setup));
    if (own && !cases.back().second.ok())
      return cases.back().second.status().with_context(fmt::format("mesh {}", mesh));
  }
  LIGNUM_ASSIGN_OR_RETURN(const Outcome one, run(*single, options.steps, 0));
  MeshReport report;
  report.noise = kLeastNoise;
  report.first_loss = one.losses.front();
  report.last_loss = one.losses.back();
  std::vector<double> bounds(one.gradients.size());
  double all = 0;
  for (const std::vector<float>& g : one.gradients) {
    const double norm = distance(g, std::vector<float>(g.size()));
    all += norm * norm;
  }
  for (int64_t i = 0; i < options.perturbed; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(const Outcome moved, run(*single, options.steps, static_cast<uint64_t>(i) + 1));
    report.noise = std::max(report.noise, divergence(moved, one).first);
    for (size_t p = 0; p < bounds.size(); ++p)
      bounds[p] = std::max(bounds[p], distance(moved.gradients[p], one.gradients[p]));
    log(fmt::format("one rank, weights moved by an ulp, {} of {}: parts by {:.2e}", i + 1, options.perturbed,
                    divergence(moved, one).first));
  }
  for (double& b : bounds) b = kVerifyMargin * b + 1e-7 * std::sqrt(all);

  const std::vector<models::Parameter> parameters = models::parameters(single->setup.model);
  std::map<std::string, std::pair<std::string, Outcome>> by_bits;
  for (const auto& [mesh, c] : cases) {
    MeshVerdict v;
    v.mesh = mesh;
    if (!c.ok()) {
      v.left_out = c.status().message();
      report.meshes.push_back(std::move(v));
      continue;
    }
    LIGNUM_ASSIGN_OR_RETURN(Outcome out, run(**c, options.steps, 0));
    v.ranks = (*c)->setup.ranks;
    std::tie(v.divergence, v.step) = divergence(out, one);
    for (size_t p = 0; p < bounds.size(); ++p) {
      const double share = distance(out.gradients[p], one.gradients[p]) / bounds[p];
      if (share <= v.gradients) continue;
      v.gradients = share;
      v.worst = parameters[p].pattern;
    }
    if (const std::string bits = bits_class((*c)->setup); !bits.empty()) {
      const auto [at, first] = by_bits.try_emplace(bits, mesh, out);
      const auto& [other, there] = at->second;
      if (!first)
        (out.losses[0] == there.losses[0] && out.gradients == there.gradients ? v.same_bits : v.other_bits) =
            other;
    }
    log(fmt::format("{}: {} ranks, parts by {:.2e}", mesh, v.ranks, v.divergence));
    report.meshes.push_back(std::move(v));
  }
  return report;
}

}  // namespace lignum::train
