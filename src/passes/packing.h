// Where the buffers of one graph lie: those that live at once apart, in as little as possible.
#pragma once

#include <cstdint>
#include <span>

#include "passes/memory.h"

namespace lignum::passes {

// What each allocation's base is a multiple of: a cache line. Two tensors never share one, so that ranks'
// threads never do either, and every element lies as its type asks.
inline constexpr int64_t kAlign = 64;
inline int64_t aligned(int64_t n, int64_t to = kAlign) { return (n + to - 1) / to * to; }

// Gives each allocation its base, from 0, and returns the size of all. Largest first, or by bytes times life,
// whichever takes less, each at the lowest offset that is free during its life. A stack that a reversed loop
// writes goes over one that the loop reads: row i is written when rows i + 1 and up of the other have been
// read.
int64_t pack(std::span<Allocation* const> allocations);

// Bytes that two allocations have in common.
int64_t shared_bytes(const Allocation& a, const Allocation& b);

}  // namespace lignum::passes
