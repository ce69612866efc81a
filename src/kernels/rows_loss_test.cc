#include "kernels/rows_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer, testing::expect_same_bits, testing::half_ulp, testing::kEdges, testing::kShapes;

// Random labels, every fifth ignored.
void fill_labels(Buffer& labels, int64_t vocab) {
  labels.below("labels", vocab);
  for (int64_t i = 2; i < labels.size(); i += 5) labels.set(i, kIgnoredLabel);
}

TEST(CrossEntropy, AgreesWithDouble) {
  Serial serial;
  for (DType type : kEdges) {
    for (auto [n, vocab] : kShapes) {
      for (double scale : {1.0, 30.0, 1e4}) {
        Buffer logits(type, n * vocab), labels(DType::i32, n), lse(DType::f32, n), dlogits(type, n * vocab);
        logits.normal("logits", scale);
        fill_labels(labels, vocab);
        float loss = -1;
        int32_t count = -1;
        const float seed = 0.75f;
        for (Isa isa : available_isas()) {
          const RowKernels& k = row_kernels({isa});
          ASSERT_TRUE(k.cross_entropy(n, vocab, logits.in(), labels.as<int32_t>(), &loss, &count,
                                      lse.as<float>(), serial)
                          .ok());
          k.cross_entropy_grad(n, vocab, logits.in(), labels.as<int32_t>(), lse.as<float>(), seed,
                               dlogits.out(), serial);
          double sum = 0, sum_size = 0;
          int32_t supervised = 0;
          for (int64_t row = 0; row < n; ++row) {
            double largest = -INFINITY, total = 0;
            for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, logits.get(row * vocab + i));
            for (int64_t i = 0; i < vocab; ++i) total += std::exp(logits.get(row * vocab + i) - largest);
            const double expected = largest + std::log(total);
            ASSERT_NEAR(lse.get(row), expected, std::fabs(expected) * 0x1p-24 + 1e-6);
            const auto label = static_cast<int64_t>(labels.get(row));
            if (label != kIgnoredLabel) {
              ++supervised;
              sum += expected - logits.get(row * vocab + label);
              sum_size += std::fabs(expected) + std::fabs(logits.get(row * vocab + label));
            }
            for (int64_t i = 0; i < vocab; ++i) {
              const double p = std::exp(logits.get(row * vocab + i) - lse.get(row));
              const double d =
                  label == kIgnoredLabel ? 0.0 : (p - (i == label ? 1 : 0)) * static_cast<double>(seed);
              // x - lse rounds once before the exponential.
              const double shift = std::fabs(logits.get(row * vocab + i) - lse.get(row));
              const double rounding = p * (shift + 4) * 0x1p-24 + 0x1p-24 * (i == label);
              ASSERT_NEAR(dlogits.get(row * vocab + i), d,
                          std::fabs(d) * half_ulp(type) + rounding + 0x1p-130);
            }
          }
          EXPECT_EQ(count, supervised);
          ASSERT_NEAR(loss, sum, std::fabs(sum) * 0x1p-24 + 2e-7 * supervised + sum_size * 1e-15);
        }
      }
    }
  }
}

TEST(CrossEntropy, SameBitsInPlace) {
  for (DType type : kEdges) {
    for (auto [n, vocab] : {testing::Shape{1, 37}, testing::Shape{4099, 7}, testing::Shape{37, 1211}}) {
      expect_same_bits([&, n = n, vocab = vocab](const RowKernels& k, Parallel& parallel, int64_t offset) {
        Buffer logits(type, n * vocab, offset), labels(DType::i32, n, offset), lse(DType::f32, n, offset);
        Buffer loss(DType::f32, 1, offset), count(DType::i32, 1, offset);
        logits.normal("logits", 5.0);
        fill_labels(labels, vocab);
        EXPECT_TRUE(k.cross_entropy(n, vocab, logits.in(), labels.as<int32_t>(), loss.as<float>(),
                                    count.as<int32_t>(), lse.as<float>(), parallel)
                        .ok());
        k.cross_entropy_grad(n, vocab, logits.in(), labels.as<int32_t>(), lse.as<float>(), 1.0f, logits.out(),
                             parallel);
        std::string bits;
        for (const Buffer* b : {&logits, &lse, &loss, &count}) b->append_to(bits);
        return bits;
      });
    }
  }
}

