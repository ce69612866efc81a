#include "train/verify_mesh.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "train/mesh_run.h"

namespace lignum::train {
namespace {

// NaN is worse than any number.
bool is_worse(double x, double worst) { return !std::isnan(worst) && !(x <= worst); }
void raise_to(double x, double& worst) {
  if (is_worse(x, worst)) worst = x;
}

// `apart` in shares of `whole`: 0 of 0 is none.
double share_of(double apart, double whole) { return apart == 0 ? 0 : apart / whole; }

std::pair<double, int64_t> divergence(const MeshOutcome& a, const MeshOutcome& one) {
  std::pair<double, int64_t> worst{0, 0};
  const auto compare = [&](const std::vector<double>& got, const std::vector<double>& want) {
    for (size_t step = 0; step < want.size(); ++step) {
      const double here = share_of(std::abs(got[step] - want[step]), std::abs(want[step]));
      if (is_worse(here, worst.first)) worst = {here, static_cast<int64_t>(step)};
    }
  };
  compare(a.losses, one.losses);
  compare(a.norms, one.norms);
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

// Meshes of data or fsdp alone have gradients of the same bits where as many ranks see rows of their own (two
// axes add up in two steps), and so has a pipeline alone whose microbatches are its stages' rows, but that it
// finds scales for each (docs/numerics.md).
std::string bits_class(const Setup& s) {
  const passes::Mesh& mesh = s.step.mesh;
  if (mesh.size("fsdp_transpose") > 1 || mesh.row_sharers() > 1) return {};
  if (mesh.size("data") > 1 && mesh.size("fsdp") > 1) return {};
  const passes::Pipeline& p = s.step.pipeline;
  if (p.stages > 1 && (s.ranks != p.stages || p.microbatches != p.stages || !s.step.quantization.empty()))
    return {};
  return fmt::format("{}", s.batch.ranks);
}

Status check(const config::Config& config) {
  if (config.text("target") == "tpu")
    return user_error("target=tpu: verify-mesh runs its steps, which takes target=cpu or target=pjrt");
  if (config.text("comm") == "mpi")
    return user_error("comm=mpi: verify-mesh runs its ranks as threads of one process; leave comm out");
  return {};
}

// What the configuration says of a mesh, of which nothing is used.
std::vector<std::string> meshes_own_keys(const config::Config& config) {
  std::vector<std::string> keys = {"ranks"};
  for (const std::string_view axis : config::kMeshAxes)
    for (const char* net : {"ici", "dcn"}) keys.push_back(fmt::format("{}_{}_parallelism", net, axis));
  std::erase_if(keys, [&](const std::string& key) { return !config.is_set(key); });
  return keys;
}

}  // namespace

std::vector<std::string> default_meshes() {
  std::vector<std::string> meshes;
  for (const std::string_view axis : config::kMeshAxes)
    for (const int size : {2, 4}) meshes.push_back(fmt::format("{}={}", axis, size));
  const std::string ring = ",context_parallel_strategy=ring", gpipe = ",pipeline_schedule=gpipe";
  for (const std::string mesh : {"context=2", "context=4"}) meshes.push_back(mesh + ring);
  for (const std::string mesh : {"pipeline=2", "pipeline=4"}) meshes.push_back(mesh + gpipe);
  for (const char* mesh :
       {"pipeline=2,fsdp=2", "pipeline=2,tensor=2", "data=2,fsdp=2", "fsdp=2,fsdp_transpose=2",
        "fsdp=2,tensor=2", "fsdp_transpose=2,tensor=2", "fsdp=2,context=2", "context=2,tensor=2",
        "data=2,fsdp=2,tensor=2", "fsdp=2,context=2,tensor=2", "fsdp=2,fsdp_transpose=2,tensor=2"})
    meshes.emplace_back(mesh);
  meshes.push_back("fsdp=2,context=2,tensor=2" + ring);
  return meshes;
}

Result<MeshReport> verify_meshes(const config::Config& config, const VerifyMeshOptions& options) {
  LIGNUM_CHECK(options.steps >= 0 && options.perturbed >= 1, "{} steps, {} runs", options.steps,
               options.perturbed);
  const auto log = [&](const std::string& line) {
    if (options.log) options.log(line);
  };
  LIGNUM_RETURN_IF_ERROR(check(config));
  for (const std::string& key : meshes_own_keys(config))
    log(fmt::format("{}={} does not count: each run has its own mesh", key, config.value_text(key)));
  LIGNUM_ASSIGN_OR_RETURN(const auto single, prepare_mesh(config, "", nullptr));
  // Before anything runs: what is wrong with a mesh is said at once.
  const bool own = !options.meshes.empty(), xla = config.text("target") == "pjrt";
  std::vector<std::pair<std::string, Result<std::unique_ptr<MeshCase>>>> cases;
  int64_t most_ranks = 1;
  for (const std::string& mesh : own ? options.meshes : default_meshes()) {
    if (mesh.empty()) return user_error("mesh '': no axis; fsdp=2, say");
    cases.emplace_back(mesh, prepare_mesh(config, mesh, &single->setup, xla));
    const auto& c = cases.back().second;
    if (own && !c.ok()) return c.status().with_context("mesh " + shown(mesh));
    if (c.ok()) most_ranks = std::max(most_ranks, (*c)->setup.ranks);
  }
  std::optional<MeshDevices> devices;
  if (xla) {
    LIGNUM_ASSIGN_OR_RETURN(devices, open_devices(config, most_ranks));
  }
  LIGNUM_ASSIGN_OR_RETURN(const MeshOutcome one, run_mesh(*single, {.steps = options.steps}));
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
  for (int64_t i = 1; i <= options.perturbed; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(const MeshOutcome moved,
                            run_mesh(*single, {.steps = options.steps, .moved = static_cast<uint64_t>(i)}));
    const double parts = divergence(moved, one).first;
    raise_to(parts, report.noise);
    for (size_t p = 0; p < bounds.size(); ++p)
      raise_to(distance(moved.gradients[p], one.gradients[p]), bounds[p]);
    log(fmt::format("one rank, weights moved by an ulp, {} of {}: parts by {:.2e}", i, options.perturbed,
                    parts));
  }
  for (double& b : bounds) b = kVerifyMargin * b + 1e-7 * std::sqrt(all);

  const std::vector<models::Parameter> parameters = models::parameters(single->setup.model);
  std::map<std::string, std::pair<std::string, MeshOutcome>> by_bits;
  for (const auto& [mesh, c] : cases) {
    MeshVerdict v;
    v.mesh = mesh;
    if (!c.ok()) {
      v.left_out = c.status().message();
      report.meshes.push_back(std::move(v));
      continue;
    }
    LIGNUM_ASSIGN_OR_RETURN(
        MeshOutcome out, run_mesh(**c, {.steps = options.steps, .devices = devices ? &*devices : nullptr}));
    v.ranks = (*c)->setup.ranks;
    std::tie(v.divergence, v.step) = divergence(out, one);
    for (size_t p = 0; p < bounds.size(); ++p) {
      const double share = share_of(distance(out.gradients[p], one.gradients[p]), bounds[p]);
      if (!is_worse(share, v.gradients)) continue;
      v.gradients = share;
      v.worst = parameters[p].pattern;
    }
    if (const std::string bits = xla ? "" : bits_class((*c)->setup); !bits.empty()) {
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
