#include "kernels/rows_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer, testing::expect_same_bits, testing::half_ulp, testing::kEdges, testing::kShapes;

constexpr float kEps = 1e-5f;

TEST(RmsNorm, AgreesWithDouble) {
  Serial serial;
  for (DType type : kEdges) {
    for (DType scale_type : kEdges) {
      for (auto [n, d] : kShapes) {
        Buffer x(type, n * d), scale(scale_type, d), y(type, n * d), rstd(DType::f32, n);
        x.normal("x");
        scale.normal("scale");
        row_kernels({best_isa()}).rms_norm(n, d, x.in(), scale.in(), kEps, y.out(), rstd.as<float>(), serial);
        // A lane sums d / 32 squares, then 5 levels; half of it under the root; 4 more roundings.
        const double relative = half_ulp(type) + (static_cast<double>(d) / 64 + 8) * 0x1p-24;
        for (int64_t row = 0; row < n; ++row) {
          double squares = 0;
          for (int64_t i = 0; i < d; ++i) squares += x.get(row * d + i) * x.get(row * d + i);
          const double r = 1 / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(kEps));
          EXPECT_NEAR(rstd.get(row), r, r * (static_cast<double>(d) / 64 + 6) * 0x1p-24);
          for (int64_t i = 0; i < d; ++i) {
            const double expected = x.get(row * d + i) * r * scale.get(i);
            ASSERT_NEAR(y.get(row * d + i), expected, std::fabs(expected) * relative)
                << n << "x" << d << " " << row;
          }
        }
      }
    }
  }
}

TEST(RmsNorm, SameBits) {
  for (DType type : kEdges) {
    for (auto [n, d] : kShapes) {
      expect_same_bits([&, n = n, d = d](const RowKernels& k, Parallel& parallel, int64_t offset) {
        Buffer x(type, n * d, offset), scale(DType::f32, d, offset), y(type, n * d, offset);
        Buffer rstd(DType::f32, n, offset), dy(type, n * d, offset), dscale(DType::f32, d, offset);
        x.normal("x");
        scale.normal("scale");
        dy.normal("dy");
        std::vector<double> workspace(static_cast<size_t>(RowKernels::rms_norm_grad_workspace(n, d)) / 8 + 1);
        k.rms_norm(n, d, x.in(), scale.in(), kEps, y.out(), rstd.as<float>(), parallel);
        // dx in place of dy.
        k.rms_norm_grad(n, d, dy.in(), x.in(), scale.in(), rstd.as<float>(), dy.out(), dscale.out(),
                        workspace.data(), parallel);
        std::string bits;
        for (const Buffer* b : {&y, &rstd, &dy, &dscale}) b->append_to(bits);
        return bits;
      });
    }
  }
}

TEST(RmsNorm, RowDoesNotDependOnOthersAndNanStaysInItsRow) {
  Serial serial;
  const int64_t n = 5, d = 211;
  Buffer x(DType::f32, n * d), scale(DType::f32, d), y(DType::f32, n * d), rstd(DType::f32, n);
  Buffer alone(DType::f32, d);
  x.normal("x");
  scale.normal("scale");
  x.set(1 * d + 200, NAN);
  for (Isa isa : available_isas()) {
    const RowKernels& k = row_kernels({isa});
    k.rms_norm(n, d, x.in(), scale.in(), kEps, y.out(), rstd.as<float>(), serial);
    k.rms_norm(1, d, x.as<float>() + 3 * d, scale.in(), kEps, alone.out(), rstd.as<float>(), serial);
    EXPECT_EQ(std::memcmp(y.as<std::byte>() + 3 * d * 4, alone.data(), static_cast<size_t>(d) * 4), 0)
        << isa_name(isa);
    for (int64_t i = 0; i < n * d; ++i) ASSERT_EQ(std::isnan(y.get(i)), i / d == 1) << i;
  }
}