TEST(CrossEntropy, NanReachesTheLossAndWrongLabelsAreNamed) {
  Serial serial;
  const int64_t n = 3, vocab = 70;
  Buffer logits(DType::f32, n * vocab), labels(DType::i32, n), lse(DType::f32, n);
  logits.normal("logits");
  logits.set(vocab + 69, NAN);
  float loss = 0;
  int32_t count = 0;
  for (Isa isa : available_isas()) {
    const RowKernels& k = row_kernels({isa});
    labels.set(1, 0);
    ASSERT_TRUE(
        k.cross_entropy(n, vocab, logits.in(), labels.as<int32_t>(), &loss, &count, lse.as<float>(), serial)
            .ok());
    EXPECT_TRUE(std::isnan(loss));
    for (int64_t row = 0; row < n; ++row) EXPECT_EQ(std::isnan(lse.get(row)), row == 1);
    for (int32_t wrong : {70, -1, -99, -101}) {
      labels.set(1, wrong);
      loss = 42;
      const Status status = k.cross_entropy(n, vocab, logits.in(), labels.as<int32_t>(), &loss, &count,
                                            lse.as<float>(), serial);
      EXPECT_EQ(status.code(), Code::user_error);
      EXPECT_NE(status.message().find("label " + std::to_string(wrong) + " in row 1"), std::string::npos)
          << status.message();
      EXPECT_EQ(loss, 42.0f);
    }
  }
}

// A tile has the bits of cross_entropy and cross_entropy_grad, bf16 gradients those of f32 ones rounded.
TEST(CrossEntropy, TilesHaveTheBitsOfTheWhole) {
  Serial serial;
  const int64_t n = 37, vocab = 601, tile = 2 * kLossBlock;
  Buffer logits(DType::f32, n * vocab), labels(DType::i32, n), lse(DType::f32, n),
      whole(DType::f32, n * vocab);
  logits.normal("logits", 3);
  fill_labels(labels, vocab);
  const RowKernels& k = row_kernels({best_isa()});
  float loss = 0;
  int32_t count = 0;
  ASSERT_TRUE(
      k.cross_entropy(n, vocab, logits.in(), labels.as<int32_t>(), &loss, &count, lse.as<float>(), serial)
          .ok());
  EXPECT_EQ(RowKernels::count_labels(n, labels.as<int32_t>(), vocab).value(), count);
  k.cross_entropy_grad(n, vocab, logits.in(), labels.as<int32_t>(), lse.as<float>(), 1.0f, whole.out(),
                       serial);
  expect_same_bits([&](const RowKernels& kernels, Parallel& parallel, int64_t offset) {
    std::string bits;
    for (DType type : kEdges) {
      Buffer gradient(type, n * vocab, offset), rounded(type, n * vocab);
      std::vector<double> losses((n + kLossBlock - 1) / kLossBlock);
      for (int64_t row = 0; row < n; row += tile)
        kernels.cross_entropy_tile(std::min(tile, n - row), vocab, logits.as<float>() + row * vocab,
                                   labels.as<int32_t>() + row, losses.data() + row / kLossBlock,
                                   {type, gradient.as<char>() + row * vocab * dtype_size(type)}, vocab,
                                   parallel);
      kernels.convert(n * vocab, whole.in(), rounded.out(), parallel);
      EXPECT_EQ(std::memcmp(gradient.data(), rounded.data(), static_cast<size_t>(rounded.bytes())), 0);
      double sum = 0;
      for (const double l : losses) sum += l;
      EXPECT_EQ(static_cast<float>(sum), loss);
      gradient.append_to(bits);
      // The loss alone.
      kernels.cross_entropy_tile(tile, vocab, logits.as<float>(), labels.as<int32_t>(), losses.data(),
                                 {type, nullptr}, vocab, parallel);
    }
    return bits;
  });
  // In place, bf16 rows at the beginning of f32 ones.
  for (Isa isa : available_isas()) {
    for (DType type : kEdges) {
      Buffer in_place(DType::f32, n * vocab), rounded(type, n * vocab);
      std::memcpy(in_place.data(), logits.data(), static_cast<size_t>(logits.bytes()));
      std::vector<double> losses(n);
      row_kernels({isa}).cross_entropy_tile(n, vocab, in_place.as<float>(), labels.as<int32_t>(),
                                            losses.data(), {type, in_place.data()},
                                            vocab * 4 / dtype_size(type), serial);
      k.convert(n * vocab, whole.in(), rounded.out(), serial);
      const int64_t bytes = vocab * dtype_size(type);
      for (int64_t row = 0; row < n; ++row)
        EXPECT_EQ(std::memcmp(in_place.as<char>() + row * vocab * 4, rounded.as<char>() + row * bytes,
                              static_cast<size_t>(bytes)),
                  0);
    }
  }
}

