// 8-bit floats: conversions and their dots, bit for bit; scales of tiles. On every ISA and in every way of
// bf16 dots.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/kernel_testing.h"
#include "kernels/rows.h"

namespace lignum::kernels {
namespace {

using Dims = std::vector<int64_t>;

using testing::Buffer;
using testing::Workspace;
constexpr DType kFormats[] = {DType::f8e4m3fn, DType::f8e5m2};
constexpr DType kEdgeTypes[] = {DType::f32, DType::bf16};

uint8_t by_base(DType format, float x) {
  return format == DType::f8e4m3fn ? f8e4m3fn_from_float(x) : f8e5m2_from_float(x);
}
bool is_nan(DType format, uint8_t code) {
  return std::isnan(format == DType::f8e4m3fn ? f8e4m3fn_to_float(code) : f8e5m2_to_float(code));
}

// x / 1, whatever the kernel of that tensor: rows share the scale, or columns have one each.
void check_conversion(Buffer& x, DType format) {
  const int64_t n = x.count(), one = 1;
  Buffer scales(x.dtype(), n);
  for (int64_t i = 0; i < n; ++i) scales.set(i, 1.0);
  std::vector<uint8_t> q(static_cast<size_t>(n));
  Serial serial;
  for (const Isa isa : available_isas()) {
    for (const int64_t* shared : {&one, &n}) {
      row_kernels({isa}).quantize({{&n, 1}, {shared, 1}}, {x.dtype(), x.data()}, {x.dtype(), scales.data()},
                                  {format, q.data()}, serial);
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<float>(x.at(i));
        const uint8_t want = by_base(format, value);
        wrong += std::isnan(value) ? !is_nan(format, q[static_cast<size_t>(i)])
                                   : q[static_cast<size_t>(i)] != want;
      }
      EXPECT_EQ(wrong, 0) << isa_name(isa) << " " << dtype_name(x.dtype()) << " to " << dtype_name(format);
    }
  }
}

TEST(Float8, EveryBf16ConvertsAsBaseDoes) {
  Buffer x(DType::bf16, 65536);
  for (int64_t i = 0; i < x.count(); ++i) static_cast<uint16_t*>(x.data())[i] = static_cast<uint16_t>(i);
  for (const DType format : kFormats) check_conversion(x, format);
}

TEST(Float8, RandomF32ConvertsAsBaseDoes) {
  const Random random(3, "bits");
  Buffer x(DType::f32, 1 << 15);
  for (int64_t i = 0; i < x.count(); ++i) {
    // Every other one near the range of the formats, where roundings and ties are.
    const uint64_t bits = random.bits(static_cast<uint64_t>(i));
    auto u = static_cast<uint32_t>(bits);
    if (i % 2 == 0) u = (u & 0x80ffffffU) | (100U + static_cast<uint32_t>(bits >> 32) % 48U) << 23;
    if (i % 8 == 0) u &= 0xfff80000U;  // ties
    static_cast<uint32_t*>(x.data())[i] = u;
  }
  for (const DType format : kFormats) check_conversion(x, format);
}

// Tiles of dims and the shapes of their scales.
struct Shape {
  std::vector<int64_t> dims, scales;
  int64_t scale_of(int64_t element) const {
    int64_t scale = 0, stride = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      scale += element % dims[d] / (dims[d] / scales[d]) * stride;
      element /= dims[d];
      stride *= scales[d];
    }
    return scale;
  }
};
int64_t product(const std::vector<int64_t>& v) {
  int64_t n = 1;
  for (const int64_t d : v) n *= d;
  return n;
}
const Shape kShapes[] = {
    {{3, 5, 37}, {1, 1, 1}},
    {{3, 5, 37}, {3, 5, 1}},
    {{3, 5, 37}, {1, 1, 37}},
    {{3, 5, 37}, {1, 5, 1}},
    {{4, 256}, {4, 2}},
    {{256, 96}, {2, 3}},
    {{6, 4, 8}, {1, 2, 8}},
    {{40000}, {1}},
    {{2, 40000}, {2, 1}},
    {{300, 200}, {1, 200}},
    {{7}, {7}},
    {{0, 4}, {1, 4}},
    {{3, 0}, {3, 1}},
    {{}, {}},
};