TEST(RmsNormGrad, AgreesWithDouble) {
  Serial serial;
  for (DType type : kEdges) {
    for (DType scale_type : kEdges) {
      for (auto [n, d] : kShapes) {
        Buffer x(type, n * d), scale(scale_type, d), y(type, n * d), rstd(DType::f32, n);
        Buffer dy(type, n * d), dx(type, n * d), dscale(scale_type, d);
        x.normal("x");
        scale.normal("scale");
        dy.normal("dy");
        const RowKernels& k = row_kernels({best_isa()});
        std::vector<double> workspace(static_cast<size_t>(RowKernels::rms_norm_grad_workspace(n, d)) / 8 + 1);
        k.rms_norm(n, d, x.in(), scale.in(), kEps, y.out(), rstd.as<float>(), serial);
        k.rms_norm_grad(n, d, dy.in(), x.in(), scale.in(), rstd.as<float>(), dx.out(), dscale.out(),
                        workspace.data(), serial);
        std::vector<double> sums(static_cast<size_t>(d)), sizes(static_cast<size_t>(d));
        for (int64_t row = 0; row < n; ++row) {
          const double r = rstd.get(row);
          double mean = 0, size = 0;
          for (int64_t i = 0; i < d; ++i) {
            const double term =
                dy.get(row * d + i) * scale.get(i) * x.get(row * d + i) * r / static_cast<double>(d);
            mean += term;
            size += std::fabs(term);
          }
          for (int64_t i = 0; i < d; ++i) {
            const double xhat = x.get(row * d + i) * r;
            const double direct = dy.get(row * d + i) * scale.get(i);
            const double expected = r * (direct - xhat * mean);
            const double rounding = r * (std::fabs(direct) + std::fabs(xhat) * size) *
                                    (static_cast<double>(d) / 32 + 12) * 0x1p-24;
            ASSERT_NEAR(dx.get(row * d + i), expected, std::fabs(expected) * half_ulp(type) + rounding);
            sums[static_cast<size_t>(i)] += dy.get(row * d + i) * xhat;
            sizes[static_cast<size_t>(i)] += std::fabs(dy.get(row * d + i) * xhat);
          }
        }
        for (int64_t i = 0; i < d; ++i) {
          const double sum = sums[static_cast<size_t>(i)];
          ASSERT_NEAR(dscale.get(i), sum,
                      std::fabs(sum) * half_ulp(scale_type) + sizes[static_cast<size_t>(i)] * 64 * 0x1p-24);
        }
      }
    }
  }
}

// How near to double it is, ops_test sees.
TEST(LayerNorm, SameBits) {
  for (DType type : kEdges) {
    for (auto [n, d] : kShapes) {
      expect_same_bits([&, n = n, d = d](const RowKernels& k, Parallel& parallel, int64_t offset) {
        Buffer x(type, n * d, offset), scale(DType::f32, d, offset), bias(DType::f32, d, offset);
        Buffer y(type, n * d, offset), mean(DType::f32, n, offset), rstd(DType::f32, n, offset);
        Buffer dy(type, n * d, offset), dscale(DType::f32, d, offset), dbias(DType::f32, d, offset);
        x.normal("x");
        scale.normal("scale");
        bias.normal("bias");
        dy.normal("dy");
        std::vector<double> workspace(static_cast<size_t>(RowKernels::layer_norm_grad_workspace(n, d)) / 8 +
                                      1);
        k.layer_norm(n, d, x.in(), scale.in(), bias.in(), kEps, y.out(), mean.as<float>(), rstd.as<float>(),
                     parallel);
        // dx in place of dy.
        k.layer_norm_grad(n, d, dy.in(), x.in(), scale.in(), mean.as<float>(), rstd.as<float>(), dy.out(),
                          dscale.out(), dbias.out(), workspace.data(), parallel);
        std::string bits;
        for (const Buffer* b : {&y, &mean, &rstd, &dy, &dscale, &dbias}) b->append_to(bits);
        return bits;
      });
    }
  }
}