TEST(CrossEntropy, AllIgnored) {
  Serial serial;
  Buffer logits(DType::f32, 6), labels(DType::i32, 2), lse(DType::f32, 2), dlogits(DType::f32, 6);
  logits.normal("logits");
  dlogits.normal("garbage");
  labels.set(0, kIgnoredLabel);
  labels.set(1, kIgnoredLabel);
  float loss = -1;
  int32_t count = -1;
  const RowKernels& k = row_kernels({best_isa()});
  ASSERT_TRUE(
      k.cross_entropy(2, 3, logits.in(), labels.as<int32_t>(), &loss, &count, lse.as<float>(), serial).ok());
  EXPECT_EQ(loss, 0.0f);
  EXPECT_EQ(count, 0);
  k.cross_entropy_grad(2, 3, logits.in(), labels.as<int32_t>(), lse.as<float>(), 1.0f, dlogits.out(), serial);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(dlogits.get(i), 0.0);
}

TEST(Embed, CopiesRowsAndNamesWrongIds) {
  Serial serial;
  const int64_t vocab = 11, width = 37, n = 50;
  for (DType type : kEdges) {
    for (DType out_type : kEdges) {
      Buffer table(type, vocab * width), ids(DType::i32, n), out(out_type, n * width), expected(out_type, 1);
      table.normal("table");
      ids.below("ids", vocab);
      const RowKernels& k = row_kernels({best_isa()});
      ASSERT_TRUE(k.embed(vocab, width, n, table.in(), ids.as<int32_t>(), out.out(), serial).ok());
      for (int64_t i = 0; i < n * width; ++i) {
        expected.set(0, table.get(static_cast<int64_t>(ids.get(i / width)) * width + i % width));
        ASSERT_EQ(out.get(i), expected.get(0));
      }
      for (int32_t wrong : {-1, 11}) {
        ids.set(7, wrong);
        std::vector<double> workspace(static_cast<size_t>(RowKernels::embed_grad_workspace(vocab, n)) / 8 +
                                      1);
        for (const Status& status :
             {k.embed(vocab, width, n, table.in(), ids.as<int32_t>(), out.out(), serial),
              k.embed_grad(vocab, width, n, out.in(), ids.as<int32_t>(), table.out(), workspace.data(),
                           serial)}) {
          EXPECT_EQ(status.code(), Code::user_error);
          EXPECT_NE(status.message().find("token id " + std::to_string(wrong) + " in row 7"),
                    std::string::npos)
              << status.message();
        }
      }
    }
  }
}

