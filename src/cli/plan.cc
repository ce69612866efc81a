// lignum plan: what a training step costs in time and memory, without running it.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "plan/budget.h"
#include "plan/price.h"
#include "plan/report.h"

namespace lignum::cli {
namespace {

struct PlanArguments {
  explicit PlanArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  bool json = false;
  plan::ReportOptions report;
};

Status run_plan(const PlanArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  LIGNUM_ASSIGN_OR_RETURN(const Target target, find_target(config));
  if (!target.spec) return user_error("{}; or name one with spec=tpu7x", target.no_spec);
  LIGNUM_ASSIGN_OR_RETURN(const plan::Program program, plan::make_program(target.step));
  LIGNUM_ASSIGN_OR_RETURN(const plan::Price price,
                          plan::price(program, target.step, *target.spec, target.topology));
  plan::ReportOptions report = a.report;
  report.device_memory = target.device_memory;
  if (a.json) {
    nlohmann::ordered_json j = plan::report_json(price, program.memory, *target.spec, report);
    if (target.topology) j["mesh"] = target.mesh_json();
    print_line(j.dump());
    return {};
  }
  target.print();
  for (const std::string& note : program.notes) print_line(note);
  print_line("");
  print_line(plan::memory_table(program.memory, report));
  if (target.device_memory > 0 && program.memory.arena_bytes > target.device_memory) {
    const plan::Machine machine{target.device_memory, &*target.spec, target.topology};
    print_line(plan::changes_table(plan::find_changes(target.step, program, machine), machine));
  }
  print_line(plan::time_table(price, *target.spec));
  print_line(plan::node_table(price, report));
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand("plan", "Prices a training step: memory by part, time by engine.");
  auto a = std::make_shared<PlanArguments>(verb);
  verb.add_option("--top", a->report.top, "nodes in the table")->check(CLI::Range(0, 100000));
  add_json(verb, a->json, "print one JSON object, every node in it");
  add_examples(
      verb, "plan [config.yml] [key=value ...] [--top N] [--json]",
      {"plan configs/quickstart.yml", "plan configs/quickstart.yml ranks=2 ici_fsdp_parallelism=2",
       "plan model_name=llama3.1-8b target=tpu compile_topology=tpu7x-8 ici_fsdp_parallelism=-1 --json"});
  verb.final_callback([a, &outcome] { outcome.status = run_plan(*a); });
}

}  // namespace lignum::cli
