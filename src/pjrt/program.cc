#include "pjrt/program.h"

#include <algorithm>

#include "pjrt/api.h"

namespace lignum::pjrt {

CompiledProgram::CompiledProgram(Plugin plugin, PJRT_Executable* executable,
                                 std::shared_ptr<const void> keep_alive)
    : plugin_(plugin),
      executable_(executable, [api = plugin.api(), keep_alive = std::move(keep_alive)](PJRT_Executable* e) {
        LIGNUM_PJRT_DESTROY(api, Executable_Destroy, executable, e);
      }) {}

Result<std::string> CompiledProgram::name() const {
  auto args = make_args<PJRT_Executable_Name_Args>();
  args.executable = executable_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_Name, args));
  return std::string(args.executable_name, args.executable_name_size);
}

Result<int64_t> CompiledProgram::num_outputs() const {
  auto args = make_args<PJRT_Executable_NumOutputs_Args>();
  args.executable = executable_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_NumOutputs, args));
  return static_cast<int64_t>(args.num_outputs);
}

Result<MemoryStats> CompiledProgram::memory_stats() const {
  auto args = make_args<PJRT_Executable_GetCompiledMemoryStats_Args>();
  args.executable = executable_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_GetCompiledMemoryStats, args));
  return MemoryStats{.code = args.generated_code_size_in_bytes,
                     .arguments = args.argument_size_in_bytes,
                     .outputs = args.output_size_in_bytes,
                     .aliased = args.alias_size_in_bytes,
                     .temporaries = args.temp_size_in_bytes,
                     .peak = args.peak_memory_in_bytes,
                     .host_code = args.host_generated_code_size_in_bytes,
                     .host_arguments = args.host_argument_size_in_bytes,
                     .host_outputs = args.host_output_size_in_bytes,
                     .host_aliased = args.host_alias_size_in_bytes,
                     .host_temporaries = args.host_temp_size_in_bytes};
}

Result<Attributes> CompiledProgram::cost_analysis() const {
  auto args = make_args<PJRT_Executable_GetCostAnalysis_Args>();
  args.executable = executable_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_GetCostAnalysis, args));
  return read_attributes(args.properties, args.num_properties);
}

Result<std::string> CompiledProgram::serialize() const {
  auto args = make_args<PJRT_Executable_Serialize_Args>();
  args.executable = executable_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_Serialize, args));
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

Result<int64_t> CompiledProgram::serialized_size() const {
  LIGNUM_ASSIGN_OR_RETURN(const std::string bytes, serialize());
  return static_cast<int64_t>(bytes.size());
}

Result<std::string> CompiledProgram::optimized_program() const {
  auto program = make_args<PJRT_Program>();
  auto args = make_args<PJRT_Executable_OptimizedProgram_Args>();
  args.executable = executable_.get();
  args.program = &program;
  // The first call tells the size, the second fills the caller's memory.
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_OptimizedProgram, args));
  std::string bytes(program.code_size, '\0');
  program.code = bytes.data();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(plugin_.api(), Executable_OptimizedProgram, args));
  bytes.resize(program.code_size);
  const std::string_view format(program.format, program.format_size);
  if (format != "hlo_with_config") {
    return user_error("plug-in {}: its optimised program has the form '{}', 'hlo_with_config' is needed",
                      plugin_.path(), format);
  }
  return bytes;
}

Result<Topology> Topology::create(const Plugin& plugin, const std::string& name,
                                  const TopologyOptions& options) {
  const PJRT_Api* api = plugin.api();
  std::vector<PJRT_NamedValue> named;
  if (options.num_slices != 1) named.push_back(named_integer("num_slices", options.num_slices));
  if (!options.chips_per_host_bounds.empty()) {
    named.push_back(named_integers("chips_per_host_bounds", options.chips_per_host_bounds));
  }
  auto create = make_args<PJRT_TopologyDescription_Create_Args>();
  create.topology_name = name.data();
  create.topology_name_size = name.size();
  create.create_options = named.data();
  create.num_options = named.size();
  LIGNUM_RETURN_IF_ERROR(
      LIGNUM_PJRT_CALL(api, TopologyDescription_Create, create).with_context("topology " + name));
  Topology out(plugin, name,
               std::shared_ptr<PJRT_TopologyDescription>(create.topology, [api](PJRT_TopologyDescription* t) {
                 LIGNUM_PJRT_DESTROY(api, TopologyDescription_Destroy, topology, t);
               }));

  auto list = make_args<PJRT_TopologyDescription_GetDeviceDescriptions_Args>();
  list.topology = create.topology;
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, TopologyDescription_GetDeviceDescriptions, list));
  for (size_t i = 0; i < list.num_descriptions; ++i) {
    LIGNUM_ASSIGN_OR_RETURN(DeviceDescription device, describe_device(api, list.descriptions[i]));
    out.devices_.push_back(std::move(device));
  }
  // The interface promises no order.
  std::sort(out.devices_.begin(), out.devices_.end(),
            [](const DeviceDescription& a, const DeviceDescription& b) { return a.id < b.id; });
  return out;
}

Result<CompiledProgram> compile_ahead(const Topology& topology, std::string_view stablehlo,
                                      const CompileOptions& options) {
  LIGNUM_ASSIGN_OR_RETURN(const CompileOptions placed, with_devices(options, topology.devices()));
  LIGNUM_ASSIGN_OR_RETURN(const std::string encoded, placed.serialize());
  const PJRT_Program program = mlir_program(stablehlo);
  auto args = make_args<PJRT_Compile_Args>();
  args.topology = topology.handle();
  args.program = &program;
  args.compile_options = encoded.data();
  args.compile_options_size = encoded.size();
  LIGNUM_RETURN_IF_ERROR(
      LIGNUM_PJRT_CALL(topology.plugin().api(), Compile, args).with_context(topology.name()));
  return CompiledProgram(topology.plugin(), args.executable, nullptr);
}

}  // namespace lignum::pjrt