TEST(Float8, ScalesOfTilesAreTheirMembersOwn) {
  for (const Shape& s : kShapes) {
    const int64_t n = product(s.dims), count = product(s.scales);
    const Tiles tiles{s.dims, s.scales};
    for (const DType type : kEdgeTypes) {
      Buffer x(type, n, 1), g(type, n, 1), amax(type, count, 1);
      x.fill_normal(1, 3.0);
      g.fill_normal(2);
      std::vector<double> want(static_cast<size_t>(count));
      for (int64_t i = 0; i < n; ++i) {
        double& w = want[static_cast<size_t>(s.scale_of(i))];
        w = std::max(w, std::fabs(x.at(i)));
      }
      Buffer scale(type, count, 1), bound(type, count, 1);
      for (int64_t i = 0; i < count; ++i) {
        scale.set(i, 0.3 + 0.1 * static_cast<double>(i % 17));
        bound.set(i, 0.8 * want[static_cast<size_t>(i)]);
      }
      for (const Isa isa : available_isas()) {
        for (const int threads : {1, 3}) {
          TestThreads pool(threads);
          const RowKernels& kernels = row_kernels({isa});
          Workspace space(RowKernels::absmax_workspace(tiles, threads));
          kernels.absmax(tiles, {type, x.data()}, {type, amax.data()}, space.data(), pool);
          for (int64_t i = 0; i < count; ++i) ASSERT_EQ(amax.at(i), want[static_cast<size_t>(i)]) << i;

          Buffer q(DType::f8e4m3fn, n, 1), clipped(type, n, 1);
          kernels.quantize(tiles, {type, x.data()}, {type, scale.data()}, {q.dtype(), q.data()}, pool);
          kernels.clip_gradient(tiles, {type, g.data()}, {type, x.data()}, {type, bound.data()},
                                {type, clipped.data()}, pool);
          int64_t wrong = 0;
          for (int64_t i = 0; i < n; ++i) {
            float quotient = static_cast<float>(x.at(i)) / static_cast<float>(scale.at(s.scale_of(i)));
            if (type == DType::bf16) quotient = to_float(bf16(quotient));
            wrong += static_cast<uint8_t*>(q.data())[i] != f8e4m3fn_from_float(quotient);
            wrong += clipped.at(i) != (std::fabs(x.at(i)) <= bound.at(s.scale_of(i)) ? g.at(i) : 0.0);
          }
          EXPECT_EQ(wrong, 0) << isa_name(isa) << " " << dtype_name(type) << ", " << n << " elements, "
                              << count << " scales";
        }
      }
    }
  }
}

TEST(Float8, AbsmaxKeepsNan) {
  const int64_t n = 100, one = 1;
  Serial serial;
  for (const DType type : kEdgeTypes) {
    Buffer x(type, n), y(type, 1);
    x.fill_normal(1);
    x.set(40, std::numeric_limits<double>::infinity());
    x.set(71, -std::numeric_limits<double>::quiet_NaN());
    Workspace space(RowKernels::absmax_workspace({{&n, 1}, {&one, 1}}, 1));
    for (const Isa isa : available_isas()) {
      row_kernels({isa}).absmax({{&n, 1}, {&one, 1}}, {type, x.data()}, {type, y.data()}, space.data(),
                                serial);
      EXPECT_TRUE(std::isnan(y.at(0)));
    }
  }
}

std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const Isa isa : available_isas())
    for (const Bf16Dot dot : available_bf16_dots(isa)) all.push_back({isa, dot});
  return all;
}

// Operands of random codes, finite ones, and the same values in bf16.
struct Codes {
  Buffer codes, wide;
  Codes(DType format, int64_t n, uint64_t seed) : codes(format, n, 1), wide(DType::bf16, n, 1) {
    const Random random(seed, "codes");
    for (int64_t i = 0; i < n; ++i) {
      auto code = static_cast<uint8_t>(random.below(static_cast<uint64_t>(i), 256));
      if (!std::isfinite(f8e4m3fn_to_float(code)) || !std::isfinite(f8e5m2_to_float(code))) code = 1;
      static_cast<uint8_t*>(codes.data())[i] = code;
      wide.set(i, codes.at(i));
    }
  }
};

