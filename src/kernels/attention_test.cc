#include "kernels/attention.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel_testing.h"

namespace lignum::kernels {
namespace {

using testing::Buffer;
using testing::Workspace;
using testing::Worst;

Attention make(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim, DType dtype,
               bool causal, int64_t window = 0, float softcap = 0) {
  return {.batch = batch,
          .queries = seq,
          .keys = seq,
          .heads = heads,
          .kv_heads = kv_heads,
          .dim = dim,
          .dtype = dtype,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))),
          .causal = causal,
          .window = window,
          .softcap = softcap};
}

std::string name(const Attention& x) {
  return "B" + std::to_string(x.batch) + " S" + std::to_string(x.queries) + "/" + std::to_string(x.keys) +
         " H" + std::to_string(x.heads) + "/" + std::to_string(x.kv_heads) + " D" + std::to_string(x.dim) +
         " " + std::string(dtype_name(x.dtype)) + (x.causal ? " causal" : "") +
         (x.window > 0 ? " window " + std::to_string(x.window) : "") +
         (x.softcap > 0 ? " softcap " + std::to_string(x.softcap) : "");
}

struct Case {
  Attention x;
  Buffer q, k, v, dout, out, lse, dq, dk, dv;
  std::vector<int32_t> query_segments, key_segments;  // empty: none
  std::vector<int32_t> query_starts, key_starts;      // empty: 0
  explicit Case(const Attention& shape, int skew = 1)
      : x(shape),
        q(x.dtype, queries(), skew),
        k(x.dtype, keys(), skew),
        v(x.dtype, keys(), skew),
        dout(x.dtype, queries(), skew),
        out(x.dtype, queries(), skew),
        lse(DType::f32, x.batch * x.heads * x.queries),
        dq(x.dtype, queries(), skew),
        dk(x.dtype, keys(), skew),
        dv(x.dtype, keys(), skew) {
    q.fill_normal(11, 1.5);
    k.fill_normal(12, 1.5);
    v.fill_normal(13);
    dout.fill_normal(14);
  }
  int64_t queries() const { return x.batch * x.queries * x.heads * x.dim; }
  int64_t keys() const { return x.batch * x.keys * x.kv_heads * x.dim; }
  int64_t row(int64_t b, int64_t s, int64_t h) const { return ((b * x.queries + s) * x.heads + h) * x.dim; }
  int64_t key(int64_t b, int64_t s, int64_t h) const {
    return ((b * x.keys + s) * x.kv_heads + h / (x.heads / x.kv_heads)) * x.dim;
  }

  static int64_t position(const std::vector<int32_t>& starts, int64_t i, int64_t count) {
    if (starts.empty()) return i;
    const int64_t length = count / static_cast<int64_t>(starts.size());
    return starts[i / length] + i % length;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t at = position(query_starts, i, x.queries), key = position(key_starts, j, x.keys);
    if (x.causal && key > at) return false;
    if (x.window > 0 && key <= at - x.window) return false;
    return query_segments.empty() || query_segments[b * x.queries + i] == key_segments[b * x.keys + j];
  }
  // Documents of `length` positions; every other row of the batch starts inside one.
  void cut(int64_t length) {
    const auto cut_all = [&](const std::vector<int32_t>& starts, int64_t count) {
      std::vector<int32_t> segments;
      for (int64_t b = 0; b < x.batch; ++b)
        for (int64_t i = 0; i < count; ++i)
          segments.push_back(
              static_cast<int32_t>((position(starts, i, count) + b % 2 * (length / 2)) / length));
      return segments;
    };
    query_segments = cut_all(query_starts, x.queries);
    key_segments = cut_all(key_starts, x.keys);
  }

  AttentionTokens tokens() const {
    const auto data = [](const std::vector<int32_t>& v) { return v.empty() ? nullptr : v.data(); };
    return {data(query_starts), data(key_starts), data(query_segments), data(key_segments)};
  }