// The order is part of the contract: f32, ascending rows, rounded once.
TEST(EmbedGrad, HasTheStatedOrder) {
  struct Case {
    int64_t vocab, width, n, distinct;
  };
  for (Case c : {Case{1, 1, 1, 1}, Case{300, 37, 211, 300}, Case{70, 1031, 100, 3}, Case{5, 64, 400, 1},
                 Case{129, 3, 0, 1}}) {
    for (DType type : kEdges) {
      for (DType table_type : kEdges) {
        Buffer dy(type, c.n * c.width), ids(DType::i32, c.n), expected(table_type, c.vocab * c.width);
        dy.normal("dy");
        ids.below("ids", c.distinct);
        std::vector<float> sums(static_cast<size_t>(c.vocab * c.width));
        for (int64_t i = 0; i < c.n * c.width; ++i) {
          sums[static_cast<size_t>(ids.get(i / c.width)) * static_cast<size_t>(c.width) +
               static_cast<size_t>(i % c.width)] += static_cast<float>(dy.get(i));
        }
        for (int64_t i = 0; i < c.vocab * c.width; ++i) expected.set(i, sums[static_cast<size_t>(i)]);
        std::string golden;
        expected.append_to(golden);
        expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
          Buffer table(table_type, c.vocab * c.width, offset);
          table.normal("garbage");
          std::vector<double> workspace(
              static_cast<size_t>(RowKernels::embed_grad_workspace(c.vocab, c.n)) / 8 + 1);
          EXPECT_TRUE(k.embed_grad(c.vocab, c.width, c.n, dy.in(), ids.as<int32_t>(), table.out(),
                                   workspace.data(), parallel)
                          .ok());
          std::string bits;
          table.append_to(bits);
          EXPECT_TRUE(bits == golden) << c.vocab << " " << c.width << " " << c.n;
          return bits;
        });
      }
    }
  }
}

TEST(SumSquares, AgreesWithDoubleWithTheSameBits) {
  for (DType type : kEdges) {
    for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, 3 * kElementBlock + 211}) {
      expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
        Buffer x(type, n, offset);
        x.normal("x");
        double expected = 0;
        for (int64_t i = 0; i < n; ++i) expected += x.get(i) * x.get(i);
        const double sum = k.sum_squares(n, x.in(), parallel);
        EXPECT_NEAR(sum, expected, expected * 1e-13);
        return std::string(reinterpret_cast<const char*>(&sum), sizeof sum);
      });
    }
  }
  // f32 squares would overflow.
  Serial serial;
  const float big[2] = {1e30f, -1e30f};
  EXPECT_NEAR(row_kernels({best_isa()}).sum_squares(2, big, serial), 2e60, 1e54);
}

TEST(FindNonfinite, IsTheFirst) {
  TestThreads threads(3);
  for (DType type : kEdges) {
    const int64_t n = 3 * kElementBlock + 37;
    Buffer x(type, n, 1);
    x.normal("x");
    for (Isa isa : available_isas()) {
      const RowKernels& k = row_kernels({isa});
      EXPECT_EQ(k.find_nonfinite(n, x.in(), threads), -1);
      EXPECT_EQ(k.find_nonfinite(0, x.in(), threads), -1);
      for (double bad : {static_cast<double>(NAN), -static_cast<double>(INFINITY)}) {
        for (int64_t at : {n - 1, 2 * kElementBlock, kElementBlock - 1, int64_t{0}}) {
          Buffer y(type, n);
          std::memcpy(y.data(), x.data(), static_cast<size_t>(x.bytes()));
          y.set(n - 1, NAN);
          y.set(at, bad);
          EXPECT_EQ(k.find_nonfinite(n, y.in(), threads), at);
        }
      }
    }
  }
}