// A mean far from zero costs no digits: the second sum is of centred values.
TEST(LayerNorm, FarFromZero) {
  Serial serial;
  const int64_t d = 211;
  Buffer x(DType::f32, d), one(DType::f32, d), zero(DType::f32, d), y(DType::f32, d);
  Buffer mean(DType::f32, 1), rstd(DType::f32, 1);
  for (int64_t i = 0; i < d; ++i) {
    x.set(i, 4096 + static_cast<double>(i % 8) / 8);
    one.set(i, 1);
    zero.set(i, 0);
  }
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < d; ++i) sum += x.get(i) / static_cast<double>(d);
  for (int64_t i = 0; i < d; ++i) squares += (x.get(i) - sum) * (x.get(i) - sum) / static_cast<double>(d);
  row_kernels({best_isa()})
      .layer_norm(1, d, x.in(), one.in(), zero.in(), kEps, y.out(), mean.as<float>(), rstd.as<float>(),
                  serial);
  for (int64_t i = 0; i < d; ++i)  // the mean is one float off at most: 2^-11 of 4096
    ASSERT_NEAR(y.get(i), (x.get(i) - sum) / std::sqrt(squares + 1e-5), 0x1p-9);
}

TEST(Rope, AgreesWithDoubleAndInverseUndoesIt) {
  Serial serial;
  const float scaling = 1.25f;
  for (DType type : kEdges) {
    for (RopeShape shape : {RopeShape{1, 1, 1, 2}, RopeShape{2, 7, 3, 38}, RopeShape{1, 5, 2, 128}}) {
      const int64_t tokens = shape.batch * shape.seq, pairs = shape.dim / 2,
                    n = tokens * shape.heads * shape.dim;
      Buffer x(type, n), y(type, n), positions(DType::i32, tokens), inv_freq(DType::f64, pairs);
      x.normal("x");
      // Short, long, the longest, and a negative position.
      const double places[] = {0, 1, 131071, 2147483647, -3, 77, 8191};
      for (int64_t t = 0; t < tokens; ++t) positions.set(t, places[t % 7]);
      for (int64_t i = 0; i < pairs; ++i) {
        inv_freq.set(i, std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs)));
      }
      const RowKernels& k = row_kernels({best_isa()});
      k.rope(shape, x.in(), positions.as<int32_t>(), inv_freq.as<double>(), scaling, false, y.out(), serial);
      for (int64_t row = 0; row < tokens * shape.heads; ++row) {
        for (int64_t i = 0; i < pairs; ++i) {
          const float position = static_cast<float>(positions.get(row / shape.heads));
          const float angle = static_cast<float>(inv_freq.get(i)) * position;
          const double c = std::cos(static_cast<double>(angle)) * static_cast<double>(scaling);
          const double s = std::sin(static_cast<double>(angle)) * static_cast<double>(scaling);
          const double low = x.get(row * shape.dim + i), high = x.get(row * shape.dim + pairs + i);
          const double rounding = (std::fabs(low) + std::fabs(high)) * static_cast<double>(scaling) * 0x1p-22;
          const double first = low * c - high * s, second = high * c + low * s;
          ASSERT_NEAR(y.get(row * shape.dim + i), first, std::fabs(first) * half_ulp(type) + rounding);
          ASSERT_NEAR(y.get(row * shape.dim + pairs + i), second,
                      std::fabs(second) * half_ulp(type) + rounding);
        }
      }
      // In place; the inverse scales once more.
      k.rope(shape, y.in(), positions.as<int32_t>(), inv_freq.as<double>(), scaling, true, y.out(), serial);
      const double squared = static_cast<double>(scaling) * static_cast<double>(scaling);
      for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(y.get(i), squared * x.get(i), 20 * half_ulp(type));
    }
  }
}

TEST(Rope, AnglesAreRoundedFromDouble) {
  // One head of one pair: (1, 0) becomes (cos, sin), which must be the double functions' values, rounded.
  Serial serial;
  const float x[2] = {1.0f, 0.0f};
  const RowKernels& k = row_kernels({best_isa()});
  const Random random(3, "angles");
  int different = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const double frequency = std::exp2(-20.0 * random.uniform(2 * i));
    const auto position = static_cast<int32_t>(random.below(2 * i + 1, i % 2 == 0 ? 4096 : 2000000000));
    float y[2];
    k.rope({1, 1, 1, 2}, x, &position, &frequency, 1.0f, false, y, serial);
    const auto angle = static_cast<double>(static_cast<float>(frequency) * static_cast<float>(position));
    ASSERT_NEAR(y[0], std::cos(angle), 0x1p-24);
    ASSERT_NEAR(y[1], std::sin(angle), 0x1p-24);
    different += y[0] != static_cast<float>(std::cos(angle)) || y[1] != static_cast<float>(std::sin(angle));
  }
  EXPECT_LE(different, 1);
}

