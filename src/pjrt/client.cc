#include "pjrt/client.h"

#include <algorithm>
#include <optional>

#include "pjrt/api.h"

namespace lignum::pjrt {

struct ClientState {
  Plugin plugin;
  PJRT_Client* client;
  std::vector<PJRT_Device*> devices;
  std::vector<DeviceDescription> descriptions;

  ClientState(const Plugin& p, PJRT_Client* c) : plugin(p), client(c) {}
  ClientState(const ClientState&) = delete;
  ClientState& operator=(const ClientState&) = delete;
  ~ClientState() { LIGNUM_PJRT_DESTROY(plugin.api(), Client_Destroy, client, client); }
};

namespace {

std::optional<PJRT_Buffer_Type> to_pjrt(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return PJRT_Buffer_Type_F32;
    case DType::f64:
      return PJRT_Buffer_Type_F64;
    case DType::bf16:
      return PJRT_Buffer_Type_BF16;
    case DType::f8e4m3fn:
      return PJRT_Buffer_Type_F8E4M3FN;
    case DType::f8e5m2:
      return PJRT_Buffer_Type_F8E5M2;
    case DType::i32:
      return PJRT_Buffer_Type_S32;
    case DType::u32:
      return PJRT_Buffer_Type_U32;
    case DType::i64:
      return PJRT_Buffer_Type_S64;
    case DType::u8:
      return PJRT_Buffer_Type_U8;
    case DType::pred:
      return PJRT_Buffer_Type_PRED;
  }
  return std::nullopt;
}

std::optional<DType> from_pjrt(PJRT_Buffer_Type type) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f8e4m3fn, DType::f8e5m2, DType::i32,
                      DType::u32, DType::i64, DType::u8, DType::pred}) {
    if (to_pjrt(dtype) == type) return dtype;
  }
  return std::nullopt;
}

int64_t elements(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

}  // namespace

int64_t HostArray::size() const { return elements(dims); }

// ---------------------------------------------------------------- Buffer

void Buffer::Free::operator()(PJRT_Buffer* buffer) const {
  LIGNUM_PJRT_DESTROY(client->plugin.api(), Buffer_Destroy, buffer, buffer);
}

int64_t Buffer::bytes() const { return elements(dims_) * dtype_size(dtype_); }

Status Buffer::read_type() {
  const PJRT_Api* api = buffer_.get_deleter().client->plugin.api();
  auto type = make_args<PJRT_Buffer_ElementType_Args>();
  type.buffer = buffer_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Buffer_ElementType, type));
  const std::optional<DType> dtype = from_pjrt(type.type);
  if (!dtype) {
    return user_error(
        "an output has PJRT element type {}, which has no DType here: convert it in the program",
        static_cast<int>(type.type));
  }
  dtype_ = *dtype;
  auto dims = make_args<PJRT_Buffer_Dimensions_Args>();
  dims.buffer = buffer_.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Buffer_Dimensions, dims));
  dims_.assign(dims.dims, dims.dims + dims.num_dims);
  return {};
}

bool Buffer::deleted() const {
  const PJRT_Api* api = buffer_.get_deleter().client->plugin.api();
  auto args = make_args<PJRT_Buffer_IsDeleted_Args>();
  args.buffer = buffer_.get();
  const Status status = LIGNUM_PJRT_CALL(api, Buffer_IsDeleted, args);
  LIGNUM_CHECK(status.ok(), "{}", status.message());
  return args.is_deleted;
}

Status Buffer::fetch_into(std::span<std::byte> out) const {
  if (static_cast<int64_t>(out.size()) != bytes()) {
    return user_error("fetching a buffer of {} bytes into {} bytes", bytes(), out.size());
  }
  if (deleted())
    return user_error(
        "fetching a buffer that was donated to an execution: fetch before, or keep the argument");
  // Devices may hold another order of dims, or tiles: dense row-major is asked for by name.
  std::vector<int64_t> minor_to_major(dims_.size());
  for (size_t i = 0; i < dims_.size(); ++i) minor_to_major[i] = static_cast<int64_t>(dims_.size() - 1 - i);
  auto layout = make_args<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled = make_args<PJRT_Buffer_MemoryLayout_Tiled>();
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();

  const PJRT_Api* api = buffer_.get_deleter().client->plugin.api();
  std::byte nothing{};  // null would ask for the size
  auto args = make_args<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = buffer_.get();
  args.host_layout = &layout;
  args.dst = out.empty() ? &nothing : out.data();
  args.dst_size = out.size();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Buffer_ToHostBuffer, args));
  return await_event(api, args.event);
}

Result<HostArray> Buffer::fetch() const {
  HostArray out{dtype_, dims_, std::vector<std::byte>(static_cast<size_t>(bytes()))};
  LIGNUM_RETURN_IF_ERROR(fetch_into(out.data));
  return out;
}