TEST(Float8, DotsAreThoseOfTheSameValuesInBf16) {
  struct Sizes {
    int64_t m, n, k;
  };
  for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{2, 40, 70}, Sizes{37, 50, 300}, Sizes{70, 19, 64}}) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const DType second : {DType::f8e4m3fn, DType::f8e5m2, DType::bf16}) {
          Gemm wide{.m = s.m, .n = s.n, .k = s.k, .trans_a = trans_a, .trans_b = trans_b};
          wide.a = wide.b = DType::bf16;
          wide.lda = (trans_a ? s.m : s.k) + 3;
          wide.ldb = (trans_b ? s.k : s.n) + 2;
          wide.ldc = s.n;
          Gemm narrow = wide;
          narrow.a = DType::f8e4m3fn;
          narrow.b = second;
          const Codes a(narrow.a, (trans_a ? s.k : s.m) * wide.lda, 1);
          const Codes b(second == DType::bf16 ? DType::f8e5m2 : second, (trans_b ? s.n : s.k) * wide.ldb, 2);
          ASSERT_TRUE(gemm_supported(narrow).ok());
          for (const Choice& choice : choices()) {
            Buffer want(DType::f32, s.m * s.n), got(DType::f32, s.m * s.n);
            Workspace space(std::max(gemm_workspace(wide, 2), gemm_workspace(narrow, 2)));
            TestThreads two(2);
            gemm(choice, wide, a.wide.data(), b.wide.data(), want.data(), space.data(), two);
            gemm(choice, narrow, a.codes.data(), second == DType::bf16 ? b.wide.data() : b.codes.data(),
                 got.data(), space.data(), two);
            EXPECT_TRUE(want.same_bits(got)) << isa_name(choice.isa) << " " << bf16_dot_name(choice.bf16_dot)
                                             << " " << s.m << "x" << s.n << "x" << s.k << trans_a << trans_b;
          }
        }
      }
    }
  }
}

TEST(Float8, NanAndInfinityAreWidened) {
  const Codes a(DType::f8e5m2, 64, 1);
  for (const Choice& choice : choices()) {
    for (const auto& [format, code] : {std::pair<DType, uint8_t>{DType::f8e4m3fn, 0x7f},
                                       {DType::f8e4m3fn, 0xff},
                                       {DType::f8e5m2, 0x7d},
                                       {DType::f8e5m2, 0xfc}}) {
      Gemm g{.m = 1, .n = 33, .k = 1, .a = format, .b = DType::f8e5m2, .lda = 1, .ldb = 33, .ldc = 33};
      Buffer c(DType::f32, 33);
      Workspace space(gemm_workspace(g, 1));
      gemm_serial(choice, g, &code, a.codes.data(), c.data(), space.data());
      const double x = load_as_double(format, &code, 0);
      for (int64_t j = 0; j < 33; ++j) {
        const double want = x * a.codes.at(j);
        EXPECT_TRUE(std::isnan(want) ? std::isnan(c.at(j)) : c.at(j) == want) << j;
      }
    }
  }
}

TEST(Float8, RowsAndColumnsAreScaledBeforeTheRounding) {
  for (const auto& [m, n, k] :
       {std::tuple<int64_t, int64_t, int64_t>{37, 50, 600}, {3, 40, 70}, {64, 33, 4100}}) {
    Gemm g{.m = m, .n = n, .k = k, .trans_b = true, .lda = k, .ldb = k, .ldc = n};
    g.a = DType::f8e4m3fn;
    g.b = DType::f8e5m2;
    const Codes a(g.a, m * k, 1), b(g.b, n * k, 2);
    Buffer rows(DType::f32, m), columns(DType::f32, n);
    rows.fill_normal(3);
    columns.fill_normal(4);
    for (const Choice& choice : choices()) {
      for (const DType type : kEdgeTypes) {
        Buffer sums(DType::f32, m * n), scaled(type, m * n, 1);
        Gemm plain = g, with = g;
        plain.c = DType::f32;
        with.c = type;
        with.row_scale = rows.floats();
        with.column_scale = columns.floats();
        Workspace space(std::max(gemm_workspace(plain, 2), gemm_workspace(with, 2)));
        TestThreads two(2);
        gemm(choice, plain, a.codes.data(), b.codes.data(), sums.data(), space.data(), two);
        gemm(choice, with, a.codes.data(), b.codes.data(), scaled.data(), space.data(), two);
        int64_t wrong = 0;
        for (int64_t i = 0; i < m * n; ++i) {
          const float want = sums.floats()[i] * rows.floats()[i / n] * columns.floats()[i % n];
          wrong += scaled.at(i) != (type == DType::f32 ? want : to_float(bf16(want)));
        }
        EXPECT_EQ(wrong, 0) << isa_name(choice.isa) << " " << bf16_dot_name(choice.bf16_dot);
      }
    }
  }
}

