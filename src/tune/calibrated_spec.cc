#include <cstdlib>

#include "hw/cpu_spec_builder.h"
#include "tune/calibrate.h"

namespace lignum::tune {

std::string calibrated_spec_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/lignum/specs/cpu.json";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return std::string(home) + "/.cache/lignum/specs/cpu.json";
}

Result<hw::Spec> load_calibrated_spec() {
  const std::string path = calibrated_spec_path();
  if (path.empty()) {
    return user_error(
        "spec=cpu: neither XDG_CACHE_HOME nor HOME is set, so there is no cache folder; set one");
  }
  Result<hw::Spec> spec = hw::Spec::load(path);
  if (!spec.ok()) {
    return spec.status().with_context("spec=cpu: run `lignum calibrate` to measure this machine");
  }
  const hw::CpuMachine here = hw::this_machine(spec->machine().isa, "");
  if (here.cpu != spec->machine().cpu || here.cores != spec->machine().cores) {
    return user_error(
        "spec=cpu: {} was measured on {} cores of '{}', this is {} cores of '{}'; run `lignum calibrate`, or "
        "name the file itself to plan for that machine",
        path, spec->machine().cores, spec->machine().cpu, here.cores, here.cpu);
  }
  return spec;
}

}  // namespace lignum::tune
