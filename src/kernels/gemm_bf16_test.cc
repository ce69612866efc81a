// Products of bf16 operands by pairs, in each way but fma (whose tests are gemm_test.cc's). A way that this
// machine lacks is skipped by name.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/kernel_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer;
using testing::Workspace;
using testing::Worst;

struct Layout {
  bool trans_a, trans_b;
  const char* name;
};
constexpr Layout kLayouts[] = {
    {false, false, "NN"}, {false, true, "NT"}, {true, false, "TN"}, {true, true, "TT"}};
constexpr DType kDtypes[] = {DType::f32, DType::bf16};

Gemm make(int64_t m, int64_t n, int64_t k, Layout layout, DType c, int64_t pad = 0) {
  Gemm g{.m = m, .n = n, .k = k, .trans_a = layout.trans_a, .trans_b = layout.trans_b};
  g.a = g.b = DType::bf16;
  g.c = c;
  g.lda = (g.trans_a ? m : k) + pad;
  g.ldb = (g.trans_b ? k : n) + pad;
  g.ldc = n + pad;
  return g;
}

int64_t a_at(const Gemm& g, int64_t i, int64_t p) { return g.trans_a ? p * g.lda + i : i * g.lda + p; }
int64_t b_at(const Gemm& g, int64_t p, int64_t j) { return g.trans_b ? j * g.ldb + p : p * g.ldb + j; }

// A product and its operands, the same matrices whatever layout and padding.
struct Case {
  Gemm g;
  Buffer a, b, c;
  explicit Case(const Gemm& product, int skew = 1)
      : g(product),
        a(DType::bf16, (g.trans_a ? g.k : g.m) * g.lda, skew),
        b(DType::bf16, (g.trans_b ? g.n : g.k) * g.ldb, skew + 2),
        c(g.c, g.m * g.ldc, skew) {
    a.fill_normal(7);  // what lies between rows
    b.fill_normal(8);
    const Random ra(1, "a"), rb(2, "b");
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t p = 0; p < g.k; ++p)
        a.set(a_at(g, i, p), ra.normal(static_cast<uint64_t>(i * 100000 + p)));
    }
    for (int64_t p = 0; p < g.k; ++p) {
      for (int64_t j = 0; j < g.n; ++j)
        b.set(b_at(g, p, j), rb.normal(static_cast<uint64_t>(j * 100000 + p)));
    }
  }
  void run(Bf16Dot dot, int threads = 1) {
    ASSERT_TRUE(gemm_supported(g).ok()) << gemm_supported(g).message();
    Workspace workspace(gemm_workspace(g, threads));
    TestThreads pool(threads);
    gemm(Choice{Isa::avx512, dot}, g, a.data(), b.data(), c.data(), workspace.data(), pool);
  }
};

// The bound of gemm.h, and the last rounding: to bf16, or of the sum to f32.
void check_against_double(Bf16Dot dot, const Case& x, const std::string& what) {
  const Gemm& g = x.g;
  const auto k = static_cast<double>(g.k);
  const double steps = dot == Bf16Dot::amx ? std::ceil(k / 32) + 18 : k;
  std::vector<double> rows(static_cast<size_t>(g.m * g.k)), columns(static_cast<size_t>(g.n * g.k));
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t p = 0; p < g.k; ++p) rows[i * g.k + p] = x.a.at(a_at(g, i, p));
  }
  for (int64_t j = 0; j < g.n; ++j) {
    for (int64_t p = 0; p < g.k; ++p) columns[j * g.k + p] = x.b.at(b_at(g, p, j));
  }
  Worst worst;
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0, size = 0, operands = 0;
      for (int64_t p = 0; p < g.k; ++p) {
        const double a = rows[i * g.k + p], b = columns[j * g.k + p];
        sum += a * b;
        size += std::fabs(a * b);
        operands += std::fabs(a) + std::fabs(b);
      }
      const double bound = (steps + 1) * 0x1p-24 * size + 0x1p-126 * (operands + 2 * k) +
                           testing::half_ulp(g.c) * std::fabs(sum);
      worst.take(i * g.n + j, x.c.at(i * g.ldc + j), sum, bound * (1 + 1e-2));
    }
  }
  EXPECT_LE(worst.ratio, 1.0) << what << " " << worst.text();
}

std::string name(const Gemm& g, const Layout& layout) {
  return std::string(layout.name) + " " + std::to_string(g.m) + "x" + std::to_string(g.n) + "x" +
         std::to_string(g.k) + " to " + std::string(dtype_name(g.c));
}

class GemmBf16InWay : public ::testing::TestWithParam<Bf16Dot> {};

TEST_P(GemmBf16InWay, AgreesWithDoubleInEveryLayout) {
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 37, 5},     {37, 1, 64},   {17, 16, 31},
                               {33, 65, 33}, {37, 211, 257}, {130, 40, 96}, {20, 90, 2100}};
  for (const auto& s : shapes) {
    for (const Layout& layout : kLayouts) {
      for (DType c : kDtypes) {
        Case x(make(s[0], s[1], s[2], layout, c, s[0] % 3));
        x.run(GetParam(), 2);
        check_against_double(GetParam(), x, name(x.g, layout));
      }
    }
  }
}

