// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). A value is a function of (seed, stream, index) and of nothing else: not of threads,
// ranks or order.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lignum {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Random {
 public:
  // The stream of a name (a parameter's, say) under a seed.
  Random(uint64_t seed, std::string_view stream);
  uint64_t bits(uint64_t index) const;                   // 64 random bits
  double uniform(uint64_t index) const;                  // [0, 1), 53 bits
  double normal(uint64_t index) const;                   // mean 0, standard deviation 1 (Box-Muller)
  uint64_t below(uint64_t index, uint64_t bound) const;  // 0..bound-1; bound >= 1; bias below bound / 2^64

 private:
  std::array<uint32_t, 2> key_;
  uint64_t stream_ = 14695981039346656037ULL;  // FNV-1a's offset basis
};

}  // namespace lignum
