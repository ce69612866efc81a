// For register tiles: an array of vectors stays in registers only if every loop over it is unrolled and every
// function that takes it is inlined, whatever the optimisation level.
#pragma once

#define LIGNUM_INLINE [[gnu::always_inline]] static inline
#ifdef __clang__
#define LIGNUM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LIGNUM_UNROLL _Pragma("GCC unroll 16")
#endif
