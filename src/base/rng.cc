#include "base/rng.h"

#include <cmath>

namespace lignum {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

Random::Random(uint64_t seed, std::string_view stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {
  for (const char ch : stream)
    stream_ = (stream_ ^ static_cast<unsigned char>(ch)) * 1099511628211ull;  // FNV-1a
}

uint64_t Random::bits(uint64_t index) const {
  const auto r = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                             static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                            key_);
  return (uint64_t{r[1]} << 32) | r[0];
}

double Random::uniform(uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1p-53; }

double Random::normal(uint64_t index) const {
  const auto r = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                             static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                            key_);
  const double u = (static_cast<double>((uint64_t{r[1]} << 32 | r[0]) >> 11) + 1.0) * 0x1p-53;  // (0, 1]
  const double v = static_cast<double>((uint64_t{r[3]} << 32 | r[2]) >> 11) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
}

uint64_t Random::below(uint64_t index, uint64_t bound) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

}  // namespace lignum
