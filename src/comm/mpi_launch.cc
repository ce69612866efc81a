#include "comm/mpi_launch.h"

#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#ifndef LIGNUM_MPIEXEC
#define LIGNUM_MPIEXEC ""  // built without an MPI
#endif

namespace lignum::comm {
namespace {

namespace fs = std::filesystem;

std::optional<int> number(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc() && *end == '\0' && value >= 0 ? std::optional(value) : std::nullopt;
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

fs::path folder_of_binary() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

constexpr const char* kFix =
    "run scripts/setup-mpi and build again; or leave comm out: ranks are then threads of one process";

// LIGNUM_MPIEXEC; the one of the MPI that the module was built with, where it was then or as far from the
// binary as it is in the tree; the first in PATH.
Result<std::string> find_mpiexec() {
  if (const std::string given = variable("LIGNUM_MPIEXEC"); !given.empty()) {
    if (::access(given.c_str(), X_OK) == 0) return given;
    return user_error("comm=mpi: LIGNUM_MPIEXEC={}: {}: correct or unset the variable", given,
                      std::strerror(errno));
  }
  std::vector<std::string> tried;
  const auto usable = [&](const fs::path& path) {
    tried.push_back(path.string());
    return is_file(path) && ::access(path.c_str(), X_OK) == 0;
  };
  if (const fs::path built = LIGNUM_MPIEXEC; !built.empty() && usable(built)) return built.string();
  if (const fs::path tree = (folder_of_binary() / "../../.deps/mpich/bin/mpiexec").lexically_normal();
      usable(tree))
    return tree.string();
  std::istringstream folders(variable("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path path = fs::path(folder) / "mpiexec";
    if (is_file(path) && ::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return user_error("comm=mpi: no mpiexec; tried: LIGNUM_MPIEXEC (not set), {}, PATH: {}",
                    fmt::join(tried, ", "), kFix);
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// What a rank and its guard share.
struct Pulse {
  std::atomic<uint64_t> beats{0};  // grows once a second while the rank has a processor
  std::atomic<bool> joined{false};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "two processes use it");
Pulse* pulse = nullptr;  // null: nobody watches

// Null where the system has no page to share.
Pulse* shared_pulse() {
  void* page = ::mmap(nullptr, sizeof(Pulse), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : new (page) Pulse;
}

void beat() {
  while (true) {
    pulse->beats.fetch_add(1, std::memory_order_relaxed);
    ::sleep(1);
  }
}

// "it is stopped", say: the state that the kernel gives a process.
std::string_view state_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  const char state = name_end == std::string::npos || name_end + 2 >= text.size() ? '?' : text[name_end + 2];
  switch (state) {
    case 'T':
      return "a signal has stopped it";
    case 't':
      return "a debugger has stopped it";
    case 'D':
      return "it waits for a device";
    default:
      return "it gets no processor";
  }
}

// The guard's own life: every signal that it may get is blocked and taken here.
class Guard {
 public:
  Guard(const Launched& self, pid_t child, int silence) : self_(self), child_(child), silence_(silence) {}

  [[noreturn]] void watch(const sigset_t& signals) {
    constexpr timespec kLook{.tv_sec = 1, .tv_nsec = 0};
    while (true) {
      const int signal = ::sigtimedwait(&signals, nullptr, &kLook);
      if (signal > 0 && signal != SIGCHLD) ::kill(child_, signal);
      if (signal == SIGCHLD) look_for_end();
      if (pulse != nullptr && silence_.count() > 0) look_for_silence();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void end(std::string_view what, int by) const {
    const std::string text = fmt::format(
        "lignum: rank {} of {} (process {}) {}: this ends the run. Checkpoints are whole; the same command "
        "goes on from the newest\n",
        self_.rank, self_.size, child_, what);
    // A launcher that has gone does not read it.
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
    // Hydra does not always end the others where one is gone, and never where it had not joined them: it is
    // asked to (PMI-1's wire protocol, spoken for the rank), once it has read the line above, for then it
    // reads nothing more.
    if (const std::optional<int> pmi = number("PMI_FD")) {
      ::sleep(1);
      const std::string abort = fmt::format("cmd=abort exitcode={}\n", 128 + by);
      static_cast<void>(!::write(*pmi, abort.data(), abort.size()));
    }
    ::_exit(128 + by);
  }

  void look_for_end() const {
    int status = 0;
    if (::waitpid(child_, &status, WNOHANG) != child_) return;
    if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
    if (!WIFSIGNALED(status)) return;
    const int by = WTERMSIG(status);
    end(fmt::format("was ended by signal {}, {}", by, ::strsignal(by)), by);
  }

  void look_for_silence() {
    const auto now = Clock::now();
    const auto passed = std::min<Clock::duration>(now - last_look_, std::chrono::seconds(2));
    last_look_ = now;
    const uint64_t beats = pulse->beats.load(std::memory_order_relaxed);
    silent_ = beats == beats_ ? silent_ + passed : Clock::duration{};
    beats_ = beats;
    alone_ = pulse->joined.load(std::memory_order_relaxed) ? Clock::duration{} : alone_ + passed;
    if (silent_ >= silence_) {
      give_up(fmt::format("has not answered for {} seconds, {}", silence_.count(), state_of(child_)));
    } else if (alone_ >= 2 * silence_) {
      give_up(fmt::format("has waited {} seconds for the others to start", 2 * silence_.count()));
    }
  }
  [[noreturn]] void give_up(std::string_view what) const {
    ::kill(child_, SIGKILL);
    // Its sockets are closed before the launcher sees this process end. One that waits for a device may not
    // go.
    for (int i = 0; i < 200 && ::waitpid(child_, nullptr, WNOHANG) == 0; ++i) ::usleep(10'000);
    end(what, SIGKILL);
  }

  const Launched self_;
  const pid_t child_;
  const std::chrono::seconds silence_;  // 0: nobody watches
  uint64_t beats_ = 0;
  Clock::time_point last_look_ = Clock::now();
  Clock::duration silent_{}, alone_{};
};

}  // namespace

std::optional<Launched> launched() {
  // Hydra and Slurm (PMI), Open MPI, PMIx.
  constexpr std::array<std::array<const char*, 2>, 3> kVariables = {
      {{"PMI_RANK", "PMI_SIZE"},
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
       {"PMIX_RANK", "PMIX_SIZE"}}};
  for (const auto& [rank, size] : kVariables) {
    const std::optional<int> r = number(rank), s = number(size);
    if (r && s && *r < *s) return Launched{*r, *s};
  }
  return std::nullopt;
}

Result<std::string> find_mpi_module() {
  if (const std::string given = variable("LIGNUM_MPI_MODULE"); !given.empty()) {
    if (is_file(given)) return given;
    return user_error("comm=mpi: LIGNUM_MPI_MODULE={}: no such file: correct or unset the variable", given);
  }
  const fs::path own = (folder_of_binary() / "../lib/liblignum_mpi.so").lexically_normal();
  if (is_file(own)) return own.string();
  return user_error("comm=mpi: no MPI module; tried: LIGNUM_MPI_MODULE (not set), {}: {}", own.string(),
                    kFix);
}

Status start_ranks(int ranks) {
  LIGNUM_RETURN_IF_ERROR(find_mpi_module().status());
  LIGNUM_ASSIGN_OR_RETURN(const std::string mpiexec, find_mpiexec());
  std::vector<std::string> words = command_line();
  if (words.empty()) return internal_error("/proc/self/cmdline cannot be read");
  std::error_code error;
  words[0] = fs::read_symlink("/proc/self/exe", error).string();
  words.insert(words.begin(), {mpiexec, "-n", std::to_string(ranks)});
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  ::execv(mpiexec.c_str(), argv.data());
  return user_error("{}: cannot be started: {}", mpiexec, std::strerror(errno));
}

Result<int> heartbeat_seconds() {
  constexpr const char* kName = "LIGNUM_HEARTBEAT_SECONDS";
  if (std::getenv(kName) == nullptr) return 15;
  const std::optional<int> seconds = number(kName);
  if (seconds && (*seconds == 0 || (*seconds >= 2 && *seconds <= 86400))) return *seconds;
  return user_error("{}={}: 2 to 86400 seconds, or 0 for no watch; correct or unset the variable", kName,
                    variable(kName));
}

void guard_rank(const Launched& self, int silence) {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD})
    sigaddset(&signals, s);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  pulse = shared_pulse();
  const pid_t guard = ::getpid();
  const pid_t child = ::fork();
  if (child > 0) Guard(self, child, silence).watch(signals);
  // Also where the system gives no process: the rank then runs unguarded, and its launcher says what it says.
  if (child == 0) {
    // A group of its own: what is sent to the guard's whole group would otherwise come twice.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != guard) ::_exit(128 + SIGKILL);
    // It begins with all signals blocked: they are the main thread's.
    if (pulse != nullptr) std::thread(beat).detach();
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

void rank_has_joined() {
  if (pulse != nullptr) pulse->joined.store(true, std::memory_order_relaxed);
}

}  // namespace lignum::comm