  void forward(Choice choice, int threads = 1) {
    ASSERT_TRUE(attention_supported(x).ok()) << attention_supported(x).message();
    ASSERT_TRUE(tokens_supported(x, tokens()).ok()) << tokens_supported(x, tokens()).message();
    Workspace workspace(attention_workspace(x, threads));
    TestThreads pool(threads);
    attention(choice, x, q.data(), k.data(), v.data(), out.data(), lse.floats(), workspace.data(), pool,
              tokens());
  }
  void backward(Choice choice, int threads = 1) {
    Workspace workspace(attention_grad_workspace(x, threads));
    TestThreads pool(threads);
    attention_grad(choice, x, dout.data(), q.data(), k.data(), v.data(), out.data(), lse.floats(), dq.data(),
                   dk.data(), dv.data(), workspace.data(), pool, tokens());
  }
};

std::vector<double> doubles(const Buffer& from) {
  std::vector<double> all(static_cast<size_t>(from.count()));
  for (int64_t i = 0; i < from.count(); ++i) all[static_cast<size_t>(i)] = from.at(i);
  return all;
}

// The definition, in double, with the size of the terms of each sum beside it.
struct Reference {
  std::vector<double> out, lse, dq, dk, dv, out_size, dq_size, dk_size, dv_size;
};

Reference reference(const Case& c) {
  const Attention& x = c.x;
  const std::vector<double> q = doubles(c.q), k = doubles(c.k), v = doubles(c.v), dout = doubles(c.dout);
  Reference r;
  for (auto* field : {&r.out, &r.dq, &r.out_size, &r.dq_size}) field->assign(c.queries(), 0.0);
  for (auto* field : {&r.dk, &r.dv, &r.dk_size, &r.dv_size}) field->assign(c.keys(), 0.0);
  r.lse.assign(c.lse.count(), 0.0);
  std::vector<double> p(x.keys), slope(x.keys);
  for (int64_t b = 0; b < x.batch; ++b) {
    for (int64_t h = 0; h < x.heads; ++h) {
      for (int64_t i = 0; i < x.queries; ++i) {
        const int64_t row = c.row(b, i, h);
        std::vector<int64_t> seen;
        for (int64_t j = 0; j < x.keys; ++j)
          if (c.sees(b, i, j)) seen.push_back(j);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (const int64_t j : seen) {
          double score = 0;
          for (int64_t d = 0; d < x.dim; ++d) score += q[row + d] * k[c.key(b, j, h) + d];
          p[j] = score * x.scale;
          if (x.softcap > 0) p[j] = x.softcap * std::tanh(p[j] / x.softcap);
          slope[j] = x.softcap > 0 ? 1 - std::pow(p[j] / x.softcap, 2) : 1;
          largest = std::max(largest, p[j]);
        }
        for (const int64_t j : seen) sum += p[j] = std::exp(p[j] - largest);
        r.lse[(b * x.heads + h) * x.queries + i] = largest + std::log(sum);
        double delta = 0, delta_size = 0;
        for (int64_t d = 0; d < x.dim; ++d) {
          for (const int64_t j : seen) {
            const double term = p[j] / sum * v[c.key(b, j, h) + d];
            r.out[row + d] += term;
            r.out_size[row + d] += std::fabs(term);
          }
          delta += dout[row + d] * r.out[row + d];
          delta_size += std::fabs(dout[row + d]) * r.out_size[row + d];
        }
        for (const int64_t j : seen) {
          const int64_t key = c.key(b, j, h);
          double dp = 0, dp_size = 0;
          for (int64_t d = 0; d < x.dim; ++d) {
            const double term = dout[row + d] * v[key + d];
            dp += term;
            dp_size += std::fabs(term);
          }
          const double ds = p[j] / sum * (dp - delta) * x.scale * slope[j];
          const double ds_size = p[j] / sum * (dp_size + delta_size) * x.scale;
          for (int64_t d = 0; d < x.dim; ++d) {
            r.dv[key + d] += p[j] / sum * dout[row + d];
            r.dv_size[key + d] += p[j] / sum * std::fabs(dout[row + d]);
            r.dq[row + d] += ds * k[key + d];
            r.dq_size[row + d] += ds_size * std::fabs(k[key + d]);
            r.dk[key + d] += ds * q[row + d];
            r.dk_size[key + d] += ds_size * std::fabs(q[row + d]);
          }
        }
      }
    }
  }
  return r;
}

