// cached_attention: causal attention of new tokens over a cache, with grouped queries.
//   q [B, T, H, D], k and v [B, P, Hkv, D], f32 or bf16; start [B] i32, count [B] i32 -> out like q
//   attributes: scale; window w, if any: a token sees the last w positions; softcap c, if any: scores are
//   c tanh(scaled score / c)
// The cache holds the rows of the new tokens already (cache_write). For t < count[b]:
//   out[b, t] = sum_j p[j] v[b, j],  p = softmax_j(scale q[b, t] . k[b, j]) over j <= start[b] + t,
// and zeros for the other t. Query head h reads head h / (H / Hkv). Arithmetic in f32.
// On a CPU rows that do not fit (0 <= count <= T, 0 <= start <= P - count) are a user error.
#include "kernels/cached_attention.h"

#include <algorithm>
#include <cmath>

#include "ops/facets.h"

namespace lignum::ops {
namespace {

kernels::CachedAttention cached_shape_of(const Site& s) {
  const Dims &q = s.in[0].dims, &k = s.in[1].dims;
  return {.batch = q[0],
          .tokens = q[1],
          .capacity = k[1],
          .heads = q[2],
          .kv_heads = k[2],
          .dim = q[3],
          .dtype = s.in[0].dtype,
          .scale = static_cast<float>(s.attrs.get<double>("scale")),
          .window = s.attrs.get_or<int64_t>("window", 0),
          .softcap = static_cast<float>(s.attrs.get_or<double>("softcap", 0.0))};
}

struct CachedAttentionOp {
  static constexpr std::string_view kName = "cached_attention";

  static Result<Types> infer(std::span<const Type> in, const Attrs& attrs) {
    LIGNUM_RETURN_IF_ERROR(expect_inputs(in, 5));
    const Type &q = in[0], &k = in[1], &v = in[2];
    LIGNUM_RETURN_IF_ERROR(expect_edge(q, "q"));
    LIGNUM_RETURN_IF_ERROR(expect_rank(q, "q", 4));
    LIGNUM_RETURN_IF_ERROR(expect_dtype(k, "k", {q.dtype}));
    LIGNUM_RETURN_IF_ERROR(expect_rank(k, "k", 4));
    LIGNUM_RETURN_IF_ERROR(expect_dims(k, "k", {q.dims[0], k.dims[1], k.dims[2], q.dims[3]},
                                       "those of q but for the positions and heads"));
    LIGNUM_RETURN_IF_ERROR(expect_like(v, "v", k, "k"));
    const int64_t heads = q.dims[2], kv_heads = k.dims[2];
    if (kv_heads < 1 || heads % kv_heads != 0)
      return user_error("q has {} heads, k has {}; k's must divide q's", heads, kv_heads);
    for (size_t i = 3; i < 5; ++i) {
      const std::string_view name = i == 3 ? "start" : "count";
      LIGNUM_RETURN_IF_ERROR(expect_dtype(in[i], name, {DType::i32}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(in[i], name, {q.dims[0]}, "the first dim of q"));
    }
    LIGNUM_RETURN_IF_ERROR(number_in(attrs, "scale", -1e6, 1e6).status());
    if (attrs.all().contains("window"))
      LIGNUM_RETURN_IF_ERROR(int_in(attrs, "window", 1, int64_t{1} << 40).status());
    if (attrs.all().contains("softcap"))
      LIGNUM_RETURN_IF_ERROR(number_in(attrs, "softcap", 1e-6, 1e6).status());
    return Types{q};
  }

  static constexpr ByDecomposition grad{};

  static ShardRule partition(const Site& s) {
    const int heads = s.in[0].dims[2] == s.in[1].dims[2] ? 1 : -1;
    const std::vector<int> q = {0, -1, heads, -1};
    return {.in = {q, q, q, {0}, {0}}, .out = {q}};
  }

  // Where a row stands is not known before the step runs: a full cache is priced. One token reads it and does
  // next to nothing with it; many are work for the arithmetic.
  static Cost cost(const Site& s) {
    const auto a = cached_shape_of(s);
    Cost c = streaming_cost(s, 0);
    const int64_t seen = a.window > 0 ? std::min(a.window, a.capacity) : a.capacity;
    const double pairs = static_cast<double>(a.batch * a.heads * a.tokens) * static_cast<double>(seen);
    c.work = a.tokens > 1 ? Work::attention : Work::rows;
    c.flops = 4 * pairs * static_cast<double>(a.dim);
    c.transcendentals = pairs;
    c.m = a.tokens;
    c.k = a.capacity;
    c.n = a.dim;
    c.batch = a.batch * a.heads;
    return c;
  }

  static Values decompose(Builder& b, const Site& s, std::span<const Value> in) {
    const auto a = cached_shape_of(s);
    const int64_t group = a.heads / a.kv_heads;
    Arith m(b);
    const Value q = b.reshape(in[0], {a.batch, a.tokens, a.kv_heads, group, a.dim});
    Value scores = m.mul(m.matmul(q, in[1], {4}, {3}, {0, 2}, {0, 2}), s.attrs.get<double>("scale"));
    if (const double cap = s.attrs.get_or<double>("softcap", 0.0); cap > 0)
      scores = m.mul(b.elementwise("tanh", {m.mul(scores, 1 / cap)}), cap);
    const Dims dims = b.type(scores).dims;  // [B, Hkv, T, G, P]
    const Value position = m.add(m.iota(dims, 2), b.broadcast(in[3], dims, {0}));
    // Finite, so that no difference of two of them is a NaN; exp() of it is 0 beside any real score.
    constexpr double kMasked = -1e30;
    const Value key = m.iota(dims, 4), masked = m.like(scores, kMasked);
    Value seen = m.select(m.compare("ge", position, key), scores, masked);
    if (a.window > 0) {
      const Value oldest = m.sub(position, m.like(position, static_cast<double>(a.window - 1)));
      seen = m.select(m.compare("ge", key, oldest), seen, masked);
    }
    const Value e = m.exp(m.sub(seen, m.over_row(m.max_last(seen), dims)));
    const Value p = m.div(e, m.over_row(m.sum_last(e), dims));
    const Value out = b.transpose(m.matmul(p, in[2], {4}, {1}, {0, 1}, {0, 2}), {0, 2, 1, 3, 4});
    const Value whole = b.reshape(out, s.out[0].dims);
    const Value used = m.compare("lt", m.iota(s.out[0].dims, 1), b.broadcast(in[4], s.out[0].dims, {0}));
    return {b.convert(m.select(used, whole, m.like(whole, 0)), s.out[0].dtype)};
  }

  static void reference(const RefCall& c) {
    const auto a = cached_shape_of(c.site);
    const double scale = c.site.attrs.get<double>("scale"), cap = c.site.attrs.get_or<double>("softcap", 0.0);
    for (int64_t b = 0; b < a.batch; ++b) {
      const auto start = static_cast<int64_t>(c.in[3]->data[static_cast<size_t>(b)]);
      const auto count = static_cast<int64_t>(c.in[4]->data[static_cast<size_t>(b)]);
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t head = 0; head < a.heads; ++head) {
          const int64_t kv = head / (a.heads / a.kv_heads),
                        row = ((b * a.tokens + t) * a.heads + head) * a.dim;
          const auto key = [&](const RefTensor& cache, int64_t j) {
            return cache.data.data() + ((b * a.capacity + j) * a.kv_heads + kv) * a.dim;
          };
          const double* q = c.in[0]->data.data() + row;
          std::vector<double> p;
          const int64_t oldest = a.window > 0 ? std::max<int64_t>(0, start + t + 1 - a.window) : 0;
          for (int64_t j = oldest; j <= start + t; ++j) {
            double score = 0;
            for (int64_t d = 0; d < a.dim; ++d) score += q[d] * key(*c.in[1], j)[d];
            p.push_back(cap > 0 ? cap * std::tanh(scale * score / cap) : scale * score);
          }
          const double largest = *std::max_element(p.begin(), p.end());
          double sum = 0;
          for (double& x : p) sum += x = std::exp(x - largest);
          double* out = c.out[0].data.data() + row;
          for (size_t j = 0; j < p.size(); ++j)
            for (int64_t d = 0; d < a.dim; ++d)
              out[d] += p[j] / sum * key(*c.in[2], oldest + static_cast<int64_t>(j))[d];
        }
      }
    }
  }

