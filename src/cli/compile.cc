// lignum compile: a training step for TPU devices that need not be there.
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/common.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "pjrt/reader.h"
#include "plan/report.h"
#include "train/replicas.h"

namespace lignum::cli {
namespace {

struct CompileArguments {
  explicit CompileArguments(CLI::App& verb) : config(verb) {}
  ConfigWords config;
  std::string stablehlo, hlo;
  bool json = false;
};

// What the compiler made of a loop's collectives.
struct Loop {
  std::string name;
  int64_t dots = 0;
  // The compiler's estimate of one iteration: of all instructions that have one, and of those of them with a
  // matmul. What loops inside take is not in either.
  int64_t cycles = 0, matmul_cycles = 0;
  std::vector<pjrt::AsyncCollective> collectives;
};
std::vector<Loop> loops_of(const pjrt::HloProgram& program) {
  std::vector<Loop> loops;
  for (const pjrt::HloComputation* body : program.while_bodies()) {
    Loop loop{body->name, program.count_dots(*body), 0, 0, program.async_collectives(*body)};
    for (const pjrt::HloInstruction& i : body->instructions) {
      loop.cycles += i.estimated_cycles.value_or(0);
      if (program.count_dots(i) > 0) loop.matmul_cycles += i.estimated_cycles.value_or(0);
    }
    loops.push_back(std::move(loop));
  }
  return loops;
}

nlohmann::ordered_json to_json(const Target& target, const pjrt::CompiledStep& step, int64_t program_bytes,
                               const std::vector<Loop>& loops) {
  const pjrt::MemoryStats& m = step.memory;
  nlohmann::ordered_json j = {{"topology", target.topology->text()},
                              {"slices", target.topology->slices},
                              {"mesh", target.mesh_json()},
                              {"devices", target.devices},
                              {"program_bytes", program_bytes},
                              {"peak_bytes", m.device_peak()},
                              {"arguments_bytes", m.arguments},
                              {"outputs_bytes", m.outputs},
                              {"aliased_bytes", m.aliased},
                              {"temporaries_bytes", m.temporaries},
                              {"host_arguments_bytes", m.host_arguments},
                              {"host_temporaries_bytes", m.host_temporaries},
                              {"device_memory", target.device_memory},
                              {"collectives", step.program.count_collectives()}};
  for (const Loop& loop : loops) {
    nlohmann::ordered_json collectives = nlohmann::ordered_json::array();
    for (const pjrt::AsyncCollective& c : loop.collectives)
      collectives.push_back({{"kind", c.collective}, {"name", c.name}, {"dots_between", c.dots_between}});
    j["loops"].push_back({{"name", loop.name},
                          {"dots", loop.dots},
                          {"cycles", loop.cycles},
                          {"matmul_cycles", loop.matmul_cycles},
                          {"collectives", collectives}});
  }
  return j;
}

void print(const Target& target, const pjrt::CompiledStep& step, int64_t program_bytes,
           const std::vector<Loop>& loops) {
  const auto bytes = [](int64_t n) { return plan::bytes_text(static_cast<double>(n)); };
  const pjrt::MemoryStats& m = step.memory;
  target.print();
  print_line(fmt::format("program {}", bytes(program_bytes)));
  print_line(fmt::format(
      "memory of a device, as compiled: peak {} of {}; arguments {}, outputs {} ({} of them in place), "
      "temporaries {}",
      bytes(m.device_peak()), bytes(target.device_memory), bytes(m.arguments), bytes(m.outputs),
      bytes(m.aliased), bytes(m.temporaries)));
  if (m.host_arguments + m.host_temporaries > 0)
    print_line(fmt::format("host memory of a device, as compiled: arguments {}, temporaries {}",
                           bytes(m.host_arguments), bytes(m.host_temporaries)));
  std::vector<std::string> kinds;
  for (const auto& [kind, n] : step.program.count_collectives())
    kinds.push_back(fmt::format("{} {}", n, kind));
  if (!kinds.empty()) print_line(fmt::format("collectives in the program: {}", fmt::join(kinds, ", ")));
  for (const Loop& loop : loops) {
    print_line(fmt::format(
        "loop {}: {} matmuls, {:.2f} M cycles an iteration, {:.2f} M of them with matmuls (estimated)",
        loop.name, loop.dots, static_cast<double>(loop.cycles) * 1e-6,
        static_cast<double>(loop.matmul_cycles) * 1e-6));
    for (const pjrt::AsyncCollective& c : loop.collectives)
      print_line(fmt::format("  {} {}: {} matmuls run under it", c.collective, c.name, c.dots_between));
  }
}

Status run_compile(const CompileArguments& a) {
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, a.config.load());
  LIGNUM_ASSIGN_OR_RETURN(const Target target, find_target(config));
  if (!target.topology)
    return user_error("compile_topology is empty: say for which TPUs, tpu7x:2x2x1 or tpu7x-8");
  LIGNUM_ASSIGN_OR_RETURN(const pjrt::Overrides flags, pjrt::parse_flags(config.text("compile_xla_flags")));
  LIGNUM_ASSIGN_OR_RETURN(const plan::Program program, plan::make_program(target.step));
  pjrt::PrintOptions options = train::print_options(target.step.mesh);
  options.host_memory = true;
  if (!a.stablehlo.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(const std::string text, pjrt::print_stablehlo(*program.local, options));
    LIGNUM_RETURN_IF_ERROR(write_file_atomic(a.stablehlo, text));
  }
  LIGNUM_ASSIGN_OR_RETURN(const pjrt::Plugin plugin,
                          pjrt::Plugin::load(pjrt::PluginKind::tpu, config.text("plugin")));
  LIGNUM_ASSIGN_OR_RETURN(
      const pjrt::Topology topology,
      pjrt::Topology::create(plugin, target.topology->text(), {.num_slices = target.topology->slices}));
  LIGNUM_ASSIGN_OR_RETURN(
      const pjrt::CompiledStep step,
      pjrt::compile_step(topology, *program.local, options, flags, train::places(target.step.mesh)));
  if (!a.hlo.empty()) LIGNUM_RETURN_IF_ERROR(write_file_atomic(a.hlo, step.program.to_text()));
  LIGNUM_ASSIGN_OR_RETURN(const int64_t program_bytes, step.compiled.serialized_size());
  const std::vector<Loop> loops = loops_of(step.program);
  if (a.json) {
    print_json(to_json(target, step, program_bytes, loops));
  } else {
    print(target, step, program_bytes, loops);
  }
  if (target.device_memory > 0 && step.memory.device_peak() > target.device_memory) {
    return check_failed("the step needs {} of device memory, there are {}",
                        plan::bytes_text(static_cast<double>(step.memory.device_peak())),
                        plan::bytes_text(static_cast<double>(target.device_memory)));
  }
  return {};
}

}  // namespace

void add_compile(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "compile", "Compiles a training step for TPUs ahead of time: memory, loops, what overlaps.");
  auto a = std::make_shared<CompileArguments>(verb);
  verb.add_option("--stablehlo", a->stablehlo, "write the program that is compiled to this file");
  verb.add_option("--hlo", a->hlo, "write the optimised program to this file");
  add_json(verb, a->json, "print one JSON object");
  add_examples(
      verb, "compile [config.yml] [key=value ...] [--stablehlo PATH] [--hlo PATH] [--json]",
      {"compile model_name=lignum-61m compile_topology=tpu7x:2x2x1 ici_fsdp_parallelism=8 dtype=bfloat16",
       "compile configs/quickstart.yml compile_topology=tpu7x-8 ici_fsdp_parallelism=8 --hlo step.txt",
       "compile configs/quickstart.yml compile_topology=tpu7x-8 compile_topology_num_slices=2 "
       "dcn_data_parallelism=2"});
  verb.final_callback([a, &outcome] { outcome.status = run_compile(*a); });
}

}  // namespace lignum::cli
