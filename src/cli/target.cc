#include "cli/target.h"

#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "plan/price.h"
#include "train/setup.h"

namespace lignum::cli {

std::string Target::describe() const {
  std::string mesh;
  for (const passes::MeshAxis& a : step.mesh.axes)
    if (a.size > 1 || a.name == "data" || a.name == "fsdp") mesh += fmt::format(" {}={}", a.name, a.size);
  const std::string where = topology ? topology->describe() : spec ? spec->name() : "this machine";
  return fmt::format("{} parameters on {}: {} {}{}, mesh{}; {} rows of {} tokens a micro-step; {}",
                     step.model.parameters(), where, devices, topology ? "device" : "rank",
                     devices == 1 ? "" : "s", mesh, step.shape.batch, step.shape.sequence,
                     passes::describe(step.optimizer));
}

std::vector<Target::Axis> Target::axes() const {
  std::vector<Axis> axes;
  if (!topology) return axes;
  for (const passes::MeshAxis& a : step.mesh.axes) {
    if (a.size == 1) continue;
    const Result<hw::Group> group = plan::place_axis(step.mesh, a.name, *topology);
    axes.push_back({a.name, a.size, group.ok() ? group->describe() : "cuts across the torus"});
  }
  return axes;
}

void Target::print() const {
  print_line(describe());
  for (const Axis& a : axes())
    print_line(fmt::format("  mesh axis {}, {} devices: {}", a.name, a.size, a.on));
}

nlohmann::ordered_json Target::mesh_json() const {
  nlohmann::ordered_json mesh = nlohmann::ordered_json::array();
  for (const Axis& a : axes()) mesh.push_back({{"axis", a.name}, {"devices", a.size}, {"on", a.on}});
  return mesh;
}

Result<Target> find_target(const config::Config& config) {
  Target t;
  const std::string& topology = config.text("compile_topology");
  if (config.text("target") == "pjrt")
    return user_error(
        "target=pjrt: there is no specification of a plug-in's device; use target=cpu or target=tpu");
  if (config.text("target") == "tpu" || !topology.empty()) {
    if (topology.empty())
      return user_error("target=tpu: compile_topology is empty; say tpu7x:2x2x1 or tpu7x-8");
    if (const std::string& name = config.text("spec"); !name.empty()) {
      LIGNUM_ASSIGN_OR_RETURN(t.spec, hw::Spec::load(name));
    } else {
      LIGNUM_ASSIGN_OR_RETURN(t.spec, hw::Spec::load(topology.substr(0, topology.find_first_of(":-"))));
    }
    LIGNUM_ASSIGN_OR_RETURN(t.topology,
                            hw::parse_topology(topology, *t.spec, static_cast<int>(config.slices())));
    t.devices = t.topology->devices();
    LIGNUM_ASSIGN_OR_RETURN(const config::ModelConfig model, config::model_from_config(config));
    LIGNUM_ASSIGN_OR_RETURN(t.step, train::step_options(config, model, t.devices));
    t.step.xla = true;
  } else {
    LIGNUM_ASSIGN_OR_RETURN(t.spec, find_spec(config, t.no_spec));
    LIGNUM_ASSIGN_OR_RETURN(train::Setup setup, train::make_setup(config, t.spec ? &*t.spec : nullptr));
    t.devices = setup.ranks;
    t.step = std::move(setup.step);
    // Planned for the machine of the specification, which need not be this one.
    if (config.text("bf16_dot") == "auto") t.step.bf16_dot.clear();
  }
  // A CPU's memory is shared by its ranks, a TPU device's is its own.
  t.device_memory = train::memory_budget(config, t.spec ? &*t.spec : nullptr, t.topology ? 1 : t.devices);
  return t;
}

}  // namespace lignum::cli
