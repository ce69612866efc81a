#include "train/kernel_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "hw/cpu_spec_builder.h"

namespace lignum::train {
namespace {

using kernels::Bf16Dot;

bool has_bf16_dots(const config::Config& config) { return config.text("dtype") == "bfloat16"; }

// Of the ways that this machine has; nothing where one of them was not measured, or not here.
std::optional<std::vector<kernels::Bf16Rate>> calibrated_rates(const hw::Spec* spec, kernels::Isa isa) {
  if (spec == nullptr || !spec->is_cpu()) return std::nullopt;
  if (spec->machine().isa != kernels::isa_name(isa)) return std::nullopt;
  if (spec->machine().cpu != hw::this_machine("", "").cpu) return std::nullopt;
  const std::vector<hw::DotRate> measured = spec->curves().dot_rates(DType::bf16);
  std::vector<kernels::Bf16Rate> rates;
  for (const Bf16Dot dot : kernels::available_bf16_dots(isa)) {
    const auto it = std::find_if(measured.begin(), measured.end(),
                                 [&](const hw::DotRate& r) { return r.way == kernels::bf16_dot_name(dot); });
    if (it == measured.end()) return std::nullopt;
    rates.push_back({dot, it->flops});
  }
  return rates;
}

std::string rates_text(const std::vector<kernels::Bf16Rate>& rates) {
  std::string text;
  for (const kernels::Bf16Rate& r : rates) {
    text +=
        fmt::format("{}{} {:.0f}", text.empty() ? "" : ", ", kernels::bf16_dot_name(r.dot), r.flops * 1e-9);
  }
  return text + " GFLOP/s";
}

}  // namespace

Result<KernelChoice> choose_kernels(const config::Config& config, const hw::Spec* spec) {
  KernelChoice k;
  const std::optional<Bf16Dot> wanted = kernels::bf16_dot_from_name(config.text("bf16_dot"));
  LIGNUM_ASSIGN_OR_RETURN(k.choice, kernels::choose(kernels::isa_from_name(config.text("isa")), wanted));
  const auto sums = kernels::fp8_accumulation_from_name(config.text("fp8_accumulation"));
  LIGNUM_CHECK(sums, "fp8_accumulation={}", config.text("fp8_accumulation"));
  if (const char* why = kernels::fp8_accumulation_refusal(*sums, k.choice.isa))
    return user_error("fp8_accumulation={}: {}; set fp32", config.text("fp8_accumulation"), why);
  k.choice.fp8_accumulation = *sums;
  if (!has_bf16_dots(config)) return k;
  if (wanted) {
    k.why = fmt::format("bf16_dot={}", kernels::bf16_dot_name(*wanted));
  } else if (kernels::available_bf16_dots(k.choice.isa).size() == 1) {
    k.why = "this machine has no other";
  } else if (const auto rates = calibrated_rates(spec, k.choice.isa)) {
    k.choice.bf16_dot = kernels::fastest_bf16_dot(*rates);
    k.why = "calibrated: " + rates_text(*rates);
  } else {
    const std::vector<kernels::Bf16Rate> probed = kernels::probe_bf16_dots(k.choice.isa);
    k.choice.bf16_dot = kernels::fastest_bf16_dot(probed);
    k.why = "probed: " + rates_text(probed) + " a core";
  }
  return k;
}

std::string describe(const KernelChoice& k) {
  std::string text = fmt::format("{} kernels", kernels::isa_name(k.choice.isa));
  if (!k.why.empty())
    text += fmt::format(", bf16 dots by {} ({})", kernels::bf16_dot_name(k.choice.bf16_dot), k.why);
  if (k.choice.fp8_accumulation != kernels::Fp8Accumulation::fp32)
    text += fmt::format(", 8-bit dots by {}", kernels::fp8_accumulation_name(k.choice.fp8_accumulation));
  return text;
}

AdoptedKernels adopt_kernels(const config::Config& config, const std::string& saved_isa,
                             const std::string& saved_bf16_dot, const KernelChoice& chosen) {
  AdoptedKernels a{chosen, {}};
  kernels::Choice& now = a.kernels.choice;
  if (saved_isa != kernels::isa_name(now.isa)) {
    const auto saved = kernels::isa_from_name(saved_isa);
    if (config.text("isa") == "auto" && saved && kernels::isa_refusal(*saved) == nullptr) {
      now.isa = *saved;
      if (kernels::bf16_dot_refusal(now.bf16_dot, now.isa) != nullptr) now.bf16_dot = Bf16Dot::fma;
    } else {
      a.differs.push_back(
          fmt::format("written with {} kernels, now {}", saved_isa, kernels::isa_name(now.isa)));
    }
  }
  if (!has_bf16_dots(config) || saved_bf16_dot == kernels::bf16_dot_name(now.bf16_dot)) return a;
  const auto saved = kernels::bf16_dot_from_name(saved_bf16_dot);
  if (config.text("bf16_dot") == "auto" && saved && kernels::bf16_dot_refusal(*saved, now.isa) == nullptr) {
    now.bf16_dot = *saved;
    a.kernels.why = "as the checkpoint has it";
  } else {
    a.differs.push_back(fmt::format("written with bf16 dots by {}, now by {}", saved_bf16_dot,
                                    kernels::bf16_dot_name(now.bf16_dot)));
  }
  return a;
}

}  // namespace lignum::train
