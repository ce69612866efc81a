#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "kernels/gemm.h"
#include "kernels/isa.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lignum::kernels {
namespace {

struct Entry {
  Bf16Dot dot;
  std::string_view name;
  const char* (*refusal)();
};

const char* refuse_none() { return nullptr; }

#ifdef __x86_64__
// CPUID bits: Intel's manual, volume 2A, CPUID.(EAX=07H): ECX=1 EAX[5] AVX512_BF16, ECX=0 EDX[22] AMX-BF16
// and EDX[24] AMX-TILE.
bool has_bit(unsigned leaf, unsigned sub_leaf, unsigned(registers)[4], int which, int bit) {
  return __get_cpuid_count(leaf, sub_leaf, &registers[0], &registers[1], &registers[2], &registers[3]) != 0 &&
         (registers[which] >> bit & 1U) != 0;
}

const char* refuse_vdpbf16ps() {
  unsigned r[4] = {};
  return has_bit(7, 1, r, 0, 5) ? nullptr : "the CPU has no AVX512_BF16";
}

// Tiles are state that Linux gives a process on demand (5.16 and later): asked for once, for all its threads.
const char* ask_for_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  if (::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return nullptr;
  return "the operating system gives no permission to use AMX tiles";
#else
  return "AMX tiles are asked for on Linux only";
#endif
}

const char* refuse_amx() {
  static const char* const refusal = [] {
    unsigned r[4] = {};
    if (!has_bit(7, 0, r, 3, 24) || !has_bit(7, 0, r, 3, 22)) return "the CPU has no AMX-TILE and AMX-BF16";
    if (const char* reason = refuse_vdpbf16ps()) return reason;
    return ask_for_tiles();
  }();
  return refusal;
}
// CPUID.(EAX=07H, ECX=0): EDX[23] AVX512_FP16, ECX[6] AVX512_VBMI2.
const char* refuse_fp16() {
  unsigned r[4] = {};
  if (!has_bit(7, 0, r, 3, 23)) return "the CPU has no AVX512-FP16";
  return has_bit(7, 0, r, 2, 6) ? nullptr : "the CPU has no AVX512_VBMI2";
}
#else
const char* refuse_fp16() { return "not an x86-64 CPU"; }
const char* refuse_vdpbf16ps() { return "not an x86-64 CPU"; }
const char* refuse_amx() { return "not an x86-64 CPU"; }
#endif

constexpr Entry kDots[] = {{Bf16Dot::fma, "fma", refuse_none},
                           {Bf16Dot::vdpbf16ps, "vdpbf16ps", refuse_vdpbf16ps},
                           {Bf16Dot::amx, "amx", refuse_amx}};

const Entry& entry(Bf16Dot dot) {
  for (const Entry& e : kDots) {
    if (e.dot == dot) return e;
  }
  LIGNUM_CHECK(false, "bf16 dot {}", static_cast<int>(dot));
  __builtin_unreachable();
}

}  // namespace

std::string_view bf16_dot_name(Bf16Dot dot) { return entry(dot).name; }

std::optional<Bf16Dot> bf16_dot_from_name(std::string_view name) {
  for (const Entry& e : kDots) {
    if (e.name == name) return e.dot;
  }
  return std::nullopt;
}

const char* bf16_dot_refusal(Bf16Dot dot, Isa isa) {
  if (dot != Bf16Dot::fma && isa != Isa::avx512) return "it goes with the kernels of isa=avx512 only";
  return entry(dot).refusal();
}

std::vector<Bf16Dot> available_bf16_dots(Isa isa) {
  std::vector<Bf16Dot> dots;
  for (const Entry& e : kDots) {
    if (bf16_dot_refusal(e.dot, isa) == nullptr) dots.push_back(e.dot);
  }
  return dots;
}

std::string_view fp8_accumulation_name(Fp8Accumulation a) {
  return a == Fp8Accumulation::fp32 ? "fp32" : "fp16_64";
}

std::optional<Fp8Accumulation> fp8_accumulation_from_name(std::string_view name) {
  for (const Fp8Accumulation a : {Fp8Accumulation::fp32, Fp8Accumulation::fp16_64})
    if (fp8_accumulation_name(a) == name) return a;
  return std::nullopt;
}

const char* fp8_accumulation_refusal(Fp8Accumulation a, Isa isa) {
  if (a == Fp8Accumulation::fp32) return nullptr;
  if (isa != Isa::avx512) return "it goes with the kernels of isa=avx512 only";
  return refuse_fp16();
}

Bf16Dot fastest_bf16_dot(const std::vector<Bf16Rate>& rates) {
  LIGNUM_CHECK(!rates.empty(), "no rate of any way");
  constexpr double kTie = 1.1;
  std::vector<Bf16Rate> sorted = rates;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Bf16Rate& a, const Bf16Rate& b) { return a.dot < b.dot; });
  Bf16Rate best = sorted.front();
  for (const Bf16Rate& r : sorted) {
    if (r.flops > kTie * best.flops) best = r;
  }
  return best.dot;
}

std::vector<Bf16Rate> probe_bf16_dots(Isa isa) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSize = 256;
  constexpr int kRepeats = 5;
  Gemm g{.m = kSize, .n = kSize, .k = kSize, .lda = kSize, .ldb = kSize, .ldc = kSize};
  g.trans_b = true;
  g.a = g.b = g.c = DType::bf16;
  const std::vector<bf16> a(kSize * kSize, bf16(1.5F)), b(kSize * kSize, bf16(0.75F));
  std::vector<bf16> c(kSize * kSize);
  const auto free_memory = [](void* p) { std::free(p); };
  const std::unique_ptr<void, decltype(free_memory)> workspace(
      std::aligned_alloc(64, static_cast<size_t>(gemm_workspace(g, 1))), free_memory);
  const std::vector<Bf16Dot> dots = available_bf16_dots(isa);
  std::vector<Bf16Rate> rates;
  for (const Bf16Dot dot : dots) rates.push_back({dot, 0});
  if (rates.size() == 1) return rates;  // nothing to compare
  // In turn, and one round more than counts, which brings memory and clock up.
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    for (Bf16Rate& r : rates) {
      const Clock::time_point start = Clock::now();
      gemm_serial({isa, r.dot}, g, a.data(), b.data(), c.data(), workspace.get());
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (repeat > 0) r.flops = std::max(r.flops, 2.0 * kSize * kSize * kSize / seconds);
    }
  }
  return rates;
}

}  // namespace lignum::kernels
