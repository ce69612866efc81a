#include "comm/collective.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace lignum::comm {
namespace {

std::vector<uint16_t> bf16_sum(const std::vector<std::vector<uint16_t>>& parts) {
  std::vector<const void*> pointers;
  for (const auto& part : parts) pointers.push_back(part.data());
  std::vector<uint16_t> out(parts[0].size());
  sum_in_order(DType::bf16, DType::bf16, pointers, out.data(), static_cast<int64_t>(out.size()));
  return out;
}

// bf16: 1 = 3f80, 1 + 2^-7 = 3f81, 2^-8 = 3b80 (half a unit in the last place of 1), 2^24 = 4b80, -2^24 =
// cb80.
TEST(SumInOrder, Bf16RoundsOnceAtTheEnd) {
  // In fp32 1 + 2^-8 + 2^-8 = 1 + 2^-7. Rounding after each addition would tie to 1 twice.
  EXPECT_EQ(bf16_sum({{0x3f80}, {0x3b80}, {0x3b80}}), std::vector<uint16_t>{0x3f81});
  // One half alone ties to even: 1 from 1, and 1 + 2^-6 (3f82) from 1 + 2^-7.
  EXPECT_EQ(bf16_sum({{0x3f80, 0x3f81}, {0x3b80, 0x3b80}}), (std::vector<uint16_t>{0x3f80, 0x3f82}));
}

TEST(SumInOrder, AddsInAscendingOrderInFp32) {
  // 2^24 + 1 ties to 2^24 in fp32, so where the 1 stands decides: lost before the cancellation, kept after
  // it.
  EXPECT_EQ(bf16_sum({{0x4b80, 0x3f80, 0x4b80}, {0x3f80, 0x4b80, 0xcb80}, {0xcb80, 0xcb80, 0x3f80}}),
            (std::vector<uint16_t>{0x0000, 0x0000, 0x3f80}));
}

TEST(SumInOrder, StartsFromTheFirstValue) {
  EXPECT_EQ(bf16_sum({{0x8000}, {0x8000}}),
            std::vector<uint16_t>{0x8000});  // -0 + -0; from +0 it would be +0
  EXPECT_EQ(bf16_sum({{0x8000, 0x7f80, 0x7f80}, {0x0000, 0x3f80, 0xff80}})[0], 0x0000);
  const auto out = bf16_sum({{0x7f80, 0x7f80}, {0x3f80, 0xff80}});
  EXPECT_EQ(out[0], 0x7f80);                             // infinity + 1
  EXPECT_GT(out[1] & 0x7fff, 0x7f80);                    // infinity - infinity: not a number
  EXPECT_EQ(bf16_sum({{0x7f7f}, {0x7f7f}})[0], 0x7f80);  // twice the largest
}

TEST(SumInOrder, Bf16IntoF32KeepsWhatBf16Cannot) {
  const uint16_t a = 0x3f80;
  const uint16_t b = 0x3b80;
  const void* parts[] = {&a, &b};
  uint32_t out = 0;
  sum_in_order(DType::bf16, DType::f32, parts, &out, 1);
  EXPECT_EQ(out, 0x3f808000u);  // 1 + 2^-8
}

TEST(SumInOrder, IntegersWrapAndDoublesStayDouble) {
  const int32_t ia = std::numeric_limits<int32_t>::max();
  const int32_t ib = 2;
  const void* ints[] = {&ia, &ib};
  int32_t iout = 0;
  sum_in_order(DType::i32, DType::i32, ints, &iout, 1);
  EXPECT_EQ(iout, std::numeric_limits<int32_t>::min() + 1);

  const double da = 1.0;
  const double db = 0x1p-40;
  const void* doubles[] = {&da, &db};
  double dout = 0;
  sum_in_order(DType::f64, DType::f64, doubles, &dout, 1);
  EXPECT_EQ(dout, 1.0 + 0x1p-40);
}

// Around the block size, misaligned, and in place.
TEST(SumInOrder, EveryLengthAndAlignment) {
  for (const int64_t n : {0, 1, 7, 1023, 1024, 1025, 4100}) {
    std::vector<std::byte> raw(3 * (n * 4 + 1) + 1);
    std::vector<void*> parts;
    std::vector<const void*> inputs;
    std::vector<float> expected(n);
    for (int p = 0; p < 3; ++p) {
      parts.push_back(raw.data() + p * (n * 4 + 1) + 1);
      inputs.push_back(parts.back());
      for (int64_t i = 0; i < n; ++i) {
        const float x = static_cast<float>(1 + i % 97) * (p == 1 ? 1e-3f : 1.7f) + static_cast<float>(p);
        std::memcpy(static_cast<std::byte*>(parts[p]) + i * 4, &x, 4);
        expected[i] = p == 0 ? x : expected[i] + x;
      }
    }
    sum_in_order(DType::f32, DType::f32, inputs, parts[1], n);
    EXPECT_EQ(n == 0 ? 0 : std::memcmp(parts[1], expected.data(), n * 4), 0) << n;
  }
}

TEST(Combine, MaximumKeepsNan) {
  const std::vector<bf16> a = {bf16(1.0F), bf16(-3.0F), bf16(NAN), bf16(2.0F), bf16(-0.5F)};
  const std::vector<bf16> b = {bf16(2.0F), bf16(-4.0F), bf16(7.0F), bf16(NAN), bf16(INFINITY)};
  const std::vector<const void*> parts = {a.data(), b.data()};
  std::vector<bf16> out(a.size());
  combine({.kind = Kind::all_reduce, .dtype = DType::bf16, .maximum = true}, parts, out.data(), 5);
  EXPECT_EQ(to_float(out[0]), 2.0F);
  EXPECT_EQ(to_float(out[1]), -3.0F);
  EXPECT_TRUE(std::isnan(to_float(out[2])) && std::isnan(to_float(out[3])));
  EXPECT_EQ(to_float(out[4]), INFINITY);
}

TEST(AxisGroup, MeshTwoByTwo) {
  const std::vector<int> mesh{2, 2};
  const std::vector<int> first{0};
  const std::vector<int> second{1};
  const std::vector<int> both{0, 1};
  EXPECT_EQ(axis_group(mesh, first, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(axis_group(mesh, first, 3), (std::vector<int>{1, 3}));
  EXPECT_EQ(axis_group(mesh, second, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(axis_group(mesh, second, 2), (std::vector<int>{2, 3}));
  EXPECT_EQ(axis_group(mesh, both, 2), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(axis_group(mesh, {}, 2), std::vector<int>{2});
}

TEST(AxisGroup, ThreeAxes) {
  const std::vector<int> mesh{2, 3, 4};
  const std::vector<int> outer_two{0, 2};
  EXPECT_EQ(axis_group(mesh, outer_two, 17), (std::vector<int>{4, 5, 6, 7, 16, 17, 18, 19}));
}

TEST(RowsOf, UnevenAndEmpty) {
  const Collective c{.kind = Kind::all_gather, .local_rows = 3, .logical_rows = 4};
  EXPECT_EQ(rows_of(c, 0).begin, 0);
  EXPECT_EQ(rows_of(c, 0).end, 3);
  EXPECT_EQ(rows_of(c, 1).begin, 3);
  EXPECT_EQ(rows_of(c, 1).end, 4);
  EXPECT_EQ(rows_of(c, 2).begin, rows_of(c, 2).end);
}

TEST(Check, SaysWhatIsWrong) {
  float x[8] = {};
  const Collective good{
      .kind = Kind::reduce_scatter, .in = x, .out = x + 4, .local_rows = 2, .logical_rows = 3};
  EXPECT_TRUE(check(good, 2).ok());
  const auto message = [](Collective c) {
    const Status status = check(c, 2);
    EXPECT_EQ(status.code(), Code::internal);
    return status.message();
  };
  Collective bad = good;
  bad.logical_rows = 5;
  EXPECT_NE(message(bad).find("logical_rows must be in 1..4"), std::string::npos);
  bad = good;
  bad.dtype = DType::f8e5m2;
  EXPECT_NE(message(bad).find("sums take"), std::string::npos);
  bad = good;
  bad.out_dtype = DType::bf16;
  EXPECT_NE(message(bad).find("bf16 -> f32 only"), std::string::npos);
  bad = good;
  bad.out = nullptr;
  EXPECT_NE(message(bad).find("null"), std::string::npos);
  bad = good;
  bad.kind = Kind::broadcast;
  bad.root = 2;
  EXPECT_NE(message(bad).find("root must be in 0..1"), std::string::npos);
  bad.kind = Kind::permute;
  bad.shift = 2;
  EXPECT_NE(message(bad).find("shift must be in 0..1"), std::string::npos);
  bad.shift = 1;
  bad.out = x;
  EXPECT_NE(message(bad).find("not in place"), std::string::npos);
}

}  // namespace
}  // namespace lignum::comm
