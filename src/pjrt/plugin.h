// A PJRT plug-in: a shared object that compiles and runs StableHLO programs behind a C interface.
//
// Search order of a kind's plug-in: the caller's path; the kind's environment variable; the folder that
// scripts/setup-pjrt fills (compiled in). A named file that cannot be used is an error, never a reason to
// look further.
//
// One process may hold the CPU plug-in and libtpu at once (each is loaded with its symbols private; the tests
// do it). A plug-in is initialised once a process and never unloaded: both start threads of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

struct PJRT_Api;

namespace lignum::pjrt {

// cpu: XLA on this machine, LIGNUM_PJRT_CPU_PLUGIN. tpu: libtpu, LIGNUM_TPU_PLUGIN. other: any plug-in, by
// path only.
enum class PluginKind { cpu, tpu, other };

std::string_view plugin_kind_name(PluginKind);

// The file that load would open. A user error lists what was tried and how to get the missing part.
Result<std::string> find_plugin(PluginKind, const std::string& path = "");

// A value of a plug-in's, a device's or an executable's attribute.
using Attribute = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using Attributes = std::map<std::string, Attribute>;
std::string attribute_to_string(const Attribute&);

// A cheap handle: copies share the loaded library. All its functions may be called from any thread.
class Plugin {
 public:
  // Variables that the plug-in reads are set before it is loaded, where the user has not set them: quiet
  // logs; for tpu, no metadata server is asked and other processes may load libtpu too (docs/pjrt.md lists
  // them). setenv is not thread-safe: load plug-ins before threads that read the environment start. Signal
  // handlers that the plug-in installs are taken out again: libtpu takes SIGTERM, SIGHUP, SIGPIPE and the
  // crash signals.
  static Result<Plugin> load(PluginKind, const std::string& path = "");

  const std::string& path() const { return *path_; }
  PluginKind kind() const { return kind_; }
  int api_major() const;
  int api_minor() const;
  // xla_version, stablehlo_current_version ("1.20.0" as a list of 3), stablehlo_minimum_version, ...
  Result<Attributes> attributes() const;

  const PJRT_Api* api() const { return api_; }

 private:
  Plugin(PluginKind kind, const std::string* path, const PJRT_Api* api)
      : kind_(kind), path_(path), api_(api) {}

  PluginKind kind_;
  const std::string* path_;  // owned by the registry of loaded plug-ins, which lives as long as the process
  const PJRT_Api* api_;
};

}  // namespace lignum::pjrt
