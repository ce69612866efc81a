#include "pjrt/api.h"

#include <algorithm>
#include <array>

namespace lignum::pjrt {
namespace {

// PJRT_Error_Code, which follows absl's status codes.
constexpr std::array<const char*, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

bool is_internal(PJRT_Error_Code code) {
  return code == PJRT_Error_Code_INTERNAL || code == PJRT_Error_Code_UNKNOWN ||
         code == PJRT_Error_Code_DATA_LOSS;
}

Attribute read_attribute(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kString:
      return std::string(value.string_value, value.value_size);
    case PJRT_NamedValue_kInt64:
      return value.int64_value;
    case PJRT_NamedValue_kInt64List:
      return std::vector<int64_t>(value.int64_array_value, value.int64_array_value + value.value_size);
    case PJRT_NamedValue_kFloat:
      return value.float_value;
    case PJRT_NamedValue_kBool:
      return value.bool_value;
  }
  return fmt::format("<value of unknown type {}>", static_cast<int>(value.type));
}

template <class T>
const T* find_attribute(const Attributes& attributes, const char* name) {
  const auto it = attributes.find(name);
  return it == attributes.end() ? nullptr : std::get_if<T>(&it->second);
}

}  // namespace

Status take_error(const PJRT_Api* api, PJRT_Error* error, const char* call) {
  if (error == nullptr) return {};
  auto message = make_args<PJRT_Error_Message_Args>();
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string text(message.message, message.message_size);
  auto code = make_args<PJRT_Error_GetCode_Args>();
  code.error = error;
  // An error while asking for an error's code: the first one is what the user needs, the second is freed.
  PJRT_Error* second = api->PJRT_Error_GetCode(&code);
  if (second != nullptr) code.code = PJRT_Error_Code_UNKNOWN;
  for (PJRT_Error* e : {error, second}) {
    auto destroy = make_args<PJRT_Error_Destroy_Args>();
    destroy.error = e;
    if (e != nullptr) api->PJRT_Error_Destroy(&destroy);
  }
  const auto number = static_cast<size_t>(code.code);
  const char* code_name = number < kCodeNames.size() ? kCodeNames[number] : "unknown code";
  return {is_internal(code.code) ? Code::internal : Code::user_error,
          fmt::format("{}: {} ({})", call, text, code_name)};
}

Status await_event(const PJRT_Api* api, PJRT_Event* event) {
  if (event == nullptr) return {};
  auto await = make_args<PJRT_Event_Await_Args>();
  await.event = event;
  Status status = LIGNUM_PJRT_CALL(api, Event_Await, await);
  LIGNUM_PJRT_DESTROY(api, Event_Destroy, event, event);
  return status;
}

Attributes read_attributes(const PJRT_NamedValue* values, size_t count) {
  Attributes out;
  for (size_t i = 0; i < count; ++i) {
    out.emplace(std::string(values[i].name, values[i].name_size), read_attribute(values[i]));
  }
  return out;
}

PJRT_NamedValue named_integer(std::string_view name, int64_t value) {
  auto out = make_args<PJRT_NamedValue>();
  out.name = name.data();
  out.name_size = name.size();
  out.type = PJRT_NamedValue_kInt64;
  out.int64_value = value;
  out.value_size = 1;
  return out;
}

PJRT_NamedValue named_integers(std::string_view name, const std::vector<int64_t>& values) {
  auto out = make_args<PJRT_NamedValue>();
  out.name = name.data();
  out.name_size = name.size();
  out.type = PJRT_NamedValue_kInt64List;
  out.int64_array_value = values.data();
  out.value_size = values.size();
  return out;
}

Result<DeviceDescription> describe_device(const PJRT_Api* api, PJRT_DeviceDescription* device) {
  DeviceDescription out;
  auto id = make_args<PJRT_DeviceDescription_Id_Args>();
  id.device_description = device;
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, DeviceDescription_Id, id));
  out.id = id.id;

  auto kind = make_args<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = device;
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, DeviceDescription_Kind, kind));
  out.kind.assign(kind.device_kind, kind.device_kind_size);

  auto process = make_args<PJRT_DeviceDescription_ProcessIndex_Args>();
  process.device_description = device;
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, DeviceDescription_ProcessIndex, process));
  out.process_index = process.process_index;

  auto attributes = make_args<PJRT_DeviceDescription_Attributes_Args>();
  attributes.device_description = device;
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api, DeviceDescription_Attributes, attributes));
  out.attributes = read_attributes(attributes.attributes, attributes.num_attributes);
  if (const auto* v = find_attribute<std::vector<int64_t>>(out.attributes, "coords")) out.coords = *v;
  if (const auto* v = find_attribute<int64_t>(out.attributes, "core_on_chip")) out.core_on_chip = *v;
  if (const auto* v = find_attribute<int64_t>(out.attributes, "slice_index")) out.slice_index = *v;
  if (const auto* v = find_attribute<int64_t>(out.attributes, "device_memory_bytes_limit"))
    out.memory_bytes = *v;
  return out;
}

PJRT_Program mlir_program(std::string_view stablehlo) {
  static constexpr std::string_view kFormat = "mlir";
  auto program = make_args<PJRT_Program>();
  program.code = const_cast<char*>(stablehlo.data());  // the interface uses one struct for input and output
  program.code_size = stablehlo.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  return program;
}

Result<CompileOptions> with_devices(const CompileOptions& options,
                                    const std::vector<DeviceDescription>& available) {
  CompileOptions out = options;
  const int64_t wanted = static_cast<int64_t>(options.num_replicas) * options.num_partitions;
  if (!options.device_ids.empty() || wanted < 1) return out;
  if (wanted > static_cast<int64_t>(available.size())) {
    return user_error(
        "compile options: num_replicas * num_partitions = {} * {} asks for {} devices, there are {}: use "
        "more "
        "devices (a larger topology, or cpu_device_count of the client), or fewer replicas",
        options.num_replicas, options.num_partitions, wanted, available.size());
  }
  LIGNUM_CHECK(out.places.empty() || static_cast<int64_t>(out.places.size()) == wanted,
               "{} places for {} devices", out.places.size(), wanted);
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t place = out.places.empty() ? i : out.places[static_cast<size_t>(i)];
    LIGNUM_CHECK(place >= 0 && place < static_cast<int64_t>(available.size()), "place {} of {} devices",
                 place, available.size());
    out.device_ids.push_back(available[static_cast<size_t>(place)].id);
  }
  return out;
}

}  // namespace lignum::pjrt
