// Which instruction set a kernel runs on. The choice is made once a run, is saved with it and is part of what
// fixes its bits; it never depends on the thread count.
//
// How a kernel is laid out: kernel.cc holds the entry point and calls through a table of plain function
// pointers, one table an ISA, filled in kernel_scalar.cc, kernel_avx2.cc and kernel_avx512.cc (the build
// gives *_avx2.cc and
// *_avx512.cc their flags). Those files must not emit a function that another file also emits (a std:: or fmt
// template, FunctionRef, an inline member of base): the linker keeps one copy for the whole program, and if
// it is the AVX-512 one an older CPU dies of an illegal instruction. So they use no std containers, no
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

// The kernel choices of a run.
struct Choice {
  Isa isa = Isa::scalar;
  friend bool operator==(const Choice&, const Choice&) = default;
};

// The wanted ISA, or the best one; a user error that lists what this machine has if it lacks the wanted one.
Result<Choice> choose(std::optional<Isa> wanted);

}  // namespace lignum::kernels
