#include "pjrt/reader.h"

namespace lignum::pjrt {
namespace {

CompileOptions compile_options(const PrintOptions& options, const Overrides& overrides) {
  CompileOptions out;
  out.num_replicas = static_cast<int>(options.replicas);
  out.overrides = overrides;
  return out;
}

// A place in the text ("12:34" as MLIR writes it) is of use only with what stands there: the line and the
// op's comment above it are added to the compiler's words.
Status with_line(const Status& status, const std::string& text) {
  const std::string& words = status.message();
  for (size_t at = words.find(':'); at != std::string::npos; at = words.find(':', at + 1)) {
    size_t end = at + 1;
    int64_t number = 0;
    while (end < words.size() && words[end] >= '0' && words[end] <= '9' && number < 1'000'000'000)
      number = number * 10 + (words[end++] - '0');
    if (end == at + 1 || end >= words.size() || words[end] != ':' || number == 0) continue;
    std::string comment, line;
    size_t begin = 0;
    for (int64_t k = 1; k <= number && begin < text.size(); ++k) {
      const size_t stop = std::min(text.find('\n', begin), text.size());
      line = text.substr(begin, stop - begin);
      if (const size_t first = line.find_first_not_of(' ');
          first != std::string::npos && line.compare(first, 2, "//") == 0)
        comment = line.substr(first + 3);
      begin = stop + 1;
    }
    return status.with_context(
        fmt::format("{} [{}]", comment, line.substr(std::min(line.find_first_not_of(' '), line.size()))));
  }
  return status;
}

std::vector<std::string> param_names(const ir::Graph& g) {
  std::vector<std::string> out;
  for (size_t i = 0; i < g.params().size(); ++i) out.push_back(g.param_name(static_cast<int64_t>(i)));
  return out;
}

}  // namespace

Result<LoadedStep> load_step(const Client& client, const ir::Graph& local, const PrintOptions& options,
                             const Overrides& overrides) {
  LIGNUM_ASSIGN_OR_RETURN(std::string text, print_stablehlo(local, options));
  CompileOptions compile = compile_options(options, overrides);
  if (client.plugin().kind() == PluginKind::cpu)
    compile.overrides.emplace("xla_allow_excess_precision", false);
  Result<Executable> executable = client.compile(text, compile);
  if (!executable.ok()) return with_line(executable.status(), text);
  LoadedStep step{std::move(text), std::move(*executable), param_names(local), {}};
  for (const ir::Output& o : local.outputs()) step.outputs.push_back(o.name);
  return step;
}

Result<CompiledStep> compile_step(const Topology& topology, const ir::Graph& local,
                                  const PrintOptions& options, const Overrides& overrides,
                                  std::vector<int64_t> places) {
  LIGNUM_ASSIGN_OR_RETURN(std::string text, print_stablehlo(local, options));
  CompileOptions compile = compile_options(options, overrides);
  compile.places = std::move(places);
  if (topology.plugin().kind() == PluginKind::tpu)
    compile.overrides.emplace("xla_tpu_prefer_async_allgather_to_allreduce", true);
  const Result<CompiledProgram> compiled = compile_ahead(topology, text, compile);
  if (!compiled.ok()) return with_line(compiled.status(), text);
  LIGNUM_ASSIGN_OR_RETURN(const MemoryStats memory, compiled->memory_stats());
  LIGNUM_ASSIGN_OR_RETURN(const std::string optimized, compiled->optimized_program());
  LIGNUM_ASSIGN_OR_RETURN(HloProgram program, HloProgram::decode(optimized));
  return CompiledStep{std::move(text), *compiled, memory, std::move(program)};
}

}  // namespace lignum::pjrt
