#include "base/dtype.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/status.h"

namespace lignum {
namespace {

struct Info {
  DType dtype;
  std::string_view name;
  int64_t size;
  bool is_float;
};
constexpr std::array<Info, 10> kInfo = {{{DType::f32, "f32", 4, true},
                                         {DType::f64, "f64", 8, true},
                                         {DType::bf16, "bf16", 2, true},
                                         {DType::f8e4m3fn, "f8e4m3fn", 1, true},
                                         {DType::f8e5m2, "f8e5m2", 1, true},
                                         {DType::i32, "i32", 4, false},
                                         {DType::u32, "u32", 4, false},
                                         {DType::i64, "i64", 8, false},
                                         {DType::u8, "u8", 1, false},
                                         {DType::pred, "pred", 1, false}}};

// An 8-bit float with `mantissa` bits and exponent bias `bias`; `largest` is its largest finite code.
uint8_t encode8(float x, int mantissa, int bias, uint8_t largest, uint8_t nan) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  if (std::isnan(x)) return sign | nan;
  const float a = std::fabs(x);
  if (std::isinf(x)) return sign | largest;
  if (a == 0.0f) return sign;
  int e = 0;
  std::frexp(a, &e);                               // a = f * 2^e, f in [0.5, 1)
  const int exponent = std::max(e - 1, 1 - bias);  // subnormals share the smallest exponent
  const double grid = std::ldexp(1.0, exponent - mantissa);
  const auto steps =
      static_cast<int64_t>(std::nearbyint(static_cast<double>(a) / grid));  // half to even, exact
  // In units of the grid, a normal number of this exponent is 2^mantissa + fraction; a carry bumps the
  // exponent field.
  const int64_t code = (static_cast<int64_t>(exponent + bias - 1) << mantissa) + steps;
  return sign | static_cast<uint8_t>(std::min<int64_t>(code, largest));
}

float decode8(uint8_t code, int mantissa, int bias) {
  const int field = (code & 0x7f) >> mantissa;
  const int fraction = code & ((1 << mantissa) - 1);
  const float a = field == 0
                      ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa)
                      : std::ldexp(static_cast<float>((1 << mantissa) + fraction), field - bias - mantissa);
  return (code & 0x80) ? -a : a;
}

const Info& info(DType d) { return kInfo[static_cast<size_t>(d)]; }

template <class T>
T at(const void* data, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}
template <class T>
void put(void* data, int64_t i, T v) {
  std::memcpy(static_cast<char*>(data) + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

// double -> float -> bf16 would round twice: nudge the float to odd when it is inexact, then the second
// rounding is right.
float to_odd_float(double v) {
  const float f = static_cast<float>(v);
  if (static_cast<double>(f) == v || std::isnan(v) || std::isinf(f)) return f;
  uint32_t u = std::bit_cast<uint32_t>(f);
  if (std::fabs(static_cast<double>(f)) > std::fabs(v)) u -= 1;  // truncated towards zero
  return std::bit_cast<float>(u | 1u);
}

}  // namespace

int64_t dtype_size(DType d) { return info(d).size; }
std::string_view dtype_name(DType d) { return info(d).name; }
bool dtype_is_float(DType d) { return info(d).is_float; }
std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Info& i : kInfo)
    if (i.name == name) return i.dtype;
  return std::nullopt;
}

uint8_t f8e4m3fn_from_float(float x) { return encode8(x, 3, 7, 0x7e, 0x7f); }
uint8_t f8e5m2_from_float(float x) { return encode8(x, 2, 15, 0x7b, 0x7f); }
float f8e4m3fn_to_float(uint8_t b) {
  return (b & 0x7f) == 0x7f ? std::copysign(NAN, (b & 0x80) ? -1.0f : 1.0f) : decode8(b, 3, 7);
}
float f8e5m2_to_float(uint8_t b) {
  if ((b & 0x7c) == 0x7c) return std::copysign((b & 3) ? NAN : INFINITY, (b & 0x80) ? -1.0f : 1.0f);
  return decode8(b, 2, 15);
}

double load_as_double(DType d, const void* data, int64_t i) {
  switch (d) {
    case DType::f32:
      return at<float>(data, i);
    case DType::f64:
      return at<double>(data, i);
    case DType::bf16:
      return static_cast<float>(at<bf16>(data, i));
    case DType::f8e4m3fn:
      return f8e4m3fn_to_float(at<uint8_t>(data, i));
    case DType::f8e5m2:
      return f8e5m2_to_float(at<uint8_t>(data, i));
    case DType::i32:
      return at<int32_t>(data, i);
    case DType::u32:
      return at<uint32_t>(data, i);
    case DType::i64:
      return static_cast<double>(at<int64_t>(data, i));
    case DType::u8:
    case DType::pred:
      return at<uint8_t>(data, i);
  }
  LIGNUM_CHECK(false, "dtype {}", static_cast<int>(d));
}

void store_from_double(DType d, void* data, int64_t i, double v) {
  switch (d) {
    case DType::f32:
      return put(data, i, static_cast<float>(v));
    case DType::f64:
      return put(data, i, v);
    case DType::bf16:
      return put(data, i, bf16(to_odd_float(v)));
    case DType::f8e4m3fn:
      return put(data, i, f8e4m3fn_from_float(to_odd_float(v)));
    case DType::f8e5m2:
      return put(data, i, f8e5m2_from_float(to_odd_float(v)));
    case DType::i32:
      return put(data, i, static_cast<int32_t>(v));
    case DType::u32:
      return put(data, i, static_cast<uint32_t>(v));
    case DType::i64:
      return put(data, i, static_cast<int64_t>(v));
    case DType::u8:
      return put(data, i, static_cast<uint8_t>(v));
    case DType::pred:
      return put(data, i, static_cast<uint8_t>(v != 0));
  }
  LIGNUM_CHECK(false, "dtype {}", static_cast<int>(d));
}

}  // namespace lignum
