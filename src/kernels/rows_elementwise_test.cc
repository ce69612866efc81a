#include <cmath>
#include <functional>
#include <limits>

#include "kernels/rows_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer, testing::expect_same_bits, testing::half_ulp, testing::kEdges;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kN = 1037;

// Ordinary values with every kind of special one among them.
void fill_values(Buffer& b, std::string_view stream) {
  b.normal(stream, 3.0);
  const double specials[] = {0.0,     -0.0,    1.0,  -1.0,  kInf,   -kInf, NAN,   0x1p-126, -0x1p-133,
                             0x1p127, 0x1p-60, 88.7, -87.4, -103.5, 1e30,  -1e30, 0.5,      100.0};
  // Each stream starts elsewhere, so that pairs differ.
  const int64_t shift = static_cast<int64_t>(stream.size());
  for (int64_t i = 0; i < b.size() && b.size() > 100; i += 3)
    b.set(i, specials[(i / 3 * shift + i / 54) % 18]);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

struct Unary {
  Elementwise fn;
  std::function<double(double)> reference;
  double ulps;  // of f32 that the kernel may be off before rounding; 0: equal
};

TEST(ElementwiseKernels, UnaryAgreeWithDouble) {
  const Unary cases[] = {
      {Elementwise::neg, [](double x) { return -x; }, 0},
      {Elementwise::abs, [](double x) { return std::fabs(x); }, 0},
      {Elementwise::exp, [](double x) { return std::exp(x); }, 1},
      {Elementwise::log, [](double x) { return std::log(x); }, 0.51},
      {Elementwise::sqrt, [](double x) { return std::sqrt(x); }, 0.51},
      {Elementwise::rsqrt, [](double x) { return 1 / std::sqrt(x); }, 1.5},
      {Elementwise::logistic, [](double x) { return 1 / (1 + std::exp(-x)); }, 2.5},
      {Elementwise::tanh, [](double x) { return std::tanh(x); }, 2.5},
      {Elementwise::sin, [](double x) { return std::sin(x); }, 0.51},
      {Elementwise::cos, [](double x) { return std::cos(x); }, 0.51},
  };
  Serial serial;
  for (DType type : kEdges) {
    Buffer x(type, kN), y(type, kN);
    fill_values(x, "x");
    for (Isa isa : available_isas()) {
      for (const Unary& c : cases) {
        row_kernels({isa}).elementwise(c.fn, type, kN, x.data(), nullptr, nullptr, y.data(), serial);
        for (int64_t i = 0; i < kN; ++i) {
          const double expected = c.reference(x.get(i));
          // Past the largest finite value of the type, by rounding, is infinity.
          const double largest = type == DType::bf16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
          if (std::isnan(expected) || std::fabs(expected) > largest || c.ulps == 0) {
            const bool overflow = std::isinf(y.get(i)) && std::fabs(expected) > largest;
            ASSERT_TRUE(same(y.get(i), expected) || overflow)
                << static_cast<int>(c.fn) << "(" << x.get(i) << ") = " << y.get(i);
            continue;
          }
          const double bound =
              std::fabs(expected) * ((type == DType::bf16 ? 0x1p-8 : 0.0) + c.ulps * 0x1p-23);
          const double denormal = type == DType::bf16 ? 0x1p-133 : 0x1p-149;
          ASSERT_NEAR(y.get(i), expected, bound + denormal)
              << static_cast<int>(c.fn) << "(" << x.get(i) << ")";
        }
      }
    }
  }
}

TEST(ElementwiseKernels, BinaryAreRoundedOnce) {
  Serial serial;
  const auto larger = [](float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); };
  const auto smaller = [](float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); };
  const std::pair<Elementwise, std::function<float(float, float)>> cases[] = {
      {Elementwise::add, std::plus<>()},
      {Elementwise::sub, std::minus<>()},
      {Elementwise::mul, std::multiplies<>()},
      {Elementwise::div, std::divides<>()},
      {Elementwise::max, larger},
      {Elementwise::min, smaller},
  };
  for (DType type : kEdges) {
    Buffer a(type, kN), b(type, kN), y(type, kN), expected(type, 1);
    fill_values(a, "a");
    fill_values(b, "bcdef");
    for (Isa isa : available_isas()) {
      for (const auto& [fn, reference] : cases) {
        row_kernels({isa}).elementwise(fn, type, kN, a.data(), b.data(), nullptr, y.data(), serial);
        for (int64_t i = 0; i < kN; ++i) {
          expected.set(0, reference(static_cast<float>(a.get(i)), static_cast<float>(b.get(i))));
          ASSERT_TRUE(same(y.get(i), expected.get(0)))
              << isa_name(isa) << " " << static_cast<int>(fn) << "(" << a.get(i) << ", " << b.get(i)
              << ") = " << y.get(i) << ", not " << expected.get(0);
        }
      }
    }
  }
}

