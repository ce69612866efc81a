// Element types and their conversions, bit-exact: round to nearest even; NaN kept. E4M3 (the "FN" form: no
// infinity, one NaN a sign, largest 448) and E5M2 (IEEE-like, largest 57344) follow the OCP 8-bit floating
// point specification 1.0.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lignum {

enum class DType : uint8_t { f32, f64, bf16, f8e4m3fn, f8e5m2, i32, u32, i64, u8, pred };

int64_t dtype_size(DType);           // bytes of one element
std::string_view dtype_name(DType);  // "f32", "bf16", "f8e4m3fn", ...
std::optional<DType> dtype_from_name(std::string_view);
bool dtype_is_float(DType);
// The 8-bit formats, and the largest finite value of each.
inline bool is_float8(DType d) { return d == DType::f8e4m3fn || d == DType::f8e5m2; }
inline double float8_largest(DType d) { return d == DType::f8e4m3fn ? 448 : 57344; }

struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float x) {
    uint32_t u = std::bit_cast<uint32_t>(x);
    // NaN first: rounding could carry its mantissa into an infinity.
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  friend bool operator==(bf16, bf16) = default;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return static_cast<float>(x); }
template <class T>
T from_float(float x) {
  return T(x);
}

// One element <-> its bits in the 8-bit formats. from: saturates (what Qwix's clip-then-cast gives); NaN
// stays NaN.
uint8_t f8e4m3fn_from_float(float);
uint8_t f8e5m2_from_float(float);
float f8e4m3fn_to_float(uint8_t);
float f8e5m2_to_float(uint8_t);

// Element i of a buffer of the given dtype as double, and back (rounded to nearest even). For references and
// tests.
double load_as_double(DType, const void* data, int64_t i);
void store_from_double(DType, void* data, int64_t i, double value);

}  // namespace lignum
