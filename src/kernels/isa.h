// Which instruction set a kernel runs on. The choice is made once a run, is saved with it and is part of what
// fixes its bits; it never depends on the thread count.
//
// How a kernel is laid out: kernel.cc holds the entry point and calls through a table of plain function
// pointers, one table an ISA, filled in kernel_scalar.cc, kernel_avx2.cc and kernel_avx512.cc; a way of bf16
// dots beyond FMA has a table of its own in kernel_vdpbf16ps.cc and kernel_amx.cc (the build gives files with
// these suffixes their flags). Those files must not emit a function that another file also emits (a std:: or
// fmt template, FunctionRef, an inline member of base): the linker keeps one copy for the whole program, and
// if it is the AVX-512 one an older CPU dies of an illegal instruction. So they use no std containers, no
// std::min and no fmt, everything of theirs is in a namespace named after the ISA or is a template over a
// type of that namespace, and what is shared by header (math.h) is always_inline.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::kernels {

// scalar: any x86-64 or other CPU. avx2: AVX2, FMA, F16C. avx512: F, BW, DQ, VL and FMA (Skylake-SP and
// later).
enum class Isa { scalar, avx2, avx512 };

std::string_view isa_name(Isa);
std::optional<Isa> isa_from_name(std::string_view);

// nullptr if this machine (CPU and operating system) can run it, else the reason why not.
const char* isa_refusal(Isa);
std::vector<Isa> available_isas();  // best first; scalar is always last
Isa best_isa();

// How dots of two bf16 operands are taken (GEMM and attention). fma: widened to f32, on any ISA, with the
// same bits on each. vdpbf16ps: AVX512_BF16. amx: AMX-TILE and AMX-BF16. The last two need Isa::avx512,
// multiply pairs (kernels/gemm.h, kernels/attention.h state their bits) and take and give zeros for
// subnormals.
enum class Bf16Dot { fma, vdpbf16ps, amx };

std::string_view bf16_dot_name(Bf16Dot);
std::optional<Bf16Dot> bf16_dot_from_name(std::string_view);

// nullptr if this machine can take bf16 dots in this way beside kernels of that ISA, else the reason why not.
// The first question about amx asks the operating system for permission to use tiles, once for the process.
const char* bf16_dot_refusal(Bf16Dot, Isa);
std::vector<Bf16Dot> available_bf16_dots(Isa);  // fma is always first

// How GEMM sums products of two operands of 8-bit floats. fp32: as those of the same values in bf16, exactly.
// fp16_64: by fp16 FMA, twice the rate of fp32's, promoted to fp32 every 64 products (kernels/gemm.h); needs
// Isa::avx512, AVX512-FP16 and VBMI2.
enum class Fp8Accumulation { fp32, fp16_64 };

std::string_view fp8_accumulation_name(Fp8Accumulation);
std::optional<Fp8Accumulation> fp8_accumulation_from_name(std::string_view);
// nullptr if this machine can sum so beside kernels of that ISA, else the reason why not.
const char* fp8_accumulation_refusal(Fp8Accumulation, Isa);

// The kernel choices of a run.
struct Choice {
  Isa isa = Isa::scalar;
  Bf16Dot bf16_dot = Bf16Dot::fma;
  Fp8Accumulation fp8_accumulation = Fp8Accumulation::fp32;
  friend bool operator==(const Choice&, const Choice&) = default;
};

// The wanted ISA, or the best one, and the wanted way of bf16 dots, or fma (fastest_bf16_dot() finds a better
// one); a user error that lists what this machine has if it lacks a wanted one.
Result<Choice> choose(std::optional<Isa> wanted, std::optional<Bf16Dot> dot = std::nullopt);

// FLOP/s of a way.
struct Bf16Rate {
  Bf16Dot dot = Bf16Dot::fma;
  double flops = 0;
};
// The way of the highest rate; an earlier one of Bf16Dot keeps its place against one that is less than a
// tenth faster, so that two measurements of one machine agree. rates is not empty.
Bf16Dot fastest_bf16_dot(const std::vector<Bf16Rate>& rates);
// Rates of the available ways by a product of 256^3, each the best of a few: some 5 ms.
std::vector<Bf16Rate> probe_bf16_dots(Isa);

}  // namespace lignum::kernels