// Relative to the size of the terms: a score is off by (dim + 2) u |q| |k| scale, here |q| |k| scale <= 6
// sqrt(dim) for normal data of deviation 1.5, and that is p's relative error; chains add (seq + dim) u. bf16
// results add half an ulp, and through the rounded `out` (delta) half an ulp of the terms; so does the
// rounding of what goes into the second products, where bf16 dots are by pairs.
void check(const char* what, Choice choice, const Case& c, const Buffer& got, const std::vector<double>& want,
           const std::vector<double>& size, bool reads_out) {
  const bool pairs = c.x.dtype == DType::bf16 && choice.bf16_dot != Bf16Dot::fma;
  const double dim = static_cast<double>(c.x.dim);
  const int64_t heads_a_key = c.x.heads / c.x.kv_heads;
  const auto group = static_cast<double>(heads_a_key);
  const double relative =
      0x1p-24 * (6 * std::sqrt(dim) * (dim + 2) + group * static_cast<double>(c.x.keys) + dim + 16) +
      (reads_out ? testing::half_ulp(c.x.dtype) : 0.0) + (pairs ? testing::half_ulp(c.x.dtype) : 0.0);
  Worst worst;
  for (int64_t i = 0; i < got.count(); ++i) {
    worst.take(i, got.at(i), want[i],
               relative * size[i] + testing::half_ulp(c.x.dtype) * std::fabs(want[i]) * 1.01);
  }
  EXPECT_LE(worst.ratio, 1.0) << what << " of " << name(c.x) << ": " << worst.text();
}

std::vector<Attention> shapes() {
  std::vector<Attention> all;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool causal : {true, false}) {
      all.push_back(make(1, 1, 1, 1, 1, dtype, causal));
      all.push_back(make(1, 1, 8, 1, 64, dtype, causal));
      all.push_back(make(2, 37, 6, 2, 40, dtype, causal));
      all.push_back(make(1, 211, 2, 2, 33, dtype, causal));
      all.push_back(make(1, 225, 3, 1, 64, dtype, causal));
      all.push_back(make(1, 460, 1, 1, 20, dtype, causal));
    }
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    all.push_back(make(2, 37, 6, 2, 40, dtype, true, 5));
    all.push_back(make(1, 37, 2, 1, 8, dtype, true, 1));
    all.push_back(make(1, 700, 1, 1, 20, dtype, true, 225));  // a block that no query of the next one sees
    all.push_back(make(1, 460, 2, 1, 20, dtype, true, 30, 3.0f));
    all.push_back(make(1, 225, 3, 1, 64, dtype, true, 0, 5.0f));
    all.push_back(make(1, 37, 2, 2, 16, dtype, false, 0, 0.5f));
  }
  return all;
}

// Every ISA, and every way of bf16 dots with the one that has them.
std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (Isa isa : available_isas()) {
    for (Bf16Dot dot : available_bf16_dots(isa)) all.push_back({isa, dot});
  }
  return all;
}

class AttentionOnIsa : public ::testing::TestWithParam<Choice> {};

// out, lse and the gradients beside the definition.
void check_all(Choice choice, Case& c) {
  c.forward(choice);
  const Reference want = reference(c);
  check("out", choice, c, c.out, want.out, want.out_size, false);
  const double sizes = 6 * std::sqrt(static_cast<double>(c.x.dim)) * static_cast<double>(c.x.dim + 2);
  Worst worst;
  for (int64_t i = 0; i < c.lse.count(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(c.lse.at(i), want.lse[i]) << "lse " << i << " of " << name(c.x);
    } else {
      worst.take(i, c.lse.at(i), want.lse[i],
                 0x1p-24 * (sizes + static_cast<double>(c.x.keys) + 16 + std::fabs(want.lse[i])));
    }
  }
  EXPECT_LE(worst.ratio, 1.0) << "lse of " << name(c.x) << ": " << worst.text();
  c.backward(choice);
  check("dq", choice, c, c.dq, want.dq, want.dq_size, true);
  check("dk", choice, c, c.dk, want.dk, want.dk_size, true);
  check("dv", choice, c, c.dv, want.dv, want.dv_size, false);
}

TEST_P(AttentionOnIsa, AgreesWithDouble) {
  for (const Attention& x : shapes()) {
    Case c(x);
    check_all(GetParam(), c);
  }
}