// Threads, layout, padding and what else is in the matrices; the shapes are cut along either side, and over
// k.
TEST_P(GemmBf16InWay, BitsDependOnRowColumnAndKOnly) {
  for (const auto& s : {std::array<int64_t, 3>{300, 75, 300}, {75, 300, 333}, {70, 66, 4200}}) {
    Case one(make(s[0], s[1], s[2], kLayouts[0], DType::bf16));
    one.run(GetParam());
    int threads = 1;
    for (const Layout& layout : kLayouts) {
      Case many(make(s[0], s[1], s[2], layout, DType::bf16, 3), ++threads);
      many.run(GetParam(), threads);
      int64_t wrong = 0;
      for (int64_t i = 0; i < s[0]; ++i) {
        for (int64_t j = 0; j < s[1]; ++j)
          wrong += one.c.at(i * one.g.ldc + j) != many.c.at(i * many.g.ldc + j);
      }
      EXPECT_EQ(wrong, 0) << name(many.g, layout) << ", " << threads << " threads";
    }
    Case corner(make(19, 33, s[2], kLayouts[1], DType::bf16));
    corner.run(GetParam());
    int64_t wrong = 0;
    for (int64_t i = 0; i < 19; ++i) {
      for (int64_t j = 0; j < 33; ++j) wrong += one.c.at(i * one.g.ldc + j) != corner.c.at(i * 33 + j);
    }
    EXPECT_EQ(wrong, 0) << "a corner of " << name(one.g, kLayouts[0]);
  }
}

TEST_P(GemmBf16InWay, BatchIsTheMatricesOneByOne) {
  for (int threads : {1, 2}) {
    Gemm g = make(37, 41, 60, kLayouts[1], DType::f32);
    g.batch = 5;
    g.stride_a = g.m * g.lda + 3;
    g.stride_b = 0;
    g.stride_c = g.m * g.n;
    Buffer a(g.a, g.batch * g.stride_a), b(g.b, g.n * g.ldb), c(g.c, g.batch * g.stride_c);
    a.fill_normal(3);
    b.fill_normal(4);
    Workspace workspace(gemm_workspace(g, threads));
    TestThreads pool(threads);
    gemm(Choice{Isa::avx512, GetParam()}, g, a.data(), b.data(), c.data(), workspace.data(), pool);
    for (int64_t i = 0; i < g.batch; ++i) {
      Case one(make(37, 41, 60, kLayouts[1], DType::f32));
      for (int64_t e = 0; e < one.a.count(); ++e) one.a.set(e, a.at(i * g.stride_a + e));
      for (int64_t e = 0; e < one.b.count(); ++e) one.b.set(e, b.at(e));
      one.run(GetParam());
      int64_t wrong = 0;
      for (int64_t e = 0; e < one.c.count(); ++e) wrong += one.c.at(e) != c.at(i * g.stride_c + e);
      EXPECT_EQ(wrong, 0) << "matrix " << i;
    }
  }
}

TEST_P(GemmBf16InWay, TouchesNothingBetweenRows) {
  for (DType c : kDtypes) {
    Case x(make(17, 51, 40, kLayouts[0], c, 5));
    for (int64_t i = 0; i < x.c.count(); ++i) x.c.set(i, 77.0);
    x.run(GetParam(), 2);
    for (int64_t i = 0; i < x.g.m; ++i) {
      for (int64_t j = x.g.n; j < x.g.ldc; ++j) EXPECT_EQ(x.c.at(i * x.g.ldc + j), 77.0) << i << " " << j;
    }
  }
}

TEST_P(GemmBf16InWay, NanAndInfinityReachTheirRowAndColumnOnly) {
  for (DType c : kDtypes) {
    Case x(make(40, 50, 301, kLayouts[3], c));
    x.a.set(a_at(x.g, 7, 300), std::numeric_limits<double>::quiet_NaN());
    x.b.set(b_at(x.g, 3, 11), std::numeric_limits<double>::infinity());
    x.run(GetParam());
    for (int64_t i = 0; i < x.g.m; ++i) {
      for (int64_t j = 0; j < x.g.n; ++j) {
        const double value = x.c.at(i * x.g.ldc + j);
        if (i == 7) {
          EXPECT_TRUE(std::isnan(value)) << i << " " << j;
        } else if (j == 11) {
          EXPECT_TRUE(std::isinf(value)) << i << " " << j;
        } else {
          EXPECT_TRUE(std::isfinite(value)) << i << " " << j;
        }
      }
    }
  }
}

