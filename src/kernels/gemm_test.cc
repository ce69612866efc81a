#include "kernels/gemm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

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

Gemm make(int64_t m, int64_t n, int64_t k, Layout layout, DType ab, DType c, int64_t pad = 0) {
  Gemm g{
      .m = m, .n = n, .k = k, .trans_a = layout.trans_a, .trans_b = layout.trans_b, .a = ab, .b = ab, .c = c};
  g.lda = (g.trans_a ? m : k) + pad;
  g.ldb = (g.trans_b ? k : n) + pad;
  g.ldc = n + pad;
  return g;
}

int64_t a_at(const Gemm& g, int64_t i, int64_t p) { return g.trans_a ? p * g.lda + i : i * g.lda + p; }
int64_t b_at(const Gemm& g, int64_t p, int64_t j) { return g.trans_b ? j * g.ldb + p : p * g.ldb + j; }
int64_t a_count(const Gemm& g) { return (g.trans_a ? g.k : g.m) * g.lda; }
int64_t b_count(const Gemm& g) { return (g.trans_b ? g.n : g.k) * g.ldb; }

// The same matrices whatever layout and padding: element (i, p) comes from (seed, i, p).
void fill(const Gemm& g, Buffer& a, Buffer& b) {
  const Random ra(1, "a"), rb(2, "b");
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t p = 0; p < g.k; ++p) a.set(a_at(g, i, p), ra.normal(static_cast<uint64_t>(i * 100000 + p)));
  }
  for (int64_t p = 0; p < g.k; ++p) {
    for (int64_t j = 0; j < g.n; ++j) b.set(b_at(g, p, j), rb.normal(static_cast<uint64_t>(j * 100000 + p)));
  }
}

void run(Isa isa, const Gemm& g, const Buffer& a, const Buffer& b, Buffer& c, int threads = 1) {
  ASSERT_TRUE(gemm_supported(g).ok()) << gemm_supported(g).message();
  Workspace workspace(gemm_workspace(g, threads));
  TestThreads pool(threads);
  gemm(Choice{isa}, g, a.data(), b.data(), c.data(), workspace.data(), pool);
}

// |error| <= k u |a| |b| over the products (the chains are shorter than k), u = 2^-24, and half an ulp of the
// result.
void check_against_double(const Gemm& g, const Buffer& a, const Buffer& b, const Buffer& c,
                          const std::string& what) {
  std::vector<double> rows(static_cast<size_t>(g.m * g.k)), columns(static_cast<size_t>(g.n * g.k));
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t p = 0; p < g.k; ++p) rows[i * g.k + p] = a.at(a_at(g, i, p));
  }
  for (int64_t j = 0; j < g.n; ++j) {
    for (int64_t p = 0; p < g.k; ++p) columns[j * g.k + p] = b.at(b_at(g, p, j));
  }
  Worst worst;
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0, size = 0;
      for (int64_t p = 0; p < g.k; ++p) {
        const double product = rows[i * g.k + p] * columns[j * g.k + p];
        sum += product;
        size += std::fabs(product);
      }
      const double bound =
          static_cast<double>(g.k + 1) * 0x1p-24 * size + testing::half_ulp(g.c) * std::fabs(sum);
      worst.take(i * g.n + j, c.at(i * g.ldc + j), sum, bound * (1 + 1e-3));
    }
  }
  EXPECT_LE(worst.ratio, 1.0) << what << " " << worst.text();
}

class GemmOnIsa : public ::testing::TestWithParam<Isa> {};

