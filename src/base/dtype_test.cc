#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lignum {
namespace {

// Every 8-bit code survives the way to float and back; NaN codes stay NaN.
TEST(DType, EightBitCodesRoundTrip) {
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    const float a = f8e4m3fn_to_float(code);
    if (std::isnan(a)) {
      EXPECT_EQ(c & 0x7f, 0x7f);
    } else {
      EXPECT_EQ(f8e4m3fn_from_float(a), code) << a;
    }
    const float b = f8e5m2_to_float(code);
    if (std::isfinite(b)) {
      EXPECT_EQ(f8e5m2_from_float(b), code) << b;
    }
  }
  EXPECT_EQ(f8e4m3fn_to_float(0x7e), 448.0f);
  EXPECT_EQ(f8e5m2_to_float(0x7b), 57344.0f);
  EXPECT_EQ(f8e4m3fn_to_float(0x01), std::ldexp(1.0f, -9));
}

TEST(DType, EightBitSaturatesAndRoundsHalfToEven) {
  EXPECT_EQ(f8e4m3fn_from_float(1e9f), 0x7e);
  EXPECT_EQ(f8e4m3fn_from_float(-INFINITY), 0xfe);
  EXPECT_EQ(f8e4m3fn_from_float(464.0f), 0x7e);
  EXPECT_EQ(f8e4m3fn_to_float(f8e4m3fn_from_float(17.0f)), 16.0f);  // between 16 and 18: even mantissa
  EXPECT_EQ(f8e4m3fn_to_float(f8e4m3fn_from_float(19.0f)), 20.0f);
  EXPECT_TRUE(std::isnan(f8e4m3fn_to_float(f8e4m3fn_from_float(NAN))));
  EXPECT_TRUE(std::isnan(f8e5m2_to_float(f8e5m2_from_float(NAN))));
}

TEST(DType, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(static_cast<float>(bf16(1.00390625f)), 1.0f);       // half way: even
  EXPECT_EQ(static_cast<float>(bf16(1.01171875f)), 1.015625f);  // half way: up to even
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(static_cast<float>(bf16(3.4e38f))));
}

TEST(DType, DoubleToBf16RoundsOnce) {
  // 1 + 2^-8 + 2^-40 is above the half way point; through float it would land on it and go down.
  uint16_t bits = 0;
  store_from_double(DType::bf16, &bits, 0, 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40));
  EXPECT_EQ(load_as_double(DType::bf16, &bits, 0), 1.0078125);
}

}  // namespace
}  // namespace lignum