TEST(Rope, SameBits) {
  const RopeShape shape = {2, 37, 3, 38};
  for (DType type : kEdges) {
    expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
      const int64_t tokens = shape.batch * shape.seq, n = tokens * shape.heads * shape.dim;
      Buffer x(type, n, offset), y(type, n, offset), positions(DType::i32, tokens, offset);
      Buffer inv_freq(DType::f64, shape.dim / 2, offset);
      x.normal("x");
      positions.below("positions", 100000);
      for (int64_t i = 0; i < shape.dim / 2; ++i) inv_freq.set(i, std::exp2(-static_cast<double>(i)));
      k.rope(shape, x.in(), positions.as<int32_t>(), inv_freq.as<double>(), 1.0f, false, y.out(), parallel);
      std::string bits;
      y.append_to(bits);
      return bits;
    });
  }
}

TEST(AddBias, IsOneRoundedAddition) {
  Serial serial;
  for (DType type : kEdges) {
    for (DType bias_type : kEdges) {
      for (auto [n, d] : kShapes) {
        Buffer x(type, n * d), b(bias_type, d), y(type, n * d), expected(type, n * d);
        x.normal("x");
        b.normal("b");
        for (int64_t i = 0; i < n * d; ++i) {
          expected.set(i, static_cast<float>(x.get(i)) + static_cast<float>(b.get(i % d)));
        }
        for (Isa isa : available_isas()) {
          row_kernels({isa}).add_bias(n, d, x.in(), b.in(), y.out(), serial);
          EXPECT_EQ(std::memcmp(y.data(), expected.data(), static_cast<size_t>(y.bytes())), 0)
              << isa_name(isa);
        }
      }
    }
  }
}

// The order is part of the contract: f32 in a block of kRowBlock rows, double over blocks.
TEST(SumRows, HasTheStatedOrder) {
  TestThreads threads(2);
  for (DType type : kEdges) {
    for (DType out_type : kEdges) {
      for (auto [n, d] : kShapes) {
        Buffer x(type, n * d, 1), y(out_type, d, 1), expected(out_type, d);
        x.normal("x");
        for (int64_t i = 0; i < d; ++i) {
          double total = 0;
          for (int64_t block = 0; block < n; block += kRowBlock) {
            float partial = 0;
            for (int64_t row = block; row < std::min(n, block + kRowBlock); ++row) {
              partial += static_cast<float>(x.get(row * d + i));
            }
            total += static_cast<double>(partial);
          }
          expected.set(i, static_cast<float>(total));
        }
        for (Isa isa : available_isas()) {
          row_kernels({isa}).sum_rows(n, d, x.in(), y.out(), threads);
          EXPECT_EQ(std::memcmp(y.data(), expected.data(), static_cast<size_t>(y.bytes())), 0)
              << isa_name(isa) << " " << n << "x" << d;
        }
      }
    }
  }
}

TEST(RowKernels, EmptyTensors) {
  Serial serial;
  Buffer none(DType::f32, 0), scale(DType::f32, 37), sum(DType::f32, 37), rstd(DType::f32, 0);
  scale.normal("scale");
  sum.normal("sum");
  const RowKernels& k = row_kernels({best_isa()});
  k.rms_norm(0, 37, none.in(), scale.in(), kEps, none.out(), rstd.as<float>(), serial);
  k.rms_norm_grad(0, 37, none.in(), none.in(), scale.in(), rstd.as<float>(), none.out(), sum.out(), nullptr,
                  serial);
  for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(sum.get(i), 0.0);
  k.layer_norm(0, 37, none.in(), scale.in(), scale.in(), kEps, none.out(), rstd.as<float>(), rstd.as<float>(),
               serial);
  sum.normal("sum");
  k.sum_rows(0, 37, none.in(), sum.out(), serial);
  for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(sum.get(i), 0.0);
}

}  // namespace
}  // namespace lignum::kernels
