// lignum verify-mesh: a run on meshes against the same run on one rank.
#include "train/verify_mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/verbs.h"
#include "comm/mpi_launch.h"

namespace lignum::cli {
namespace {

struct VerifyMeshArguments {
  explicit VerifyMeshArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  train::VerifyMeshOptions options;
  bool list = false, json = false;
};

nlohmann::ordered_json to_json(const train::MeshReport& report) {
  nlohmann::ordered_json j = {
      {"noise", report.noise}, {"first_loss", report.first_loss}, {"last_loss", report.last_loss}};
  for (const train::MeshVerdict& v : report.meshes) {
    if (!v.left_out.empty()) {
      j["meshes"].push_back({{"mesh", v.mesh}, {"left_out", v.left_out}});
      continue;
    }
    j["meshes"].push_back({{"mesh", v.mesh},
                           {"ranks", v.ranks},
                           {"divergence", v.divergence},
                           {"step", v.step},
                           {"gradients", v.gradients},
                           {"worst", v.worst},
                           {"same_bits", v.same_bits},
                           {"other_bits", v.other_bits},
                           {"ok", v.ok(report.noise)}});
  }
  return j;
}

void print(const train::MeshReport& report) {
  print_line(
      fmt::format("one rank: loss {:.6f} to {:.6f}; moved by an ulp it parts by up to {:.2e}; allowed {:.2e}",
                  report.first_loss, report.last_loss, report.noise, train::kVerifyMargin * report.noise));
  size_t width = 0;
  for (const train::MeshVerdict& v : report.meshes) width = std::max(width, v.mesh.size());
  print_line(fmt::format("{:<{}} {:>5} {:>11} {:>5} {:>10}", "mesh", width, "ranks", "divergence", "step",
                         "gradients"));
  for (const train::MeshVerdict& v : report.meshes) {
    if (!v.left_out.empty()) {
      print_line(fmt::format("{:<{}} left out: {}", v.mesh, width, v.left_out));
      continue;
    }
    std::string said = v.ok(report.noise) ? "ok" : "FAILS";
    if (!v.same_bits.empty()) said += ", the bits of " + v.same_bits;
    if (!v.other_bits.empty()) said += ", other bits than " + v.other_bits;
    if (!(v.gradients <= 1)) said += ", gradient of " + v.worst;
    print_line(fmt::format("{:<{}} {:>5} {:>11.2e} {:>5} {:>10.3f}  {}", v.mesh, width, v.ranks, v.divergence,
                           v.step, v.gradients, said));
  }
}

Status run_verify_mesh(const VerifyMeshArguments& a) {
  if (a.list) {
    LIGNUM_RETURN_IF_ERROR(a.config.load().status());
    if (!a.options.meshes.empty())
      return user_error("--list with --mesh: the list is of those taken where none is named");
    const std::vector<std::string> meshes = train::default_meshes();
    a.json ? print_json(meshes) : print_line(fmt::format("{}", fmt::join(meshes, "\n")));
    return {};
  }
  if (const auto self = comm::launched(); self && self->size > 1)
    return user_error(
        "verify-mesh under an MPI launcher that started {} processes: its ranks are threads of one; start "
        "lignum without the launcher",
        self->size);
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  train::VerifyMeshOptions options = a.options;
  if (!a.json) options.log = [](const std::string& line) { print_line(line); };
  LIGNUM_ASSIGN_OR_RETURN(const train::MeshReport report, train::verify_meshes(config, options));
  int64_t ran = 0, failed = 0;
  for (const train::MeshVerdict& v : report.meshes) {
    if (!v.left_out.empty()) continue;
    ++ran;
    failed += v.ok(report.noise) ? 0 : 1;
  }
  a.json ? print_json(to_json(report)) : print(report);
  if (ran == 0)
    return user_error("no mesh could take this model and these rows; per_device_batch_size=8, say");
  if (failed > 0) return check_failed("{} of {} meshes are not the run of one rank", failed, ran);
  return {};
}

}  // namespace

void add_verify_mesh(CLI::App& app, Outcome& outcome) {
  CLI::App& verb =
      *app.add_subcommand("verify-mesh", "Trains on meshes and compares with the same run on one rank.");
  auto a = std::make_shared<VerifyMeshArguments>(verb);
  verb.add_option("--mesh", a->options.meshes,
                  "sizes by axis, fsdp=2,tensor=2, and keys for that mesh, as "
                  "context=2,context_parallel_strategy=ring; may stand several times")
      ->delimiter(';')
      ->allow_extra_args(false);  // words behind it are the configuration's
  verb.add_option("--steps", a->options.steps, "of each run (20)")->check(CLI::Range(1, 1000000));
  verb.add_option("--perturbed", a->options.perturbed, "one-rank runs whose weights are moved by an ulp (8)")
      ->check(CLI::Range(1, 10000));
  verb.add_flag("--list", a->list, "print the meshes that are taken where none is named, and end");
  add_json(verb, a->json, "print one JSON object");
  add_examples(verb,
               "verify-mesh [config.yml] [key=value ...] [--mesh AXIS=N,...] [--steps N] [--perturbed N] "
               "[--list] [--json]",
               {"verify-mesh model_name=lignum-tiny dataset_type=synthetic per_device_batch_size=8 "
                "max_target_length=64",
                "verify-mesh configs/quickstart.yml --mesh tensor=2 --mesh fsdp=2,tensor=2 --steps 5",
                "verify-mesh configs/quickstart.yml target=pjrt --mesh fsdp=4"});
  verb.final_callback([a, &outcome] { outcome.status = run_verify_mesh(*a); });
}

}  // namespace lignum::cli
