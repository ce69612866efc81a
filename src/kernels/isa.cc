#include "kernels/isa.h"

#include <array>
#include <string>

namespace lignum::kernels {
namespace {

struct Entry {
  Isa isa;
  std::string_view name;
  const char* (*refusal)();
};

// __builtin_cpu_supports looks at CPUID and, for AVX state, at what the operating system saves (XGETBV).
#if defined(__x86_64__)
const char* refuse_avx2() {
  if (!__builtin_cpu_supports("avx2")) return "the CPU or the operating system has no AVX2";
  if (!__builtin_cpu_supports("fma")) return "the CPU has no FMA";
  return nullptr;
}
const char* refuse_avx512() {
  if (!__builtin_cpu_supports("avx512f")) return "the CPU or the operating system has no AVX-512";
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return "the CPU has AVX-512 F but not BW, DQ and VL";
  }
  return refuse_avx2();
}
#else
const char* refuse_avx2() { return "not an x86-64 CPU"; }
const char* refuse_avx512() { return "not an x86-64 CPU"; }
#endif
const char* refuse_none() { return nullptr; }

// Best first.
constexpr std::array<Entry, 3> kIsas = {{{Isa::avx512, "avx512", refuse_avx512},
                                         {Isa::avx2, "avx2", refuse_avx2},
                                         {Isa::scalar, "scalar", refuse_none}}};

const Entry& entry(Isa isa) {
  for (const Entry& e : kIsas) {
    if (e.isa == isa) return e;
  }
  LIGNUM_CHECK(false, "isa {}", static_cast<int>(isa));
  __builtin_unreachable();
}

}  // namespace

std::string_view isa_name(Isa isa) { return entry(isa).name; }

std::optional<Isa> isa_from_name(std::string_view name) {
  for (const Entry& e : kIsas) {
    if (e.name == name) return e.isa;
  }
  return std::nullopt;
}

const char* isa_refusal(Isa isa) { return entry(isa).refusal(); }

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Entry& e : kIsas) {
    if (e.refusal() == nullptr) isas.push_back(e.isa);
  }
  return isas;
}

Isa best_isa() { return available_isas().front(); }

Result<Choice> choose(std::optional<Isa> wanted, std::optional<Bf16Dot> dot) {
  Choice choice{best_isa()};
  if (wanted) {
    if (const char* reason = isa_refusal(*wanted)) {
      std::string have;
      for (Isa isa : available_isas()) have += (have.empty() ? "" : ", ") + std::string(isa_name(isa));
      return user_error("isa={}: {}; this machine has {}: name one of these or leave the key out",
                        isa_name(*wanted), reason, have);
    }
    choice.isa = *wanted;
  }
  if (dot) {
    if (const char* reason = bf16_dot_refusal(*dot, choice.isa)) {
      std::string have;
      for (Bf16Dot d : available_bf16_dots(choice.isa)) {
        have += (have.empty() ? "" : ", ") + std::string(bf16_dot_name(d));
      }
      return user_error(
          "bf16_dot={}: {}; with isa={} this machine has {}: name one of these or leave the key out",
          bf16_dot_name(*dot), reason, isa_name(choice.isa), have);
    }
    choice.bf16_dot = *dot;
  }
  return choice;
}

}  // namespace lignum::kernels