  static int64_t workspace(const Site& s, int threads) {
    return kernels::cached_attention_workspace(cached_shape_of(s), threads);
  }

  static Status cpu(const CpuCall& c) {
    const auto a = cached_shape_of(c.site);
    const auto* start = data_in<int32_t>(c, 3);
    const auto* count = data_in<int32_t>(c, 4);
    LIGNUM_RETURN_IF_ERROR(kernels::cached_attention_supported(a));
    LIGNUM_RETURN_IF_ERROR(kernels::cached_rows_fit(a.batch, a.tokens, a.capacity, start, count));
    kernels::cached_attention(c.choice, a, c.in[0], c.in[1], c.in[2], start, count, c.out[0], c.workspace,
                              c.parallel);
    return {};
  }

  static Buffers buffers(const Site&) { return {}; }

  static constexpr ByDecomposition emit{};

  // None of real size: what a step costs depends on where its rows stand, which no size tells. It is priced
  // by its bytes.
  static std::vector<Case> cases() {
    constexpr DType f32 = DType::f32, bf16 = DType::bf16;
    const auto make = [](std::string name, int64_t batch, int64_t tokens, int64_t capacity, int64_t heads,
                         int64_t kv_heads, int64_t dim, DType dtype, int64_t window = 0, double softcap = 0) {
      const Dims cache = {batch, capacity, kv_heads, dim};
      Attrs attrs = {{"scale", 1 / std::sqrt(static_cast<double>(dim))}};
      if (window > 0) attrs.set("window", window);
      if (softcap > 0) attrs.set("softcap", softcap);
      return Case{std::move(name),
                  {tensor(dtype, {batch, tokens, heads, dim}), tensor(dtype, cache), tensor(dtype, cache),
                   tensor(DType::i32, {batch}, Fill::position, static_cast<double>(capacity - tokens + 1)),
                   tensor(DType::i32, {batch}, Fill::position, static_cast<double>(tokens + 1))},
                  std::move(attrs)};
    };
    return {
        make("one_row", 1, 1, 1, 1, 1, 8, f32),
        make("odd", 4, 1, 7, 3, 3, 5, f32),
        make("grouped", 4, 1, 6, 4, 2, 8, f32),
        make("chunk", 3, 3, 8, 3, 1, 6, f32),
        make("tiles", 2, 7, 10, 2, 2, 4, f32),
        make("misaligned", 2, 1, 37, 1, 1, 11, f32),
        make("two_blocks", 2, 1, 229, 1, 1, 3, f32),
        make("bf16", 2, 2, 9, 4, 2, 16, bf16),
        make("empty", 0, 1, 5, 2, 1, 4, f32),
        make("window", 4, 1, 9, 4, 2, 8, f32, 3),
        make("window_tiles_softcap", 3, 6, 11, 2, 1, 4, f32, 4, 0.5),
        make("softcap_bf16", 4, 1, 9, 2, 2, 8, bf16, 0, 2.0),
    };
  }
};

}  // namespace

LIGNUM_DEFINE_OP(cached_attention, CachedAttentionOp)

}  // namespace lignum::ops