// A tile's sum is the product of its part of k, scaled; tiles are added in ascending order.
TEST(Float8, TilesOfKAreScaledByThemselves) {
  std::vector<Choice> all = choices();
  for (const Choice& c : choices())
    if (fp8_accumulation_refusal(Fp8Accumulation::fp16_64, c.isa) == nullptr)
      all.push_back({c.isa, c.bf16_dot, Fp8Accumulation::fp16_64});
  struct Sizes {
    int64_t m, n, k, tile;
  };
  for (const Sizes& s :
       {Sizes{37, 50, 384, 128}, {3, 40, 72, 24}, {70, 33, 2400, 96}, {16, 17, 9, 1}, {5, 90, 64, 64}}) {
    const auto& [m, n, k, tile] = s;
    Gemm g{.m = m, .n = n, .k = k, .trans_b = true, .lda = k, .ldb = k, .ldc = n};
    g.a = DType::f8e4m3fn;
    g.b = DType::f8e5m2;
    const Codes a(g.a, m * k, 1), b(g.b, n * k, 2);
    Buffer rows(DType::f32, k / tile * m), columns(DType::f32, k / tile * n);
    rows.fill_normal(3);
    columns.fill_normal(4);
    for (const Choice& choice : all) {
      std::vector<float> want(static_cast<size_t>(m * n));
      Gemm part = g;
      part.k = tile;
      Buffer sums(DType::f32, m * n);
      Workspace space(gemm_workspace(part, 1));
      for (int64_t t = 0; t < k / tile; ++t) {
        // Where the whole is fma's business because of its tiles, so is a part.
        const Bf16Dot dot = tile % 32 == 0 ? choice.bf16_dot : Bf16Dot::fma;
        gemm_serial({choice.isa, dot, choice.fp8_accumulation}, part,
                    static_cast<const char*>(a.codes.data()) + t * tile,
                    static_cast<const char*>(b.codes.data()) + t * tile, sums.data(), space.data());
        for (int64_t i = 0; i < m * n; ++i) {
          const float scaled =
              sums.floats()[i] * rows.floats()[t * m + i / n] * columns.floats()[t * n + i % n];
          want[static_cast<size_t>(i)] = t == 0 ? scaled : want[static_cast<size_t>(i)] + scaled;
        }
      }
      for (const bool across : {false, true}) {
        Gemm whole = g;
        whole.row_scale = rows.floats();
        whole.column_scale = columns.floats();
        whole.scale_k = tile;
        whole.c = across ? DType::bf16 : DType::f32;
        Codes at(g.a, m * k, 1);
        if (across) {
          whole.trans_a = true;
          whole.lda = m;
          for (int64_t i = 0; i < m; ++i)
            for (int64_t p = 0; p < k; ++p)
              static_cast<uint8_t*>(at.codes.data())[p * m + i] =
                  static_cast<const uint8_t*>(a.codes.data())[i * k + p];
        }
        ASSERT_TRUE(gemm_supported(whole).ok()) << gemm_supported(whole).message();
        Buffer got(whole.c, m * n, 1);
        Workspace workspace(gemm_workspace(whole, 2));
        TestThreads two(2);
        gemm(choice, whole, at.codes.data(), b.codes.data(), got.data(), workspace.data(), two);
        int64_t wrong = 0;
        for (int64_t i = 0; i < m * n; ++i) {
          const float w = want[static_cast<size_t>(i)];
          wrong += got.at(i) != (across ? to_float(bf16(w)) : w);
        }
        EXPECT_EQ(wrong, 0) << isa_name(choice.isa) << " " << bf16_dot_name(choice.bf16_dot) << " " << k
                            << " by " << tile << across;
      }
    }
  }
  Gemm g{.m = 1, .n = 1, .k = 8, .lda = 8, .ldb = 1, .ldc = 1, .scale_k = 4};
  EXPECT_NE(gemm_supported(g).message().find("scale_k is 4"), std::string::npos);
}