// Subnormal operands, and products and sums that are subnormal: within the bound, which lets them be zeros.
TEST_P(GemmBf16InWay, SubnormalsAreWithinTheBound) {
  for (const double tiny : {0x1p-130, 0x1p-70}) {
    Case x(make(20, 35, 70, kLayouts[1], DType::f32));
    for (int64_t i = 0; i < x.a.count(); ++i) x.a.set(i, x.a.at(i) * tiny);
    if (tiny > 0x1p-100) {
      for (int64_t i = 0; i < x.b.count(); ++i) x.b.set(i, x.b.at(i) * 0x1p-58);
    }
    x.run(GetParam());
    check_against_double(GetParam(), x, "subnormal");
  }
}

// An f32 operand is not by pairs: the bits are those of fma.
TEST_P(GemmBf16InWay, OtherOperandsAreTakenAsByFma) {
  Gemm g = make(29, 45, 70, kLayouts[1], DType::f32);
  g.a = DType::f32;
  Buffer a(g.a, g.m * g.lda), b(g.b, g.n * g.ldb), c(g.c, g.m * g.n), want(g.c, g.m * g.n);
  a.fill_normal(1);
  b.fill_normal(2);
  Workspace workspace(gemm_workspace(g, 1));
  TestThreads pool(1);
  gemm(Choice{Isa::avx512, GetParam()}, g, a.data(), b.data(), c.data(), workspace.data(), pool);
  gemm(Choice{Isa::avx512}, g, a.data(), b.data(), want.data(), workspace.data(), pool);
  EXPECT_TRUE(c.same_bits(want));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmBf16InWay);
INSTANTIATE_TEST_SUITE_P(Ways, GemmBf16InWay, ::testing::ValuesIn(testing::pair_ways()),
                         [](const auto& info) { return std::string(bf16_dot_name(info.param)); });

TEST(Bf16Dot, SaysWhatThisMachineLacks) {
  for (Bf16Dot dot : {Bf16Dot::fma, Bf16Dot::vdpbf16ps, Bf16Dot::amx}) {
    const char* reason = bf16_dot_refusal(dot, best_isa());
    const std::vector<Bf16Dot> ways = available_bf16_dots(best_isa());
    EXPECT_EQ(reason == nullptr, std::find(ways.begin(), ways.end(), dot) != ways.end());
    if (reason == nullptr) continue;
    EXPECT_GT(std::string(reason).size(), 10U);
    std::printf("not tested on this machine: %s: %s\n", std::string(bf16_dot_name(dot)).c_str(), reason);
  }
}

TEST(Bf16Dot, NamesAndOrder) {
  for (Bf16Dot dot : {Bf16Dot::fma, Bf16Dot::vdpbf16ps, Bf16Dot::amx}) {
    EXPECT_EQ(bf16_dot_from_name(bf16_dot_name(dot)), dot);
  }
  EXPECT_FALSE(bf16_dot_from_name("auto"));
  for (Isa isa : available_isas()) EXPECT_EQ(available_bf16_dots(isa).front(), Bf16Dot::fma);
}

TEST(Bf16Dot, RefusesWithAReason) {
  EXPECT_STREQ(bf16_dot_refusal(Bf16Dot::fma, Isa::scalar), nullptr);
  EXPECT_STREQ(bf16_dot_refusal(Bf16Dot::amx, Isa::avx2), "it goes with the kernels of isa=avx512 only");
  const Result<Choice> choice = choose(Isa::scalar, Bf16Dot::amx);
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), Code::user_error);
  EXPECT_NE(choice.status().message().find("bf16_dot=amx: it goes with"), std::string::npos);
  EXPECT_NE(choice.status().message().find("with isa=scalar this machine has fma"), std::string::npos);
}

TEST(Bf16Dot, TheFastestWinsButNotByLittle) {
  EXPECT_EQ(fastest_bf16_dot({{Bf16Dot::fma, 100}, {Bf16Dot::vdpbf16ps, 109}}), Bf16Dot::fma);
  EXPECT_EQ(fastest_bf16_dot({{Bf16Dot::vdpbf16ps, 50}, {Bf16Dot::fma, 100}}), Bf16Dot::fma);
  EXPECT_EQ(fastest_bf16_dot({{Bf16Dot::amx, 900}, {Bf16Dot::fma, 100}, {Bf16Dot::vdpbf16ps, 200}}),
            Bf16Dot::amx);
  EXPECT_EQ(fastest_bf16_dot({{Bf16Dot::fma, 100}, {Bf16Dot::vdpbf16ps, 200}, {Bf16Dot::amx, 210}}),
            Bf16Dot::vdpbf16ps);
}

TEST(Bf16Dot, ProbeMeasuresEveryWayThereIs) {
  const std::vector<Bf16Rate> rates = probe_bf16_dots(best_isa());
  const std::vector<Bf16Dot> dots = available_bf16_dots(best_isa());
  ASSERT_EQ(rates.size(), dots.size());
  for (size_t i = 0; i < dots.size(); ++i) {
    EXPECT_EQ(rates[i].dot, dots[i]);
    EXPECT_GE(rates[i].flops, dots.size() > 1 ? 1 : 0);
  }
}

}  // namespace
}  // namespace lignum::kernels
