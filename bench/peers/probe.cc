// The machine's fp32 FMA rate at this moment: independent chains in registers on each of N threads.
//   probe [THREADS] [SECONDS]   prints GFLOP/s, 2 a lane and FMA
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int kBytes = 64;
#else
constexpr int kBytes = 32;
#endif
using Vector = float __attribute__((vector_size(kBytes)));
constexpr int kLanes = kBytes / sizeof(float);
constexpr int kChains = 12;  // latency 4, two ports: 8 would do, and 12 accumulators fit 16 registers
constexpr int kBlock = 4096;

// FMAs done until `stop`; `sink` keeps them.
long run(const std::atomic<bool>& stop, float& sink) {
  Vector x[kChains], a{}, b{};
  for (auto& v : x) v = Vector{} + 1.0f;
  a += 0.999f;
  b += 0.001f;  // x stays at 1: neither overflow nor subnormals
  long blocks = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    for (int i = 0; i < kBlock; ++i) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; ++c) x[c] = x[c] * a + b;
    }
    ++blocks;
  }
  for (const auto& v : x) sink += v[0];
  return blocks * kBlock * kChains * kLanes;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.5;
  if (threads < 1 || !(seconds > 0)) return std::fprintf(stderr, "usage: probe [THREADS] [SECONDS]\n"), 2;
  std::atomic<bool> stop = false;
  std::vector<long> done(threads);
  std::vector<float> sinks(threads);
  std::vector<std::jthread> pool;
  const auto begin = std::chrono::steady_clock::now();
  for (int t = 0; t < threads; ++t) pool.emplace_back([&, t] { done[t] = run(stop, sinks[t]); });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  pool.clear();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  double total = 0;
  float kept = 0;
  for (int t = 0; t < threads; ++t) total += 2.0 * static_cast<double>(done[t]), kept += sinks[t];
  if (kept == 0) return 1;
  std::printf("%.1f\n", total / spent.count() * 1e-9);
}
