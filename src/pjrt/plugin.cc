#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "pjrt/api.h"

namespace lignum::pjrt {
namespace {

namespace fs = std::filesystem;

struct KindFacts {
  const char* name;
  const char* variable;  // environment
  const char* file;      // in LIGNUM_PLUGIN_DIR
};

KindFacts facts_of(PluginKind kind) {
  switch (kind) {
    case PluginKind::cpu:
      return {"cpu", "LIGNUM_PJRT_CPU_PLUGIN", "pjrt_cpu.so"};
    case PluginKind::tpu:
      return {"tpu", "LIGNUM_TPU_PLUGIN", "libtpu.so"};
    case PluginKind::other:
      break;
  }
  return {"other", nullptr, nullptr};
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Where a TPU is attached, libtpu finds out by itself which one, and must not be told otherwise.
bool tpu_may_be_attached() {
  std::error_code ignored;
  return fs::exists("/dev/accel0", ignored) || fs::exists("/dev/vfio/0", ignored);
}

// What the user has set stays.
void prepare_environment(PluginKind kind) {
  const auto set = [](const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); };
  if (kind != PluginKind::other)
    set("TF_CPP_MIN_LOG_LEVEL", "3");  // errors come back as Status, not on stderr as well
  if (kind != PluginKind::tpu) return;
  set("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");  // else a second process fails on a lock file
  set("TPU_MIN_LOG_LEVEL", "3");
  set("TPU_STDERR_LOG_LEVEL", "3");
  set("TPU_LOG_DIR", "disabled");  // else tpu_logs appears in the temporary folder
  if (tpu_may_be_attached()) return;
  // Without a TPU these are asked of the cloud's metadata server, 30 times each, before anything compiles.
  set("TPU_SKIP_MDS_QUERY", "1");
  set("TPU_ACCELERATOR_TYPE", "tpu7x-8");
  set("TPU_WORKER_HOSTNAMES", "localhost");
  set("TPU_WORKER_ID", "0");
}

// Which signal does what is the process's own business (SIGTERM saves a checkpoint): restores the
// dispositions. SIGPROF stays libtpu's: it runs a profiling timer, whose signal would end a process without
// its handler.
class SignalDispositions {
 public:
  SignalDispositions() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &actions_[i]);
  }
  SignalDispositions(const SignalDispositions&) = delete;
  SignalDispositions& operator=(const SignalDispositions&) = delete;
  ~SignalDispositions() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGHUP,  SIGINT,  SIGQUIT, SIGILL,  SIGABRT, SIGBUS, SIGFPE,
                                          SIGSEGV, SIGUSR1, SIGUSR2, SIGPIPE, SIGTERM, SIGCHLD};
  std::array<struct sigaction, kSignals.size()> actions_{};
};

struct Loaded {
  std::string path;
  const PJRT_Api* api;
};

Result<const PJRT_Api*> open_plugin(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return user_error("plug-in {}: cannot be loaded: {}", path, dlerror());
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  const PJRT_Api* api = get_api == nullptr ? nullptr : get_api();
  if (api == nullptr) {
    dlclose(library);
    return user_error("plug-in {}: no GetPjrtApi in it: this is not a PJRT plug-in", path);
  }
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR) {
    return user_error("plug-in {}: PJRT API {}.{}, this build speaks {}.x", path, version.major_version,
                      version.minor_version, PJRT_API_MAJOR);
  }
  auto initialize = make_args<PJRT_Plugin_Initialize_Args>();
  LIGNUM_RETURN_IF_ERROR(
      LIGNUM_PJRT_CALL(api, Plugin_Initialize, initialize).with_context("plug-in " + path));
  return api;
}

}  // namespace

std::string_view plugin_kind_name(PluginKind kind) { return facts_of(kind).name; }

std::string attribute_to_string(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<int64_t>>) {
          return fmt::format("{}", fmt::join(value, ","));
        } else {
          return fmt::format("{}", value);
        }
      },
      attribute);
}

Result<std::string> find_plugin(PluginKind kind, const std::string& path) {
  if (!path.empty()) {
    if (is_file(path)) return path;
    return user_error("plugin={}: no such file", path);
  }
  const KindFacts facts = facts_of(kind);
  if (facts.variable == nullptr)
    return user_error("a plug-in that is neither cpu nor tpu is named by its path: plugin=FILE");
  const char* variable = std::getenv(facts.variable);
  if (variable != nullptr && *variable != '\0') {
    if (is_file(variable)) return std::string(variable);
    return user_error("{}={}: no such file: correct the variable, or unset it to use the build's own plug-in",
                      facts.variable, variable);
  }
  std::string own = std::string(LIGNUM_PLUGIN_DIR "/") + facts.file;
  if (is_file(own)) return own;
  return user_error(
      "no plug-in for {}; tried: a path (none given), {} (not set), {} (absent): run scripts/setup-pjrt, or "
      "name "
      "the file by plugin=FILE or the variable",
      facts.name, facts.variable, own);
}

Result<Plugin> Plugin::load(PluginKind kind, const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string found, find_plugin(kind, path));
  std::error_code error;
  const std::string canonical = fs::canonical(found, error).string();
  if (error) return user_error("plug-in {}: {}", found, error.message());

  // Never freed: plug-ins run threads until the process ends, and handles point into the map.
  static std::mutex mutex;
  static auto& registry = *new std::map<std::string, Loaded>;
  const std::scoped_lock lock(mutex);
  auto it = registry.find(canonical);
  if (it == registry.end()) {
    prepare_environment(kind);
    const SignalDispositions dispositions;
    LIGNUM_ASSIGN_OR_RETURN(const PJRT_Api* api, open_plugin(canonical));
    it = registry.emplace(canonical, Loaded{canonical, api}).first;
  }
  return Plugin(kind, &it->second.path, it->second.api);
}

int Plugin::api_major() const { return api_->pjrt_api_version.major_version; }
int Plugin::api_minor() const { return api_->pjrt_api_version.minor_version; }

Result<Attributes> Plugin::attributes() const {
  auto args = make_args<PJRT_Plugin_Attributes_Args>();
  LIGNUM_RETURN_IF_ERROR(LIGNUM_PJRT_CALL(api_, Plugin_Attributes, args));
  return read_attributes(args.attributes, args.num_attributes);
}

}  // namespace lignum::pjrt
