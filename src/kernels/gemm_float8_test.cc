// Products of 8-bit floats by fp16 FMA (Fp8Accumulation::fp16_64). A machine without it skips them by name.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/kernel_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer;
using testing::Workspace;
using testing::Worst;

constexpr DType kE4m3 = DType::f8e4m3fn, kE5m2 = DType::f8e5m2;
constexpr Choice kFp16{Isa::avx512, Bf16Dot::fma, Fp8Accumulation::fp16_64};

class Float8Fp16 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* why = isa_refusal(Isa::avx512)) GTEST_SKIP() << "this CPU: " << why;
    if (const char* why = fp8_accumulation_refusal(kFp16.fp8_accumulation, kFp16.isa)) {
      GTEST_SKIP() << "this CPU: " << why;  // ./test takes such a skip even in CI
    }
  }
};

// A product and its operands, the same matrices whatever layout and padding.
struct Case {
  Gemm g;
  Buffer a, b;
  Case(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, DType of_a, DType of_b, DType c)
      : g{.m = m, .n = n, .k = k, .trans_a = trans_a, .trans_b = trans_b, .a = of_a, .b = of_b, .c = c},
        a(of_a, (trans_a ? k : m) * ((trans_a ? m : k) + 3), 1),
        b(of_b, (trans_b ? n : k) * ((trans_b ? k : n) + 1)) {
    g.lda = (trans_a ? m : k) + 3;
    g.ldb = (trans_b ? k : n) + 1;
    g.ldc = n;
    a.fill_normal(7);  // what lies between rows
    b.fill_normal(8);
    const Random ra(1, "a"), rb(2, "b");
    for (int64_t i = 0; i < m; ++i)  // rows of very different size
      for (int64_t p = 0; p < k; ++p)
        a.set(at_a(i, p), ra.normal(static_cast<uint64_t>(i * 10000 + p)) * std::exp2(40 - 7 * (i % 8) - 36));
    for (int64_t p = 0; p < k; ++p)
      for (int64_t j = 0; j < n; ++j)
        b.set(at_b(p, j), rb.normal(static_cast<uint64_t>(j * 10000 + p)) * (j % 3 == 0 ? 90.0 : 0.3));
  }
  int64_t at_a(int64_t i, int64_t p) const { return g.trans_a ? p * g.lda + i : i * g.lda + p; }
  int64_t at_b(int64_t p, int64_t j) const { return g.trans_b ? j * g.ldb + p : p * g.ldb + j; }

  Buffer run(int threads = 1) const {
    EXPECT_TRUE(gemm_supported(g).ok());
    Buffer c(g.c, g.m * g.n, 1);
    Workspace space(gemm_workspace(g, threads));
    TestThreads pool(threads);
    gemm(kFp16, g, a.data(), b.data(), c.data(), space.data(), pool);
    return c;
  }
};

// A chain of 32 products and one sum round in fp16 (2^-11); below 2^-14 there are steps of 2^-24, of operands
// and of sums, beside the largest of a row at 16 at least; the rest is fp32.
TEST_F(Float8Fp16, IsWithinItsBound) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {14, 32, 64}, {3, 70, 129}, {17, 33, 704}, {30, 5, 1500}}) {
    for (const auto& [of_a, of_b] : {std::pair{kE4m3, kE4m3}, {kE5m2, kE4m3}, {kE5m2, kE5m2}}) {
      const Case x(m, n, k, false, true, of_a, of_b, DType::f32);
      const Buffer c = x.run();
      Worst worst;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, size = 0, most_a = 0, most_b = 0;
          for (int64_t p = 0; p < k; ++p) {
            const double a = x.a.at(x.at_a(i, p)), b = x.b.at(x.at_b(p, j));
            sum += a * b;
            size += std::fabs(a * b);
            most_a = std::max(most_a, std::fabs(a));
            most_b = std::max(most_b, std::fabs(b));
          }
          const double chunks = static_cast<double>(k) / 64 + 4;
          const double steps = static_cast<double>(k + 64) * 0x1p-24 * most_a * most_b / 8;
          worst.take(i * n + j, c.at(i * n + j), sum, 33 * 0x1p-11 * size + chunks * 0x1p-23 * size + steps);
        }
      }
      EXPECT_LE(worst.ratio, 1) << m << " x " << n << " x " << k << ": " << worst.text();
    }
  }
}

