#include "base/mapped_fault.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

#include "base/status.h"

namespace lignum {
namespace {

struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: the slot is free; written last, so that a handler sees whole entries
  std::atomic<uintptr_t> end{0};
  std::array<char, 512> path{};
};

std::array<Mapping, kNamedMappings> mappings;
std::mutex writers;
struct sigaction before;

// Only what a signal handler may do: no allocation, no locks.
void say(std::string_view text) {
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& m : mappings) {
    const uintptr_t begin = m.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= m.end.load(std::memory_order_relaxed)) continue;
    say("lignum: ");
    say(m.path.data());
    say(": another process shortened this file while it was being read. Put the whole file back and start "
        "again; to "
        "replace a file in use, write a new one and rename it\n");
    ::_exit(static_cast<int>(Code::user_error));
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else {
    // The default action, met when the faulting instruction runs again.
    ::sigaction(signal, &before, nullptr);
  }
}

}  // namespace

void name_mapping(const void* data, size_t size, const std::string& path) {
  const std::scoped_lock lock(writers);
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &before) == 0;
  }();
  if (!installed) return;
  for (Mapping& m : mappings) {
    if (m.begin.load(std::memory_order_relaxed) != 0) continue;
    const size_t length = std::min(path.size(), m.path.size() - 1);
    std::memcpy(m.path.data(), path.data(), length);
    m.path[length] = '\0';
    m.end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_relaxed);
    m.begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_release);
    return;
  }
}

void forget_mapping(const void* data) {
  const std::scoped_lock lock(writers);
  for (Mapping& m : mappings)
    if (m.begin.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(data)) m.begin.store(0);
}

}  // namespace lignum