TEST_P(GemmOnIsa, AgreesWithDoubleInEveryLayoutAndDtype) {
  const int64_t shapes[][3] = {{1, 1, 1},  {1, 37, 5},     {37, 1, 64},  {37, 37, 37},  {14, 32, 256},
                               {6, 16, 1}, {37, 211, 257}, {4, 70, 513}, {15, 33, 513}, {113, 65, 31}};
  for (const auto& s : shapes) {
    for (const Layout& layout : kLayouts) {
      for (DType ab : kDtypes) {
        for (DType c_type : kDtypes) {
          const Gemm g = make(s[0], s[1], s[2], layout, ab, c_type, s[0] % 3);
          Buffer a(ab, a_count(g), 1), b(ab, b_count(g), 3), c(c_type, g.m * g.ldc, 1);
          fill(g, a, b);
          run(GetParam(), g, a, b, c);
          check_against_double(g, a, b, c,
                               std::string(layout.name) + " " + std::to_string(g.m) + "x" +
                                   std::to_string(g.n) + "x" + std::to_string(g.k) + " " +
                                   std::string(dtype_name(ab)) + " to " + std::string(dtype_name(c_type)));
        }
      }
    }
  }
}

TEST_P(GemmOnIsa, MixedInputDtypes) {
  for (const Layout& layout : kLayouts) {
    Gemm g = make(29, 45, 70, layout, DType::f32, DType::f32);
    g.b = DType::bf16;
    Buffer a(g.a, a_count(g)), b(g.b, b_count(g)), c(g.c, g.m * g.ldc);
    fill(g, a, b);
    run(GetParam(), g, a, b, c);
    check_against_double(g, a, b, c, layout.name);
  }
}

// The contract, literally: element (i, j) is the chain of gemm.h.
float by_contract(const Gemm& g, const Buffer& a, const Buffer& b, int64_t i, int64_t j) {
  float total = 0;
  for (int64_t p0 = 0; p0 < g.k; p0 += 256) {
    float sum = 0;
    for (int64_t p = p0; p < std::min(g.k, p0 + 256); ++p) {
      sum = std::fma(static_cast<float>(a.at(a_at(g, i, p))), static_cast<float>(b.at(b_at(g, p, j))), sum);
    }
    total = p0 == 0 ? sum : total + sum;
  }
  return total;
}

TEST_P(GemmOnIsa, BitsAreTheContractsChain) {
  for (const auto& s : {std::array<int64_t, 3>{150, 40, 600},
                        {3, 5, 256},
                        {1, 1030, 257},
                        {4, 41, 600},
                        {16, 1030, 257},
                        {455, 20, 300}}) {
    for (const Layout& layout : kLayouts) {
      for (DType ab : kDtypes) {
        for (DType c_type : kDtypes) {
          const Gemm g = make(s[0], s[1], s[2], layout, ab, c_type, s[2] % 2);
          Buffer a(ab, a_count(g), 1), b(ab, b_count(g), 1), c(c_type, g.m * g.ldc, 1);
          fill(g, a, b);
          run(GetParam(), g, a, b, c);
          int64_t wrong = 0;
          for (int64_t i = 0; i < g.m; i += 5) {
            for (int64_t j = 0; j < g.n; j += 3) {
              const float want = by_contract(g, a, b, i, j);
              const double rounded = c_type == DType::bf16 ? to_float(bf16(want)) : want;
              wrong += c.at(i * g.ldc + j) != rounded;
            }
          }
          EXPECT_EQ(wrong, 0) << layout.name << " " << g.m << "x" << g.n << "x" << g.k;
        }
      }
    }
  }
}

TEST_P(GemmOnIsa, BitsDoNotDependOnThreads) {
  for (const auto& s : {std::array<int64_t, 3>{300, 40, 300}, {40, 300, 300}, {64, 64, 64}}) {
    for (DType type : kDtypes) {
      const Gemm g = make(s[0], s[1], s[2], kLayouts[0], type, type);
      Buffer a(type, a_count(g)), b(type, b_count(g)), one(type, g.m * g.ldc);
      fill(g, a, b);
      run(GetParam(), g, a, b, one);
      for (int threads : {2, 3, 7}) {
        Buffer many(type, g.m * g.ldc);
        run(GetParam(), g, a, b, many, threads);
        EXPECT_TRUE(one.same_bits(many)) << threads << " threads";
      }
    }
  }
}