TEST_F(Float8Fp16, ErrorOfNormalDataIsAFractionOfTheFormatsOwn) {
  constexpr int64_t kSize = 40, kK = 640;
  Case x(kSize, kSize, kK, false, true, kE4m3, kE4m3, DType::f32);
  x.a.fill_normal(3, 30);
  x.b.fill_normal(4, 0.5);
  const Buffer c = x.run();
  double error = 0, a2 = 0, b2 = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t p = 0; p < kK; ++p) {
      a2 += std::pow(x.a.at(x.at_a(i, p)), 2);
      b2 += std::pow(x.b.at(x.at_b(p, i)), 2);
    }
    for (int64_t j = 0; j < kSize; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < kK; ++p) sum += x.a.at(x.at_a(i, p)) * x.b.at(x.at_b(p, j));
      error += std::fabs(c.at(i * kSize + j) - sum) / (kSize * kSize);
    }
  }
  const double size = std::sqrt(static_cast<double>(kK)) * std::sqrt(a2 * b2) / (kSize * kK);
  EXPECT_LT(error, 1e-3 * size);  // 5e-4; E4M3's rounding: 3e-2
  EXPECT_GT(error, 1e-5 * size);  // it was fp16
}

TEST_F(Float8Fp16, SameBitsInEveryLayoutAndCut) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{5, 7, 3}, {17, 70, 129}, {130, 66, 65}, {61, 130, 1100}, {3, 1100, 40}}) {
    for (const auto& [of_a, of_b] : {std::pair{kE4m3, kE5m2}, {kE5m2, kE4m3}}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const Buffer want = Case(m, n, k, false, false, of_a, of_b, type).run();
        for (const bool trans_a : {false, true}) {
          for (const bool trans_b : {false, true}) {
            const Case x(m, n, k, trans_a, trans_b, of_a, of_b, type);
            EXPECT_TRUE(want.same_bits(x.run(2))) << m << " x " << n << " x " << k << trans_a << trans_b;
          }
        }
      }
    }
  }
}

TEST_F(Float8Fp16, LargestOperandsAreExact) {
  for (const DType of_b : {kE4m3, kE5m2}) {
    Case x(3, 40, 700, false, true, kE4m3, of_b, DType::f32);
    const double largest_b = of_b == kE4m3 ? 448 : 57344;
    for (int64_t i = 0; i < x.a.count(); ++i) x.a.set(i, 448);
    for (int64_t i = 0; i < x.b.count(); ++i) x.b.set(i, largest_b);
    const Buffer c = x.run();
    for (int64_t i = 0; i < c.count(); ++i) ASSERT_EQ(c.at(i), 700 * 448.0 * largest_b);
  }
}

TEST_F(Float8Fp16, NanAndInfinityGiveNanInTheirRowAndColumnOnly) {
  for (const unsigned char code : {0x7c, 0xff}) {
    Case x(20, 40, 70, false, false, kE5m2, kE5m2, DType::bf16);
    static_cast<unsigned char*>(x.a.data())[x.at_a(15, 69)] = code;
    static_cast<unsigned char*>(x.b.data())[x.at_b(3, 37)] = code;
    const Buffer c = x.run();
    for (int64_t i = 0; i < 20; ++i)
      for (int64_t j = 0; j < 40; ++j) ASSERT_EQ(std::isnan(c.at(i * 40 + j)), i == 15 || j == 37);
  }
}

TEST_F(Float8Fp16, RowsAndColumnsAreScaledLast) {
  for (const int64_t k : {70, 1100}) {
    Case x(30, 50, k, false, true, kE4m3, kE4m3, DType::f32);
    const Buffer sums = x.run();
    Buffer rows(DType::f32, 30), columns(DType::f32, 50);
    rows.fill_normal(3);
    columns.fill_normal(4);
    x.g.row_scale = rows.floats();
    x.g.column_scale = columns.floats();
    const Buffer scaled = x.run(2);
    for (int64_t i = 0; i < scaled.count(); ++i) {
      const float sum = static_cast<float>(sums.at(i));
      ASSERT_EQ(scaled.at(i), sum * rows.floats()[i / 50] * columns.floats()[i % 50]);
    }
  }
}

}  // namespace
}  // namespace lignum::kernels