TEST(ElementwiseKernels, CompareAndSelect) {
  Serial serial;
  const std::pair<Elementwise, std::function<bool(double, double)>> cases[] = {
      {Elementwise::eq, std::equal_to<>()}, {Elementwise::ne, std::not_equal_to<>()},
      {Elementwise::lt, std::less<>()},     {Elementwise::le, std::less_equal<>()},
      {Elementwise::gt, std::greater<>()},  {Elementwise::ge, std::greater_equal<>()},
  };
  for (DType type : {DType::f32, DType::bf16, DType::i32}) {
    Buffer a(type, kN), b(type, kN), y(type, kN), pred(DType::pred, kN);
    if (type == DType::i32) {
      a.below("a", 5);
      b.below("b", 5);
    } else {
      fill_values(a, "a");
      fill_values(b, "bcdef");
    }
    for (Isa isa : available_isas()) {
      const RowKernels& k = row_kernels({isa});
      for (const auto& [fn, reference] : cases) {
        k.elementwise(fn, type, kN, a.data(), b.data(), nullptr, pred.data(), serial);
        k.elementwise(Elementwise::select, type, kN, pred.data(), a.data(), b.data(), y.data(), serial);
        for (int64_t i = 0; i < kN; ++i) {
          const bool expected = reference(a.get(i), b.get(i));
          ASSERT_EQ(pred.as<uint8_t>()[i], expected ? 1 : 0) << static_cast<int>(fn);
          ASSERT_TRUE(same(y.get(i), expected ? a.get(i) : b.get(i)));
        }
      }
    }
  }
}

TEST(ElementwiseKernels, IntegersWrap) {
  Serial serial;
  const int32_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
  const int32_t a[] = {7, -7, most, least, least, 5, 0, 65536};
  const int32_t b[] = {2, 2, 1, -1, 1, 0, 0, 65536};
  struct {
    Elementwise fn;
    int32_t expected[8];
  } const cases[] = {
      {Elementwise::add, {9, -5, least, most, least + 1, 5, 0, 131072}},
      {Elementwise::sub, {5, -9, most - 1, least + 1, most, 5, 0, 0}},
      {Elementwise::mul, {14, -14, most, least, least, 0, 0, 0}},
      {Elementwise::div, {3, -3, most, least, least, -1, -1, 1}},
      {Elementwise::max, {7, 2, most, -1, 1, 5, 0, 65536}},
      {Elementwise::min, {2, -7, 1, least, least, 0, 0, 65536}},
      {Elementwise::neg, {-7, 7, -most, least, least, -5, 0, -65536}},
      {Elementwise::abs, {7, 7, most, least, least, 5, 0, 65536}},
  };
  for (Isa isa : available_isas()) {
    for (const auto& c : cases) {
      int32_t y[8];
      row_kernels({isa}).elementwise(c.fn, DType::i32, 8, a, b, nullptr, y, serial);
      for (int i = 0; i < 8; ++i) EXPECT_EQ(y[i], c.expected[i]) << static_cast<int>(c.fn) << " of " << a[i];
    }
  }
}

TEST(ElementwiseKernels, SameBitsInPlace) {
  for (DType type : kEdges) {
    for (int64_t n : {int64_t{1}, int64_t{37}, int64_t{16384 + 211}}) {  // the last is two tasks
      Buffer a(type, n), b(type, n);
      a.normal("a");
      b.normal("b");
      // log and roots of negative numbers are NaN, whose sign is free.
      for (int64_t i = 0; i < n; ++i) a.set(i, std::fabs(a.get(i)));
      expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
        std::string bits;
        Buffer x(type, n, offset), y(type, n, offset);
        std::memcpy(y.data(), b.data(), static_cast<size_t>(b.bytes()));
        for (int fn = 0; fn <= static_cast<int>(Elementwise::min); ++fn) {
          std::memcpy(x.data(), a.data(), static_cast<size_t>(a.bytes()));
          k.elementwise(static_cast<Elementwise>(fn), type, n, x.data(), y.data(), nullptr, x.data(),
                        parallel);
          x.append_to(bits);
        }
        return bits;
      });
    }
  }
}

constexpr Activation kActivations[] = {Activation::silu, Activation::gelu_tanh};

