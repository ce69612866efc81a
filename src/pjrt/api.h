// This room's thin layer over the C interface: argument structs, slots that a plug-in may be too old for,
// errors.
#pragma once

#include <pjrt_c_api.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "pjrt/plugin.h"
#include "pjrt/program.h"

namespace lignum::pjrt {

// A zeroed argument struct of its own size. memset, so that the padding is zero too: a plug-in that is newer
// than our header may read a field there.
template <class Args>
Args make_args() {
  Args args;
  std::memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  return args;
}

// The plug-in's error as a Status, "CALL: its message (its code)"; frees it. Its INTERNAL, UNKNOWN and
// DATA_LOSS become internal errors, the rest (a bad program, option or argument, too little memory) the
// user's. null is ok.
Status take_error(const PJRT_Api* api, PJRT_Error* error, const char* call);

// The interface only grows at its end: a slot beyond the struct's size is one that the plug-in does not have.
template <class Args>
Status call_slot(const PJRT_Api* api, PJRT_Error* (*PJRT_Api::*slot)(Args*), const char* name, Args& args) {
  const auto end = reinterpret_cast<const char*>(&(api->*slot) + 1) - reinterpret_cast<const char*>(api);
  if (static_cast<size_t>(end) > api->struct_size || api->*slot == nullptr) {
    return user_error("the plug-in (PJRT API {}.{}) has no {}: use a newer plug-in",
                      api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version, name);
  }
  return take_error(api, (api->*slot)(&args), name);
}
#define LIGNUM_PJRT_CALL(api, name, args) \
  ::lignum::pjrt::call_slot(api, &PJRT_Api::PJRT_##name, "PJRT_" #name, args)

// Frees a handle. A plug-in that cannot free what it made has lost its own state: we stop.
#define LIGNUM_PJRT_DESTROY(api, name, field, handle)                               \
  do {                                                                              \
    auto destroy_args_ = ::lignum::pjrt::make_args<PJRT_##name##_Args>();           \
    destroy_args_.field = handle;                                                   \
    const ::lignum::Status destroyed_ = LIGNUM_PJRT_CALL(api, name, destroy_args_); \
    LIGNUM_CHECK(destroyed_.ok(), "{}", destroyed_.message());                      \
  } while (false)

// Waits for the event, frees it, and returns what became of it. null is an event that has happened.
Status await_event(const PJRT_Api* api, PJRT_Event* event);

Attributes read_attributes(const PJRT_NamedValue* values, size_t count);
PJRT_NamedValue named_integer(std::string_view name, int64_t value);
PJRT_NamedValue named_integers(std::string_view name, const std::vector<int64_t>& values);

Result<DeviceDescription> describe_device(const PJRT_Api* api, PJRT_DeviceDescription* device);

// "mlir" around text that outlives the program.
PJRT_Program mlir_program(std::string_view stablehlo);

// The options with device_ids filled in: the first of `available` when the caller names none.
Result<CompileOptions> with_devices(const CompileOptions& options,
                                    const std::vector<DeviceDescription>& available);

}  // namespace lignum::pjrt