// ---------------------------------------------------------------- Executable

Result<std::vector<std::vector<Buffer>>> Executable::execute(
    const std::vector<std::vector<const Buffer*>>& arguments, const std::vector<int64_t>& keep) const {
  const size_t devices = devices_.size();
  if (arguments.size() != devices) {
    return user_error("execute: arguments for {} devices, the program runs on {}", arguments.size(), devices);
  }
  std::vector<std::vector<PJRT_Buffer*>> inputs(devices);
  for (size_t d = 0; d < devices; ++d) {
    if (arguments[d].size() != arguments[0].size()) {
      return user_error("execute: {} arguments on device {}, {} on device 0", arguments[d].size(), d,
                        arguments[0].size());
    }
    for (size_t a = 0; a < arguments[d].size(); ++a) {
      const Buffer* buffer = arguments[d][a];
      LIGNUM_CHECK(buffer != nullptr && buffer->buffer_ != nullptr, "argument {} of device {}", a, d);
      if (buffer->deleted()) {
        return user_error(
            "execute: argument {} of device {} was donated to an earlier execution: pass that one's output, "
            "or "
            "list the argument in keep",
            a, d);
      }
      inputs[d].push_back(buffer->buffer_.get());
    }
  }
  std::vector<PJRT_Buffer* const*> input_lists;
  std::vector<std::vector<PJRT_Buffer*>> outputs(
      devices, std::vector<PJRT_Buffer*>(static_cast<size_t>(num_outputs_)));
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t d = 0; d < devices; ++d) {
    input_lists.push_back(inputs[d].data());
    output_lists.push_back(outputs[d].data());
  }
  std::vector<PJRT_Event*> events(devices);

  const PJRT_Api* api = client_->plugin.api();
  auto options = make_args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = keep.data();
  options.num_non_donatable_input_indices = keep.size();
  auto args = make_args<PJRT_LoadedExecutable_Execute_Args>();
  args.executable = executable_.get();
  args.options = &options;
  args.argument_lists = input_lists.data();
  args.num_devices = devices;
  args.num_args = inputs[0].size();
  args.output_lists = output_lists.data();
  args.device_complete_events = events.data();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, LoadedExecutable_Execute, args));

  // From here on everything is owned: all devices are waited for even when one has failed.
  std::vector<std::vector<Buffer>> results(devices);
  Status status;
  for (size_t d = 0; d < devices; ++d) {
    Status device_status = await_event(api, events[d]);
    for (PJRT_Buffer* output : outputs[d]) {
      Buffer& buffer = results[d].emplace_back(Buffer(client_, output));
      if (device_status.ok()) device_status = buffer.read_type();
    }
    if (status.ok() && !device_status.ok()) status = device_status.with_context(fmt::format("device {}", d));
  }
  LIGNUM_RETURN_IF_ERROR(status);
  return results;
}

Result<std::vector<std::vector<HostArray>>> Executable::run(
    const std::vector<std::vector<HostView>>& arguments) const {
  if (arguments.size() != devices_.size()) {
    return user_error("run: arguments for {} devices, the program runs on {}", arguments.size(),
                      devices_.size());
  }
  const Client client(client_);
  std::vector<std::vector<Buffer>> uploaded(arguments.size());
  std::vector<std::vector<const Buffer*>> handles(arguments.size());
  for (size_t d = 0; d < arguments.size(); ++d) {
    uploaded[d].reserve(arguments[d].size());
    for (const HostView& view : arguments[d]) {
      LIGNUM_ASSIGN_OR_RETURN(Buffer buffer, client.upload(devices_[d], view));
      uploaded[d].push_back(std::move(buffer));
      handles[d].push_back(&uploaded[d].back());
    }
  }
  LIGNUM_ASSIGN_OR_RETURN(const auto results, execute(handles));
  std::vector<std::vector<HostArray>> out(results.size());
  for (size_t d = 0; d < results.size(); ++d) {
    for (const Buffer& buffer : results[d]) {
      LIGNUM_ASSIGN_OR_RETURN(HostArray array, buffer.fetch());
      out[d].push_back(std::move(array));
    }
  }
  return out;
}

// ---------------------------------------------------------------- Client