// By float8_stochastic's words, in double; the codes of neighbours are neighbours.
uint8_t by_chance(DType format, double x, uint32_t random) {
  const int mantissa = format == DType::f8e4m3fn ? 3 : 2, bias = format == DType::f8e4m3fn ? 7 : 15;
  const double limit = format == DType::f8e4m3fn ? 448 : 57344, a = std::fabs(x);
  if (!std::isfinite(x)) return by_base(format, static_cast<float>(x));
  const bool tiny = a < std::ldexp(1, 1 - bias);
  const double step = std::ldexp(1, (tiny ? 1 - bias : std::ilogb(a)) - mantissa);
  const double part =
      tiny ? std::ldexp(random >> 8, -24) : std::ldexp(random >> (9 + mantissa), mantissa - 23);
  return by_base(format,
                 static_cast<float>(std::copysign(std::min(std::floor(a / step + part) * step, limit), x)));
}

TEST(Float8, StochasticRoundingIsAFunctionOfItsCounter) {
  const Dims dims = {3, 5, 37};
  constexpr int64_t kRow = int64_t{5} * 37, kCount = 3 * kRow;
  const int32_t keys[] = {7, -1, 123456};
  constexpr uint64_t kStream = 0x123456789abcdef;
  for (const DType format : kFormats) {
    for (const DType type : kEdgeTypes) {
      Buffer x(type, kCount, 1), one(type, 1), each(type, kCount);
      x.fill_normal(4, 3);
      for (int64_t i = 0; i < kCount; i += 9) x.set(i, x.at(i) * (i % 2 == 0 ? 1e-3 : 1e6));
      x.set(3, std::numeric_limits<double>::infinity());
      x.set(4, std::numeric_limits<double>::quiet_NaN());
      one.set(0, 1);
      for (int64_t i = 0; i < kCount; ++i) each.set(i, 1);
      for (const Isa isa : available_isas()) {
        for (const Dims& scales : {Dims{1, 1, 1}, dims}) {
          std::vector<uint8_t> q(kCount);
          TestThreads two(2);
          row_kernels({isa}).quantize_stochastic({dims, scales}, {type, x.data()},
                                                 {type, scales == dims ? each.data() : one.data()}, keys,
                                                 kStream, {format, q.data()}, two);
          int64_t wrong = 0;
          for (int64_t i = 0; i < kCount; ++i) {
            const auto group = static_cast<uint32_t>(i % kRow / 4);
            const auto words =
                philox4x32({group, 0, static_cast<uint32_t>(keys[i / kRow]), 0},
                           {static_cast<uint32_t>(kStream), static_cast<uint32_t>(kStream >> 32)});
            const uint8_t got = q[static_cast<size_t>(i)];
            wrong += std::isnan(x.at(i))
                         ? !is_nan(format, got)
                         : got != by_chance(format, x.at(i), words[static_cast<size_t>(i % kRow % 4)]);
          }
          EXPECT_EQ(wrong, 0) << isa_name(isa) << " " << dtype_name(type) << " to " << dtype_name(format);
        }
      }
    }
  }
}

TEST(Float8, StochasticRoundingKeepsTheMean) {
  constexpr int64_t kCount = 1 << 16;
  const Dims dims = {1, kCount}, scales = {1, 1};
  const int32_t key = 5;
  for (const DType format : kFormats) {
    // Between neighbours, on one, below the smallest normal, and past the last.
    const double grid = format == DType::f8e4m3fn ? 0x1p-9 : 0x1p-16;
    const double largest = format == DType::f8e4m3fn ? 448 : 57344;
    for (const double value : {1.06, -300.25, 3.5, 2.3 * grid, 0.01 * grid, 2 * largest}) {
      Buffer x(DType::f32, kCount), one(DType::f32, 1);
      one.set(0, 1);
      for (int64_t i = 0; i < kCount; ++i) x.set(i, value);
      Buffer q(format, kCount);
      Serial serial;
      row_kernels({best_isa()})
          .quantize_stochastic({dims, scales}, {DType::f32, x.data()}, {DType::f32, one.data()}, &key, 1,
                               {format, q.data()}, serial);
      double sum = 0, least = q.at(0), most = q.at(0);
      for (int64_t i = 0; i < kCount; ++i) {
        sum += q.at(i);
        least = std::min(least, q.at(i));
        most = std::max(most, q.at(i));
      }
      const double want = std::clamp(value, -largest, largest);
      EXPECT_LE(least, want);
      EXPECT_GE(most, want);
      // Five standard deviations of the mean of so many draws between two neighbours.
      EXPECT_NEAR(sum / kCount, want, 5 * 0.5 * (most - least) / std::sqrt(kCount)) << value;
      if (value == 3.5 || value > largest) {
        EXPECT_EQ(least, most);
      }
    }
  }
}

}  // namespace
}  // namespace lignum::kernels
