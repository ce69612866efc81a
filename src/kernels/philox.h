// Philox4x32-10 (base/rng.h) for loops that the compiler vectorises. Internal; always inlined (isa.h).
#pragma once

#include <cstdint>

#include "kernels/unroll.h"

namespace lignum::kernels {

constexpr int kNoiseGroups = 16;
constexpr int kNoiseWords = 4 * kNoiseGroups;

// words[4 g + w] = word w of philox4x32({group + g, as two words, row, 0}, key).
LIGNUM_INLINE void noise_words(uint64_t group, uint32_t row, uint64_t key, uint32_t (&words)[kNoiseWords]) {
  uint32_t c0[kNoiseGroups], c1[kNoiseGroups], c2[kNoiseGroups], c3[kNoiseGroups];
  for (int g = 0; g < kNoiseGroups; ++g) {
    const uint64_t counter = group + static_cast<uint64_t>(g);
    c0[g] = static_cast<uint32_t>(counter);
    c1[g] = static_cast<uint32_t>(counter >> 32);
    c2[g] = row;
    c3[g] = 0;
  }
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int g = 0; g < kNoiseGroups; ++g) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[g], p1 = uint64_t{0xCD9E8D57u} * c2[g];
      c0[g] = static_cast<uint32_t>(p1 >> 32) ^ c1[g] ^ k0;
      c1[g] = static_cast<uint32_t>(p1);
      c2[g] = static_cast<uint32_t>(p0 >> 32) ^ c3[g] ^ k1;
      c3[g] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int g = 0; g < kNoiseGroups; ++g) {
    words[4 * g] = c0[g];
    words[4 * g + 1] = c1[g];
    words[4 * g + 2] = c2[g];
    words[4 * g + 3] = c3[g];
  }
}

}  // namespace lignum::kernels