// Queries and keys where a rank of several has them, some before all keys.
TEST_P(AttentionOnIsa, PiecesStandWhereTheyStart) {
  struct Pieces {
    int64_t queries, keys;
    std::vector<int32_t> query_starts, key_starts;
    int64_t window = 0;
    bool causal = true;
  };
  const std::vector<Pieces> all = {
      {40, 120, {80}, {}},                 // the last of three ranks
      {40, 120, {}, {}},                   // the first: keys after all queries
      {20, 30, {100}, {200}},              // nothing is seen
      {30, 60, {0, 45}, {0, 45, 15, 30}},  // halves of 2 ranks, gathered in the ranks' order
      {480, 240, {300, 10}, {100}},        // pieces of several blocks
      {60, 300, {250}, {}, 100},           // a window that reaches into the second block
      {40, 60, {30, 100}, {20, 0}, 15},    // some see nothing by the window
      {33, 70, {7}, {}, 0, false},         // all pairs
      {240, 20, {13}, {100}, 0, true},     // far more queries
  };
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const Pieces& p : all) {
      Attention x = make(2, p.queries, 2, 1, 5, dtype, p.causal, p.window);
      x.keys = p.keys;
      x.query_pieces = std::max<int64_t>(1, static_cast<int64_t>(p.query_starts.size()));
      x.key_pieces = std::max<int64_t>(1, static_cast<int64_t>(p.key_starts.size()));
      SCOPED_TRACE(
          fmt::format("queries {} keys {}", fmt::join(p.query_starts, ","), fmt::join(p.key_starts, ",")));
      for (const bool packed : {false, true}) {
        Case c(x);
        c.query_starts = p.query_starts;
        c.key_starts = p.key_starts;
        if (packed) c.cut(50);
        check_all(GetParam(), c);
      }
    }
  }
}

// Of keys in order a row has the bits that it has among all queries, whatever piece it stands in.
TEST_P(AttentionOnIsa, ARowHasTheBitsOfTheWholeSequence) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case all(make(1, 460, 2, 1, 16, dtype, true));
    Attention x = all.x;
    x.queries = 60;
    x.query_pieces = 2;
    Case part(x);
    part.query_starts = {70, 400};
    for (int64_t i = 0; i < part.q.count(); ++i) {
      const int64_t token = i / 32;
      part.q.set(i, all.q.at((token + (token < 30 ? 70 : 370)) * 32 + i % 32));
    }
    all.forward(GetParam());
    part.forward(GetParam(), 2);
    for (int64_t i = 0; i < part.out.count(); ++i) {
      const int64_t token = i / 32;
      ASSERT_EQ(part.out.at(i), all.out.at((token + (token < 30 ? 70 : 370)) * 32 + i % 32)) << i;
    }
  }
}

// Documents within blocks and over several, of one position, and numbers that come back later in the row.
TEST_P(AttentionOnIsa, DocumentsAreApart) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t length : {1, 7, 150, 300}) {
      Case c(make(2, 310, 2, 1, 8, dtype, length != 150));
      c.cut(length);
      check_all(GetParam(), c);
    }
    Case back(make(1, 370, 3, 1, 8, dtype, true)), window(make(1, 300, 2, 2, 8, dtype, true, 40, 4.0f));
    for (int32_t i = 0; i < 370; ++i) back.query_segments.push_back(i / 50 % 3 * (1 << 23));
    back.key_segments = back.query_segments;
    window.cut(90);
    check_all(GetParam(), back);
    check_all(GetParam(), window);
  }
}

// What another document holds changes no bit.
TEST_P(AttentionOnIsa, BitsDoNotDependOnOtherDocuments) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case c(make(1, 300, 2, 1, 16, dtype, true));
    c.cut(250);
    c.forward(GetParam());
    c.backward(GetParam());
    const auto second = [&](const Buffer& all, int64_t heads) {
      std::vector<double> values;
      for (int64_t i = 250 * heads * 16; i < all.count(); ++i) values.push_back(all.at(i));
      return values;
    };
    const auto out = second(c.out, 2), dq = second(c.dq, 2), dk = second(c.dk, 1), dv = second(c.dv, 1);
    for (const int64_t edited : {0, 120, 230}) {
      for (int64_t d = 0; d < 16; ++d) {
        c.k.set(c.key(0, edited, 0) + d, 7.0 + static_cast<double>(d));
        c.v.set(c.key(0, edited, 0) + d, -9.0);
      }
      c.q.set(c.row(0, edited, 1), 11.0);
      c.dout.set(c.row(0, edited, 0), -8.0);
    }
    c.forward(GetParam());
    c.backward(GetParam());
    EXPECT_EQ(second(c.out, 2), out);
    EXPECT_EQ(second(c.dq, 2), dq);
    EXPECT_EQ(second(c.dk, 1), dk);
    EXPECT_EQ(second(c.dv, 1), dv);
  }
}

