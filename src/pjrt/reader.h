// The graph's third reader: a LOCAL step, printed, compiled and run through a PJRT plug-in.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "ir/graph.h"
#include "pjrt/client.h"
#include "pjrt/hlo.h"
#include "pjrt/print.h"
#include "pjrt/program.h"

namespace lignum::pjrt {

using Overrides = std::map<std::string, OptionValue>;

// A step on the devices of a client, one a replica.
struct LoadedStep {
  std::string text;  // the StableHLO that was compiled
  Executable executable;
  std::vector<std::string> params, outputs;  // names, in the order of arguments and results

  // arguments[replica][param], that replica's shards -> results[replica][output].
  Result<std::vector<std::vector<HostArray>>> run(const std::vector<std::vector<HostView>>& arguments) const {
    return executable.run(arguments);
  }
};

// On the CPU bf16 edges are rounded where the graph has them (xla_allow_excess_precision=false, unless
// overridden).
Result<LoadedStep> load_step(const Client& client, const ir::Graph& local, const PrintOptions& options,
                             const Overrides& overrides = {});

// A step compiled for a topology, present or not.
struct CompiledStep {
  std::string text;
  CompiledProgram compiled;
  MemoryStats memory;  // of one device
  HloProgram program;  // the optimised module
};

// For TPU, all-gathers stay asynchronous all-gathers on any mesh
// (xla_tpu_prefer_async_allgather_to_allreduce, unless overridden): beyond 2x2x1 libtpu 0.0.52 would make
// zero-filled all-reduces of them. places: CompileOptions::places.
Result<CompiledStep> compile_step(const Topology& topology, const ir::Graph& local,
                                  const PrintOptions& options, const Overrides& overrides = {},
                                  std::vector<int64_t> places = {});

}  // namespace lignum::pjrt