TEST(AdamW, AgreesWithDouble) {
  Serial serial;
  const int64_t n = 211;
  Buffer p(DType::f32, n), m(DType::f32, n), v(DType::f32, n), g(DType::f32, n);
  p.normal("p");
  std::vector<double> dp(n), dm(n), dv(n);
  for (int64_t i = 0; i < n; ++i) dp[static_cast<size_t>(i)] = p.get(i);
  const RowKernels& k = row_kernels({best_isa()});
  for (int step = 1; step <= 10; ++step) {
    g.normal("g" + std::to_string(step), std::pow(10.0, step % 5 - 4));
    AdamW a{.learning_rate = 1e-2 / step, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    a.correction1 = 1 - std::pow(a.beta1, step);
    a.correction2 = 1 - std::pow(a.beta2, step);
    a.grad_scale = 0.5;
    k.adamw(a, n, p.as<float>(), m.out(), v.out(), g.as<float>(), serial);
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      const double gradient = g.get(i) * a.grad_scale;
      dm[at] = a.beta1 * dm[at] + (1 - a.beta1) * gradient;
      dv[at] = a.beta2 * dv[at] + (1 - a.beta2) * gradient * gradient;
      dp[at] -= a.learning_rate * (dm[at] / a.correction1 / (std::sqrt(dv[at] / a.correction2) + a.eps) +
                                   a.weight_decay * dp[at]);
      // Ten steps' roundings of p itself; m may cancel, so its bound is against the gradients' size.
      ASSERT_NEAR(p.get(i), dp[at], step * (std::fabs(dp[at]) + 1) * 0x1p-23) << step;
      ASSERT_NEAR(v.get(i), dv[at], dv[at] * 6 * step * 0x1p-24);
    }
  }
}

TEST(AdamW, SameBitsAndNanStays) {
  const AdamW a{.learning_rate = 1e-3, .weight_decay = 0.1, .correction1 = 0.1, .correction2 = 0.05};
  for (int64_t n : {int64_t{1}, int64_t{37}, int64_t{40001}}) {
    expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
      std::string bits;
      for (const auto& [first, second] : {std::pair{DType::f32, DType::f32},
                                          {DType::bf16, DType::f32},
                                          {DType::f32, DType::bf16},
                                          {DType::bf16, DType::bf16}}) {
        Buffer p(DType::f32, n, offset), m(first, n, offset), v(second, n, offset), g(DType::f32, n, offset);
        p.normal("p");
        g.normal("g");
        for (int step = 0; step < 3; ++step)
          k.adamw(a, n, p.as<float>(), m.out(), v.out(), g.as<float>(), parallel);
        for (const Buffer* b : {&p, &m, &v}) b->append_to(bits);
      }
      return bits;
    });
  }
  Serial serial;
  Buffer p(DType::f32, 40), m(DType::f32, 40), v(DType::f32, 40), g(DType::f32, 40);
  p.normal("p");
  g.set(17, NAN);
  row_kernels({best_isa()}).adamw(a, 40, p.as<float>(), m.out(), v.out(), g.as<float>(), serial);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(p.get(i)), i == 17);
}

TEST(Sgd, HasTheBitsOfItsFormula) {
  const float learning_rate = 0.125F, momentum = 0.875F, scale = 0.5F;
  for (const bool nesterov : {false, true}) {
    const Sgd s{learning_rate, momentum, nesterov, scale};
    for (int64_t n : {int64_t{1}, int64_t{37}, int64_t{40001}}) {
      expect_same_bits([&](const RowKernels& k, Parallel& parallel, int64_t offset) {
        Buffer p(DType::f32, n, offset), trace(DType::f32, n, offset), g(DType::f32, n, offset),
            plain(DType::f32, n, offset);
        for (Buffer* b : {&p, &plain}) b->normal("p");
        g.normal("g");
        for (int step = 0; step < 3; ++step) {
          const float gradient = static_cast<float>(g.get(n / 2)) * scale,
                      before = static_cast<float>(p.get(n / 2)),
                      sum = gradient + momentum * static_cast<float>(trace.get(n / 2));
          k.sgd(s, n, p.as<float>(), trace.as<float>(), g.as<float>(), parallel);
          k.sgd(s, n, plain.as<float>(), nullptr, g.as<float>(), parallel);
          EXPECT_EQ(static_cast<float>(trace.get(n / 2)), sum);
          EXPECT_EQ(static_cast<float>(p.get(n / 2)),
                    before - learning_rate * (nesterov ? gradient + momentum * sum : sum));
        }
        std::string bits;
        for (const Buffer* b : {&p, &trace, &plain}) b->append_to(bits);
        return bits;
      });
    }
  }
}

}  // namespace
}  // namespace lignum::kernels
