// Integers rounded up, for sizes and offsets. Not for the ISAs' own files: what those do not inline is shared
// by name.
#pragma once

#include <cstdint>

namespace lignum {

// a >= 0, unit > 0, and the result fits.
constexpr int64_t ceil_div(int64_t a, int64_t unit) { return (a + unit - 1) / unit; }
constexpr int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

}  // namespace lignum
