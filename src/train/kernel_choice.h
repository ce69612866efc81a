// Which kernels a run uses, why, and what becomes of them on a resume.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "hw/spec.h"
#include "kernels/isa.h"

namespace lignum::train {

struct KernelChoice {
  kernels::Choice choice;
  std::string why;  // of bf16_dot; empty where no dot of the run is of bf16
};

// The keys isa and bf16_dot. bf16_dot=auto with dtype=bfloat16 takes the way whose products were fastest in
// `spec`, if that was calibrated on this CPU with these kernels and knows every way there is; else the
// fastest of a probe of some 5 ms. With dtype=float32 there is nothing to choose: fma.
Result<KernelChoice> choose_kernels(const config::Config& config, const hw::Spec* spec);

// "avx512 kernels", and "bf16 dots by amx (why)" where there are such dots.
std::string describe(const KernelChoice& k);

// A resumed run: what is auto follows the checkpoint where this machine can, the rest stays as chosen.
// `differs`: what the bits are no longer a continuation for, in words.
struct AdoptedKernels {
  KernelChoice kernels;
  std::vector<std::string> differs;
};
AdoptedKernels adopt_kernels(const config::Config& config, const std::string& saved_isa,
                             const std::string& saved_bf16_dot, const KernelChoice& chosen);

}  // namespace lignum::train
