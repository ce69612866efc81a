#include "kernels/cached_attention.h"

#include <cmath>
#include <vector>

#include "kernels/attention.h"
#include "kernels/kernel_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer;
using testing::Workspace;

struct Shape {
  int64_t batch, tokens, capacity, heads, kv_heads, dim;
  DType dtype;
  std::vector<int32_t> start, count;
  int64_t window = 0;
  float softcap = 0;
};

CachedAttention of(const Shape& s) {
  return {.batch = s.batch,
          .tokens = s.tokens,
          .capacity = s.capacity,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .dim = s.dim,
          .dtype = s.dtype,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.dim))),
          .window = s.window,
          .softcap = s.softcap};
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> kShapes = {
      {1, 1, 1, 1, 1, 8, DType::f32, {0}, {1}},
      {2, 1, 300, 6, 2, 64, DType::f32, {223, 224}, {1, 1}},
      {1, 1, 700, 5, 1, 37, DType::f32, {699}, {1}},  // two groups of heads, a dim of no vector's
      {1, 1, 40, 4, 4, 200, DType::f32, {30}, {1}},   // a dim of several steps
      {3, 3, 460, 4, 2, 16, DType::f32, {0, 447, 100}, {3, 3, 0}},
      {2, 9, 500, 6, 3, 24, DType::f32, {0, 440}, {9, 5}},  // tiles
      {1, 300, 600, 2, 1, 16, DType::f32, {250}, {300}},
      {2, 1, 300, 6, 2, 64, DType::bf16, {223, 290}, {1, 1}},
      {1, 2, 300, 3, 1, 20, DType::bf16, {229}, {2}},
      {1, 7, 300, 3, 1, 20, DType::bf16, {229}, {7}},
      {3, 1, 700, 4, 2, 16, DType::f32, {690, 300, 2}, {1, 1, 1}, 240},  // windows that begin inside a block
      {1, 1, 700, 4, 2, 16, DType::f32, {500}, {1}, 3, 2.0f},
      {2, 9, 500, 6, 3, 24, DType::f32, {0, 440}, {9, 5}, 5, 1.5f},
  };
  return kShapes;
}

struct Inputs {
  Buffer q, k, v;
  explicit Inputs(const Shape& s)
      : q(s.dtype, s.batch * s.tokens * s.heads * s.dim, 1),
        k(s.dtype, s.batch * s.capacity * s.kv_heads * s.dim, 1),
        v(s.dtype, s.batch * s.capacity * s.kv_heads * s.dim, 1) {
    q.fill_normal(1, 1.5);
    k.fill_normal(2, 1.5);
    v.fill_normal(3);
  }
};

Buffer run(Isa isa, const Shape& s, const Inputs& in, int threads) {
  const CachedAttention x = of(s);
  EXPECT_TRUE(cached_attention_supported(x).ok());
  EXPECT_TRUE(cached_rows_fit(s.batch, s.tokens, s.capacity, s.start.data(), s.count.data()).ok());
  Buffer out(s.dtype, in.q.count(), 1);
  Workspace workspace(cached_attention_workspace(x, threads));
  TestThreads pool(threads);
  cached_attention(Choice{isa}, x, in.q.data(), in.k.data(), in.v.data(), s.start.data(), s.count.data(),
                   out.data(), workspace.data(), pool);
  return out;
}

class CachedAttentionOnIsa : public ::testing::TestWithParam<Isa> {};

// Each token as the last of a sequence of its own, by attention.h, whose tests know the definition.
TEST_P(CachedAttentionOnIsa, BitsAreThoseOfTheWholeSequence) {
  for (const Shape& s : shapes()) {
    const Inputs in(s);
    const Buffer got = run(GetParam(), s, in, 1);
    EXPECT_TRUE(run(GetParam(), s, in, 2).same_bits(got)) << "two threads give other bits";
    for (int64_t b = 0; b < s.batch; ++b) {
      const auto bytes = [&](const Buffer& from, int64_t element) {
        return static_cast<const char*>(from.data()) + element * dtype_size(s.dtype);
      };
      for (int64_t t = 0; t < s.tokens; t += s.tokens > 100 ? 97 : 1) {
        const int64_t token = s.heads * s.dim, at = (b * s.tokens + t) * token;
        if (t >= s.count[static_cast<size_t>(b)]) {
          for (int64_t i = 0; i < token; ++i) ASSERT_EQ(got.at(at + i), 0) << "padding";
          continue;
        }
        Attention whole{.batch = 1,
                        .queries = s.start[static_cast<size_t>(b)] + t + 1,
                        .keys = s.start[static_cast<size_t>(b)] + t + 1,
                        .heads = s.heads,
                        .kv_heads = s.kv_heads,
                        .dim = s.dim,
                        .dtype = s.dtype,
                        .scale = of(s).scale,
                        .causal = true,
                        .window = s.window,
                        .softcap = s.softcap};
        const int64_t last = (whole.keys - 1) * token;
        Buffer q(s.dtype, whole.keys * token), out(s.dtype, whole.keys * token),
            lse(DType::f32, whole.keys * s.heads);
        q.fill_normal(9);
        for (int64_t i = 0; i < token; ++i) q.set(last + i, in.q.at(at + i));
        Workspace workspace(attention_workspace(whole, 1));
        Serial serial;
        const int64_t cache = b * s.capacity * s.kv_heads * s.dim;
        attention(Choice{GetParam()}, whole, q.data(), bytes(in.k, cache), bytes(in.v, cache), out.data(),
                  lse.floats(), workspace.data(), serial);
        for (int64_t i = 0; i < token; ++i)
          ASSERT_EQ(got.at(at + i), out.at(last + i)) << "row " << b << " token " << t << " element " << i;
      }
    }
  }
}

TEST_P(CachedAttentionOnIsa, ReadsNoKeyPastTheToken) {
  for (const Shape& s : shapes()) {
    Inputs in(s);
    const Buffer clean = run(GetParam(), s, in, 1);
    const int64_t row = s.kv_heads * s.dim;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t used = int64_t{s.start[static_cast<size_t>(b)]} + s.count[static_cast<size_t>(b)];
      for (int64_t i = used * row; i < s.capacity * row; ++i) {
        in.k.set(b * s.capacity * row + i, NAN);
        in.v.set(b * s.capacity * row + i, NAN);
      }
    }
    EXPECT_TRUE(run(GetParam(), s, in, 1).same_bits(clean));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CachedAttentionOnIsa, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

TEST(CachedAttention, RowsThatDoNotFitAreRefused) {
  const auto fits = [](int32_t start, int32_t count) { return cached_rows_fit(1, 4, 10, &start, &count); };
  EXPECT_TRUE(fits(6, 4).ok());
  EXPECT_TRUE(fits(10, 0).ok());
  for (const auto& [start, count] : {std::pair{7, 4}, {-1, 1}, {0, 5}, {0, -1}}) {
    EXPECT_EQ(fits(start, count).code(), Code::user_error) << start << " " << count;
  }
}

}  // namespace
}  // namespace lignum::kernels
