// IEEE's binary16, which files have and Lignum does not compute in.
#pragma once

#include <bit>
#include <cstdint>

namespace lignum {

inline float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t widened = exponent == 31 ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

}  // namespace lignum
