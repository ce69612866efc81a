// Waiting for another thread: a short spin, for the partner that is about to come, then sleep in the kernel,
// for the core is often the partner's own (more threads than cores is normal).
#pragma once

#include <atomic>
#include <cstdint>

namespace lignum::comm {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Some 5 us of pauses on current x86 (a pause is 40 to 140 cycles): the order of a wake-up through the
// kernel, so at worst a wait costs twice what it must.
inline constexpr int kSpins = 200;

// Returns once word != value. Whoever changes the word calls notify on it.
inline void wait_while(const std::atomic<uint32_t>& word, uint32_t value) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    cpu_relax();
  }
  word.wait(value, std::memory_order_acquire);
}

}  // namespace lignum::comm