TEST_P(AttentionOnIsa, BitsDoNotDependOnThreads) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Attention x = make(2, 250, 4, 2, 16, dtype, true);
    Case one(x), many(x, 3);
    one.cut(60);
    many.cut(60);
    one.forward(GetParam());
    one.backward(GetParam());
    many.forward(GetParam(), 5);
    many.backward(GetParam(), 5);
    EXPECT_TRUE(one.out.same_bits(many.out));
    EXPECT_TRUE(one.lse.same_bits(many.lse));
    EXPECT_TRUE(one.dq.same_bits(many.dq));
    EXPECT_TRUE(one.dk.same_bits(many.dk));
    EXPECT_TRUE(one.dv.same_bits(many.dv));
  }
}

TEST_P(AttentionOnIsa, BitsAreThoseOfTheScalarPath) {
  if (GetParam().bf16_dot != Bf16Dot::fma) return;  // has bits of its own: gemm_bf16_test.cc
  for (const Attention& x :
       {make(1, 300, 3, 1, 24, DType::f32, true), make(2, 100, 2, 2, 17, DType::bf16, false),
        make(1, 300, 3, 1, 24, DType::f32, true, 70, 2.0f)}) {
    Case scalar(x), c(x);
    scalar.forward({Isa::scalar});
    scalar.backward({Isa::scalar});
    c.forward(GetParam());
    c.backward(GetParam());
    EXPECT_TRUE(c.out.same_bits(scalar.out)) << name(x);
    EXPECT_TRUE(c.lse.same_bits(scalar.lse)) << name(x);
    EXPECT_TRUE(c.dq.same_bits(scalar.dq)) << name(x);
    EXPECT_TRUE(c.dk.same_bits(scalar.dk)) << name(x);
    EXPECT_TRUE(c.dv.same_bits(scalar.dv)) << name(x);
  }
}

// A batch entry, a head and, if causal, a prefix have the same bits alone as among others.
TEST_P(AttentionOnIsa, BitsDoNotDependOnTheRest) {
  const Attention x = make(2, 260, 4, 2, 20, DType::f32, true);
  Case all(x);
  all.forward(GetParam(), 2);
  all.backward(GetParam(), 2);
  const int64_t b = 1, kv_head = 1, group = 2;
  Case part(make(1, x.queries, group, 1, x.dim, DType::f32, true));
  Case prefix(make(1, 90, group, 1, x.dim, DType::f32, true));
  for (Case* c : {&part, &prefix}) {
    for (int64_t s = 0; s < c->x.queries; ++s) {
      for (int64_t d = 0; d < x.dim; ++d) {
        for (int64_t g = 0; g < group; ++g) {
          c->q.set(c->row(0, s, g) + d, all.q.at(all.row(b, s, kv_head * group + g) + d));
          c->dout.set(c->row(0, s, g) + d, all.dout.at(all.row(b, s, kv_head * group + g) + d));
        }
        c->k.set(c->key(0, s, 0) + d, all.k.at(all.key(b, s, kv_head * group) + d));
        c->v.set(c->key(0, s, 0) + d, all.v.at(all.key(b, s, kv_head * group) + d));
      }
    }
    c->forward(GetParam());
    c->backward(GetParam());
    int64_t wrong = 0;
    for (int64_t s = 0; s < c->x.queries; ++s) {
      for (int64_t d = 0; d < x.dim; ++d) {
        for (int64_t g = 0; g < group; ++g) {
          wrong += c->out.at(c->row(0, s, g) + d) != all.out.at(all.row(b, s, kv_head * group + g) + d);
          wrong += c->dq.at(c->row(0, s, g) + d) != all.dq.at(all.row(b, s, kv_head * group + g) + d);
        }
        if (c == &prefix) continue;
        wrong += c->dk.at(c->key(0, s, 0) + d) != all.dk.at(all.key(b, s, kv_head * group) + d);
        wrong += c->dv.at(c->key(0, s, 0) + d) != all.dv.at(all.key(b, s, kv_head * group) + d);
      }
    }
    EXPECT_EQ(wrong, 0) << name(c->x);
  }
}