TEST(Glu, AgreesWithDouble) {
  Serial serial;
  const double root = 2 * std::sqrt(2 / std::numbers::pi), cube = 0.044715;
  const RowKernels& k = row_kernels({best_isa()});
  for (const auto& [type, activation] :
       {std::pair(DType::f32, kActivations[0]), std::pair(DType::f32, kActivations[1]),
        std::pair(DType::bf16, kActivations[0]), std::pair(DType::bf16, kActivations[1])}) {
    const bool gelu = activation == Activation::gelu_tanh;
    for (int64_t n : {int64_t{1}, int64_t{37}, int64_t{20000}}) {
      Buffer gate(type, n), up(type, n), dy(type, n), y(type, n), dgate(type, n), dup(type, n);
      gate.normal("gate", 4.0);
      up.normal("up");
      dy.normal("dy");
      if (n > 37) {
        gate.set(0, 100.0);
        gate.set(1, -100.0);
        gate.set(2, 0.0);
      }
      k.glu(activation, n, gate.in(), up.in(), y.out(), serial);
      k.glu_grad(activation, n, dy.in(), gate.in(), up.in(), dgate.out(), dup.out(), serial);
      for (int64_t i = 0; i < n; ++i) {
        const double x = gate.get(i), u = up.get(i), g = dy.get(i);
        const double z = gelu ? root * (x + cube * x * x * x) : x;
        const double inner = gelu ? root * (1 + 3 * cube * x * x) : 1;
        const double s = 1 / (1 + std::exp(-z));
        // z's own error, a few ulps, moves s by a factor of e^that.
        const double relative = half_ulp(type) + (gelu ? 8 + 4 * std::fabs(z) : 8) * 0x1p-24;
        ASSERT_NEAR(y.get(i), x * s * u, std::fabs(x * s * u) * relative + 0x1p-126 * (1 + std::fabs(x * u)));
        ASSERT_NEAR(dup.get(i), g * x * s,
                    std::fabs(g * x * s) * relative + 0x1p-126 * (1 + std::fabs(g * x)));
        // 1 + x (1 - s) may cancel.
        const double slope = s * (1 + x * inner * (1 - s));
        const double size = s * (1 + std::fabs(x * inner * (1 - s)) + std::fabs(x * inner)) *
                            (gelu ? 1 + std::fabs(z) / 2 : 1);
        ASSERT_NEAR(dgate.get(i), g * u * slope,
                    std::fabs(g * u * slope) * half_ulp(type) + std::fabs(g * u) * size * 8 * 0x1p-24 +
                        0x1p-126 * (1 + std::fabs(g * u) * (1 + std::fabs(x * inner))));
      }
    }
  }
}

TEST(Glu, SameBitsInPlaceAndNanStays) {
  for (DType type : kEdges) {
    expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
      std::string bits;
      for (const Activation activation : kActivations) {
        const int64_t n = 40001;
        Buffer gate(type, n, offset), up(type, n, offset), dy(type, n, offset), y(type, n, offset);
        gate.normal("gate", 4.0);
        up.normal("up");
        dy.normal("dy");
        k.glu(activation, n, gate.in(), up.in(), y.out(), parallel);
        k.glu_grad(activation, n, dy.in(), gate.in(), up.in(), gate.out(), up.out(), parallel);
        for (const Buffer* b : {&y, &gate, &up}) b->append_to(bits);
      }
      return bits;
    });
  }
  Serial serial;
  Buffer gate(DType::f32, 40), up(DType::f32, 40), y(DType::f32, 40);
  gate.normal("gate");
  up.normal("up");
  gate.set(3, NAN);
  up.set(21, NAN);
  for (const Activation activation : kActivations)
    for (Isa isa : available_isas()) {
      row_kernels({isa}).glu(activation, 40, gate.in(), up.in(), y.out(), serial);
      for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(y.get(i)), i == 3 || i == 21) << i;
    }
}

// Of a NaN the sign and the payload are the compiler's: which operand of a product comes first.
void expect_same(const Buffer& got, const Buffer& expected, Isa isa) {
  for (int64_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(got.get(i)) && std::isnan(expected.get(i))) continue;
    ASSERT_EQ(got.get(i), expected.get(i)) << isa_name(isa) << " at " << i;
  }
}

