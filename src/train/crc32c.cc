#include "train/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace lignum::train {
namespace {

// Eight tables: a step takes eight bytes (Kounavis, Berry 2005, "slicing-by-8").
using Tables = std::array<std::array<uint32_t, 256>, 8>;
constexpr Tables make_tables() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? kReversedPolynomial : 0);
    t[0][i] = c;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
  return t;
}
constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static_assert(std::endian::native == std::endian::little, "eight bytes are taken as one number");
  uint32_t c = ~before;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    word ^= c;
    c = 0;
    for (size_t k = 0; k < 8; ++k) c ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; n > 0; --n, ++p) c = (c >> 8) ^ kTables[0][(c ^ static_cast<uint32_t>(*p)) & 0xff];
  return ~c;
}

}  // namespace lignum::train
