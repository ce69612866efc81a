#include "comm/mpi_launch.h"

#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
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

// The guard's own life: every signal that it may get is blocked and taken here.
[[noreturn]] void watch(const Launched& self, pid_t child, const sigset_t& signals) {
  while (true) {
    int signal = 0;
    if (::sigwait(&signals, &signal) != 0) continue;
    if (signal != SIGCHLD) {
      ::kill(child, signal);
      continue;
    }
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) != child) continue;
    if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
    if (!WIFSIGNALED(status)) continue;
    const int by = WTERMSIG(status);
    const std::string text = fmt::format(
        "lignum: rank {} of {} (process {}) was ended by signal {}, {}: this ends the run. Checkpoints are "
        "whole; the same "
        "command goes on from the newest\n",
        self.rank, self.size, child, by, ::strsignal(by));
    // A launcher that has gone does not read it.
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
    ::_exit(128 + by);
  }
}

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

void guard_rank(const Launched& self) {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGCHLD})
    sigaddset(&signals, s);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t guard = ::getpid();
  const pid_t child = ::fork();
  if (child > 0) watch(self, child, signals);
  // Also where the system gives no process: the rank then runs unguarded, and its launcher says what it says.
  if (child == 0) {
    // A group of its own: what is sent to the guard's whole group would otherwise come twice.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != guard) ::_exit(128 + SIGKILL);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace lignum::comm