Result<Client> Client::create(const Plugin& plugin, const ClientOptions& options) {
  if (options.cpu_device_count < 0) {
    return user_error("cpu_device_count = {}: a positive number, or 0 for the plug-in's default",
                      options.cpu_device_count);
  }
  const PJRT_Api* api = plugin.api();
  std::vector<PJRT_NamedValue> named;
  if (options.cpu_device_count > 0)
    named.push_back(named_integer("cpu_device_count", options.cpu_device_count));
  auto create = make_args<PJRT_Client_Create_Args>();
  create.create_options = named.data();
  create.num_options = named.size();
  LIGNUM_RETURN_IF_ERROR(
      LIGNUM_PJRT_CALL(api, Client_Create, create).with_context("plug-in " + plugin.path()));
  auto state = std::make_shared<ClientState>(plugin, create.client);

  auto list = make_args<PJRT_Client_AddressableDevices_Args>();
  list.client = create.client;
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Client_AddressableDevices, list));
  for (size_t i = 0; i < list.num_addressable_devices; ++i) {
    PJRT_Device* device = list.addressable_devices[i];
    auto description = make_args<PJRT_Device_GetDescription_Args>();
    description.device = device;
    LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Device_GetDescription, description));
    LIGNUM_ASSIGN_OR_RETURN(DeviceDescription described,
                            describe_device(api, description.device_description));
    state->devices.push_back(device);
    state->descriptions.push_back(std::move(described));
  }
  return Client(std::move(state));
}

const Plugin& Client::plugin() const { return state_->plugin; }
const std::vector<DeviceDescription>& Client::devices() const { return state_->descriptions; }

std::string Client::platform() const {
  auto args = make_args<PJRT_Client_PlatformName_Args>();
  args.client = state_->client;
  const Status status = LIGNUM_PJRT_CALL(state_->plugin.api(), Client_PlatformName, args);
  LIGNUM_CHECK(status.ok(), "{}", status.message());
  return std::string(args.platform_name, args.platform_name_size);
}

Result<Executable> Client::compile(std::string_view stablehlo, const CompileOptions& options) const {
  LIGNUM_ASSIGN_OR_RETURN(const CompileOptions placed, with_devices(options, state_->descriptions));
  LIGNUM_ASSIGN_OR_RETURN(const std::string encoded, placed.serialize());
  const PJRT_Api* api = state_->plugin.api();
  const PJRT_Program program = mlir_program(stablehlo);
  auto compile = make_args<PJRT_Client_Compile_Args>();
  compile.client = state_->client;
  compile.program = &program;
  compile.compile_options = encoded.data();
  compile.compile_options_size = encoded.size();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Client_Compile, compile));
  std::shared_ptr<PJRT_LoadedExecutable> loaded(
      compile.executable, [state = state_](PJRT_LoadedExecutable* e) {
        LIGNUM_PJRT_DESTROY(state->plugin.api(), LoadedExecutable_Destroy, executable, e);
      });

  auto get = make_args<PJRT_LoadedExecutable_GetExecutable_Args>();
  get.loaded_executable = loaded.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, LoadedExecutable_GetExecutable, get));
  Executable out(state_, loaded, CompiledProgram(state_->plugin, get.executable, loaded));
  LIGNUM_ASSIGN_OR_RETURN(out.num_outputs_, out.program_.num_outputs());

  auto list = make_args<PJRT_LoadedExecutable_AddressableDevices_Args>();
  list.executable = loaded.get();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, LoadedExecutable_AddressableDevices, list));
  for (size_t i = 0; i < list.num_addressable_devices; ++i) {
    const auto& devices = state_->devices;
    const auto it = std::find(devices.begin(), devices.end(), list.addressable_devices[i]);
    LIGNUM_CHECK(it != devices.end(), "device {} of the executable is none of the client's {}", i,
                 devices.size());
    out.devices_.push_back(static_cast<int>(it - devices.begin()));
  }
  if (out.devices_.empty())
    return user_error("compile: no device of the program is addressable from this process");
  return out;
}

Result<Buffer> Client::upload(int device, const HostView& view) const {
  if (device < 0 || device >= static_cast<int>(state_->devices.size())) {
    return user_error("upload: device {} of a client with {} devices", device, state_->devices.size());
  }
  for (int64_t d : view.dims) {
    if (d < 0) return user_error("upload: dimension {} is negative", d);
  }
  const auto type = to_pjrt(view.dtype);
  LIGNUM_CHECK(type.has_value(), "dtype {}", dtype_name(view.dtype));
  const PJRT_Api* api = state_->plugin.api();
  const std::byte nothing{};  // an empty array may come with a null pointer
  auto args = make_args<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = state_->client;
  args.data = view.data == nullptr ? &nothing : view.data;
  LIGNUM_CHECK(view.data != nullptr || elements(view.dims) == 0, "null data for {} elements",
               elements(view.dims));
  args.type = *type;
  args.dims = view.dims.data();
  args.num_dims = view.dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = state_->devices[device];
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, Client_BufferFromHostBuffer, args));
  Buffer buffer(state_, args.buffer);
  buffer.dtype_ = view.dtype;
  buffer.dims_ = view.dims;
  LIGNUM_RETURN_IF_ERROR(await_event(api, args.done_with_host_buffer));
  return buffer;
}

}  // namespace lignum::pjrt
