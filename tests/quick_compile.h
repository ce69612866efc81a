// XLA's CPU compiler without LLVM's effort: tests look at what a program computes, and compiling would be
// most of their time.
#pragma once

#include "pjrt/reader.h"

namespace lignum {

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): a test that has no memory for it may end
inline const pjrt::Overrides kQuickCompile = {{"xla_backend_optimization_level", int64_t{0}},
                                              {"xla_llvm_disable_expensive_passes", true}};

}  // namespace lignum