TEST_P(AttentionOnIsa, LargeScoresStayFinite) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case c(make(1, 250, 1, 1, 16, dtype, true));
    c.q.fill_normal(21, 200.0);
    c.k.fill_normal(22, 200.0);
    c.forward(GetParam());
    c.backward(GetParam());
    for (const Buffer* buffer : {&c.out, &c.lse, &c.dq, &c.dk, &c.dv}) {
      for (int64_t i = 0; i < buffer->count(); ++i) ASSERT_TRUE(std::isfinite(buffer->at(i))) << i;
    }
  }
}

TEST_P(AttentionOnIsa, NanReachesTheRowsThatReadIt) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case c(make(2, 300, 2, 1, 16, dtype, true));
    const int64_t bad = 240;  // in the second block of keys: the rows of the first never meet it
    c.k.set(c.key(1, bad, 0) + 3, std::numeric_limits<double>::quiet_NaN());
    c.forward(GetParam());
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t s = 0; s < c.x.queries; ++s) {
        EXPECT_FALSE(std::isnan(c.out.at(c.row(0, s, h)))) << s;
        if (s >= bad) {
          EXPECT_TRUE(std::isnan(c.out.at(c.row(1, s, h)))) << s;
          EXPECT_TRUE(std::isnan(c.lse.at((2 + h) * c.x.queries + s))) << s;
        } else if (s < 224) {
          EXPECT_FALSE(std::isnan(c.out.at(c.row(1, s, h)))) << s;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionOnIsa, ::testing::ValuesIn(choices()), [](const auto& info) {
  return std::string(isa_name(info.param.isa)) + "_" + std::string(bf16_dot_name(info.param.bf16_dot));
});

TEST(Attention, EmptyIsFine) {
  Case c(make(0, 5, 2, 1, 8, DType::f32, true));
  c.forward({Isa::scalar});
  c.backward({Isa::scalar});
}

TEST(Attention, RefusesWhatItCannotDo) {
  EXPECT_NE(attention_supported(make(1, 4, 5, 2, 8, DType::f32, true)).message().find("heads is 5"),
            std::string::npos);
  EXPECT_NE(attention_supported(make(1, 4, 2, 2, 0, DType::f32, true)).message().find("dim is 0"),
            std::string::npos);
  EXPECT_EQ(attention_supported(make(1, 4, 2, 2, 8, DType::i32, true)).code(), Code::user_error);
  EXPECT_EQ(attention_supported(make(1, -1, 2, 2, 8, DType::f32, true)).code(), Code::user_error);
  const std::vector<int32_t> segments = {0, 1 << 24, 1, (1 << 24) + 1}, starts = {0, (1 << 24) - 1, 1 << 24};
  const auto of_segments = [&](const Attention& x) {
    return tokens_supported(x, {.query_segments = segments.data(), .key_segments = segments.data()});
  };
  EXPECT_TRUE(of_segments(make(1, 3, 2, 2, 8, DType::f32, true)).ok());
  EXPECT_EQ(of_segments(make(2, 2, 2, 2, 8, DType::f32, true)).message(),
            "attention: row 1, position 1: segment is 16777217; 0 to 2^24 is allowed");
  Attention pieces = make(1, 6, 2, 2, 8, DType::f32, true);
  pieces.key_pieces = 4;
  EXPECT_EQ(attention_supported(pieces).message(), "attention: 6 keys in 4 pieces; a divisor is allowed");
  pieces.key_pieces = 6;
  pieces.query_pieces = 3;
  EXPECT_EQ(tokens_supported(pieces, {.query_starts = starts.data()}).message(),
            "attention: piece 1 of the queries starts at 16777215; 0 to 16777214 is allowed");
}

}  // namespace
}  // namespace lignum::kernels
