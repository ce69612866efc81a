// Tests that run steps natively and through XLA's CPU plug-in.
#pragma once

#include "cpu_plugin.h"
#include "quick_compile.h"
#include "tracer.h"
#include "train/replicas.h"

namespace lignum::tracer {

template <int kDevices>
class OnCpuPlugin : public lignum::tests::CpuPlugin<kDevices> {
 protected:
  static Result<pjrt::LoadedStep> load(const Step& step, const pjrt::PrintOptions& options) {
    return pjrt::load_step(*OnCpuPlugin::client_, *step.program.local, options, kQuickCompile);
  }
  // The step natively and through XLA, from the same shards.
  static Status on_both(const Step& step) {
    LIGNUM_ASSIGN_OR_RETURN(const NativeRun native, run_native(step));
    LIGNUM_ASSIGN_OR_RETURN(const pjrt::LoadedStep loaded,
                            load(step, train::print_options(step.options.mesh)));
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<Arrays> outputs, run_loaded(loaded, params_of(native)));
    return compare(assemble(step, outputs_of(native)), assemble(step, outputs));
  }
};

}  // namespace lignum::tracer
