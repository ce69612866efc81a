// For benches: what the cores give at this moment in fused multiply-adds in registers. On a shared machine a
// rate means something only as a share of the rate seen beside it.
#pragma once

#include <immintrin.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "kernels/isa.h"

namespace lignum::kernels {

// Independent chains, about a millisecond; returns floating-point operations.
constexpr int64_t kProbeSteps = 400000;
[[gnu::target("avx512f"), gnu::noinline]] inline double probe_avx512() {
  __m512 s[16];
  for (auto& x : s) x = _mm512_set1_ps(1.0f);
  __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t i = 0; i < kProbeSteps; ++i) {
#pragma GCC unroll 16
    for (auto& x : s) x = _mm512_fmadd_ps(x, a, b);
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (auto& x : s) asm volatile("" : "+x"(x));
  return kProbeSteps * 16.0 * 16 * 2;
}
[[gnu::target("avx2,fma"), gnu::noinline]] inline double probe_avx2() {
  __m256 s[12];
  for (auto& x : s) x = _mm256_set1_ps(1.0f);
  __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t i = 0; i < kProbeSteps; ++i) {
#pragma GCC unroll 16
    for (auto& x : s) x = _mm256_fmadd_ps(x, a, b);
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (auto& x : s) asm volatile("" : "+x"(x));
  return kProbeSteps * 12.0 * 8 * 2;
}

// FLOP/s of all the pool's threads; isa avx2 or avx512.
inline double probe_fma(Isa isa, Parallel& pool) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  std::vector<double> flops(static_cast<size_t>(pool.threads()));
  pool.run(pool.threads(), [&](int64_t t, int) {
    flops[static_cast<size_t>(t)] = isa == Isa::avx512 ? probe_avx512() : probe_avx2();
  });
  double sum = 0;
  for (double f : flops) sum += f;
  return sum / std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace lignum::kernels