TEST(Activation, IsGluWithAGateAlone) {
  Serial serial;
  const int64_t n = 20011;
  for (DType type : kEdges) {
    Buffer x(type, n, 1), one(type, n), dy(type, n, 1), y(type, n), dx(type, n), expected(type, n),
        dup(type, n);
    x.normal("x", 4.0);
    dy.normal("dy");
    x.set(3, NAN);
    x.set(4, 1e30);
    for (int64_t i = 0; i < n; ++i) one.set(i, 1);
    for (const Activation activation : kActivations) {
      for (Isa isa : available_isas()) {
        const RowKernels& k = row_kernels({isa});
        k.activation(activation, n, x.in(), y.out(), serial);
        k.glu(activation, n, x.in(), one.in(), expected.out(), serial);
        expect_same(y, expected, isa);
        k.activation_grad(activation, n, dy.in(), x.in(), dx.out(), serial);
        k.glu_grad(activation, n, dy.in(), x.in(), one.in(), expected.out(), dup.out(), serial);
        expect_same(dx, expected, isa);
      }
    }
  }
}

TEST(Convert, EightBitFormatsAreThoseOfBase) {
  Serial serial;
  // Each bf16 value, and random f32 bits.
  const int64_t n = 65536 + 200000;
  Buffer x(DType::f32, n);
  const Random random(5, "bits");
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<uint32_t>(random.bits(static_cast<uint64_t>(i)));
    // Every second random value near the formats' ranges.
    const uint32_t near = (bits & 0x80ffffffu) + ((96u + (bits >> 24) % 48u) << 23);
    x.as<uint32_t>()[i] = i < 65536 ? static_cast<uint32_t>(i) << 16 : i % 2 == 0 ? bits : near;
  }
  Buffer codes(DType::f8e4m3fn, 256), decoded(DType::f32, 256);
  for (int64_t i = 0; i < 256; ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(i);
  for (Isa isa : available_isas()) {
    const RowKernels& k = row_kernels({isa});
    for (DType type : {DType::f8e4m3fn, DType::f8e5m2, DType::bf16}) {
      Buffer y(type, n), expected(type, n);
      for (int64_t i = 0; i < n; ++i) expected.set(i, x.get(i));
      k.convert(n, x.in(), y.out(), serial);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_TRUE(same(y.get(i), expected.get(i)) &&
                    std::signbit(y.get(i)) == std::signbit(expected.get(i)))
            << dtype_name(type) << " of " << x.get(i) << ": " << y.get(i) << ", not " << expected.get(i);
      }
      if (type == DType::bf16) continue;
      k.convert(256, In(type, codes.data()), decoded.out(), serial);
      for (int64_t i = 0; i < 256; ++i) {
        const double expected_value = load_as_double(type, codes.data(), i);
        ASSERT_TRUE(same(decoded.get(i), expected_value)) << dtype_name(type) << " code " << i;
      }
    }
  }
}

TEST(Convert, IntegersPredicatesAndDouble) {
  Serial serial;
  const RowKernels& k = row_kernels({best_isa()});
  const double values[] = {0, -0.0, 1.9, -1.9, 3e9, -3e9, 1e300, -1e300, NAN, kInf, 255.5, 0.25};
  Buffer x(DType::f64, 12);
  for (int64_t i = 0; i < 12; ++i) x.set(i, values[i]);
  struct {
    DType type;
    double expected[12];
  } const cases[] = {
      {DType::i32,
       {0, 0, 1, -1, 2147483647., -2147483648., 2147483647., -2147483648., 0, 2147483647., 255, 0}},
      {DType::u32, {0, 0, 1, 0, 3e9, 0, 4294967295., 0, 0, 4294967295., 255, 0}},
      {DType::i64, {0, 0, 1, -1, 3e9, -3e9, 0x1p63, -0x1p63, 0, 0x1p63, 255, 0}},
      {DType::u8, {0, 0, 1, 0, 255, 0, 255, 0, 0, 255, 255, 0}},
      {DType::pred, {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
  };
  for (const auto& c : cases) {
    Buffer y(c.type, 12), back(DType::f32, 12);
    k.convert(12, x.in(), y.out(), serial);
    k.convert(12, y.in(), back.out(), serial);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(y.get(i), c.expected[i]) << dtype_name(c.type) << " of " << values[i];
      EXPECT_EQ(back.get(i), static_cast<double>(static_cast<float>(c.expected[i])));
    }
  }
  // double -> bf16 rounds once: 1 + 2^-8 + 2^-40 is above the tie that it would become in f32.
  Buffer tie(DType::f64, 1), y(DType::bf16, 1);
  tie.set(0, 1 + 0x1p-8 + 0x1p-40);
  k.convert(1, tie.in(), y.out(), serial);
  EXPECT_EQ(y.get(0), 1 + 0x1p-7);
}

}  // namespace
}  // namespace lignum::kernels