TEST_P(GemmOnIsa, BatchIsTheMatricesOneByOne) {
  for (int threads : {1, 2}) {
    Gemm g = make(37, 41, 60, kLayouts[1], DType::bf16, DType::f32);
    Gemm all = g;
    all.batch = 5;
    all.stride_a = a_count(g) + 3;
    all.stride_b = 0;
    all.stride_c = g.m * g.n;
    Buffer a(all.a, all.batch * all.stride_a), b(all.b, b_count(g)), c(all.c, all.batch * all.stride_c);
    a.fill_normal(3);
    b.fill_normal(4);
    run(GetParam(), all, a, b, c, threads);
    for (int64_t i = 0; i < all.batch; ++i) {
      Buffer part(g.a, a_count(g)), want(g.c, g.m * g.n);
      for (int64_t e = 0; e < part.count(); ++e) part.set(e, a.at(i * all.stride_a + e));
      run(GetParam(), g, part, b, want);
      int64_t wrong = 0;
      for (int64_t e = 0; e < want.count(); ++e) wrong += want.at(e) != c.at(i * all.stride_c + e);
      EXPECT_EQ(wrong, 0) << "matrix " << i;
    }
  }
}

TEST_P(GemmOnIsa, TouchesNothingBetweenRows) {
  for (DType c_type : kDtypes) {
    Gemm g = make(17, 19, 300, kLayouts[0], DType::f32, c_type, 5);
    Buffer a(g.a, a_count(g)), b(g.b, b_count(g)), c(c_type, g.m * g.ldc);
    fill(g, a, b);
    for (int64_t i = 0; i < c.count(); ++i) c.set(i, 77.0);
    run(GetParam(), g, a, b, c, 2);
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = g.n; j < g.ldc; ++j) EXPECT_EQ(c.at(i * g.ldc + j), 77.0) << i << " " << j;
    }
  }
}

TEST_P(GemmOnIsa, EmptySizes) {
  Gemm g = make(3, 4, 0, kLayouts[0], DType::f32, DType::f32, 1);
  Buffer a(DType::f32, 8), b(DType::f32, 8), c(DType::f32, g.m * g.ldc);
  run(GetParam(), g, a, b, c, 2);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) EXPECT_EQ(c.at(i * g.ldc + j), 0.0);
  }
  c.set(0, 5.0);
  run(GetParam(), make(0, 4, 2, kLayouts[0], DType::f32, DType::f32), a, b, c);
  run(GetParam(), make(3, 0, 2, kLayouts[0], DType::f32, DType::f32), a, b, c);
  EXPECT_EQ(c.at(0), 5.0);
}

TEST_P(GemmOnIsa, NanAndInfinityReachTheirRowAndColumnOnly) {
  for (DType type : kDtypes) {
    const Gemm g = make(40, 50, 300, kLayouts[3], type, type);
    Buffer a(type, a_count(g)), b(type, b_count(g)), c(type, g.m * g.ldc);
    fill(g, a, b);
    a.set(a_at(g, 7, 290), std::numeric_limits<double>::quiet_NaN());
    b.set(b_at(g, 3, 11), std::numeric_limits<double>::infinity());
    run(GetParam(), g, a, b, c);
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        const double x = c.at(i * g.ldc + j);
        if (i == 7) {
          EXPECT_TRUE(std::isnan(x)) << i << " " << j;
        } else if (j == 11) {
          EXPECT_TRUE(std::isinf(x)) << i << " " << j;
        } else {
          EXPECT_TRUE(std::isfinite(x)) << i << " " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmOnIsa, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

TEST(Gemm, RefusesWhatItCannotDo) {
  Gemm g = make(3, 4, 5, kLayouts[0], DType::f32, DType::f32);
  g.b = DType::i32;
  EXPECT_EQ(gemm_supported(g).code(), Code::user_error);
  EXPECT_NE(gemm_supported(g).message().find("b is i32"), std::string::npos);
  g = make(3, 4, 5, kLayouts[0], DType::f32, DType::f32);
  g.ldb = 3;
  EXPECT_NE(gemm_supported(g).message().find("ldb is 3"), std::string::npos);
  g = make(3, 4, 5, kLayouts[0], DType::f32, DType::f32);
  g.m = -1;
  EXPECT_NE(gemm_supported(g).message().find("m is -1"), std::string::npos);
}

}  // namespace
}  // namespace lignum::kernels
