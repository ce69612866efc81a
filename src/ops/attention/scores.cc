#include "ops/attention/scores.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace lignum::ops {

Status check_attention(const Type& q, const Type& k, const Type& v, const Attrs& attrs) {
  LIGNUM_RETURN_IF_ERROR(expect_edge(q, "q"));
  LIGNUM_RETURN_IF_ERROR(expect_rank(q, "q", 4));
  LIGNUM_RETURN_IF_ERROR(expect_dtype(k, "k", {q.dtype}));
  LIGNUM_RETURN_IF_ERROR(expect_rank(k, "k", 4));
  LIGNUM_RETURN_IF_ERROR(
      expect_dims(k, "k", {q.dims[0], is_placed(attrs) ? k.dims[1] : q.dims[1], k.dims[2], q.dims[3]},
                  is_placed(attrs) ? "those of q but for tokens and heads" : "those of q but for the heads"));
  LIGNUM_RETURN_IF_ERROR(expect_like(v, "v", k, "k"));
  const int64_t heads = q.dims[2], kv_heads = k.dims[2];
  if (kv_heads < 1 || heads % kv_heads != 0)
    return user_error("q has {} heads, k has {}; k's must divide q's", heads, kv_heads);
  LIGNUM_RETURN_IF_ERROR(number_in(attrs, "scale", -1e6, 1e6).status());
  LIGNUM_ASSIGN_OR_RETURN(const bool causal, bool_attr(attrs, "causal"));
  if (attrs.all().contains("window")) {
    LIGNUM_ASSIGN_OR_RETURN(const int64_t window, int_attr(attrs, "window"));
    if (window < 1 || !causal)
      return user_error("attribute window = {}, causal = {}: a window is positive and needs causal", window,
                        causal);
  }
  if (attrs.all().contains("softcap")) return number_in(attrs, "softcap", 1e-6, 1e6).status();
  return {};
}

bool is_segmented(const Attrs& attrs) { return attrs.get_or<bool>("segmented", false); }

bool is_placed(const Attrs& attrs) { return attrs.all().contains("query_at"); }

TokenInputs token_inputs(const Attrs& attrs, size_t base) {
  TokenInputs inputs{.segments = {}, .starts = {}, .count = base};
  const auto next = [&](bool there) -> std::optional<size_t> {
    if (!there) return std::nullopt;
    inputs.count += 2;
    return inputs.count - 2;
  };
  inputs.segments = next(is_segmented(attrs));
  inputs.starts = next(is_placed(attrs));
  return inputs;
}

namespace {

// Starts of pieces of `count` tokens: as many as divide them.
Status check_starts(const Type& starts, std::string_view what, const Attrs& attrs, std::string_view key,
                    int64_t count) {
  if (!attrs.has<Dims>(key))
    return user_error("attribute {} is missing or no list: starts of pieces of the {}", key, what);
  const Dims& at = attrs.get<Dims>(key);
  const auto pieces = static_cast<int64_t>(at.size());
  if (pieces == 0 || count % pieces != 0)
    return user_error("attribute {}: {} {} in {} pieces; a divisor is allowed", key, count, what, pieces);
  for (const int64_t start : at)
    if (start < 0 || start > (1 << 24))
      return user_error("attribute {}: a piece from {} on; 0 to 2^24 is allowed", key, start);
  LIGNUM_RETURN_IF_ERROR(expect_dtype(starts, fmt::format("starts of the {}", what), {DType::i32}));
  return expect_dims(starts, fmt::format("starts of the {}", what), {pieces},
                     fmt::format("one for each of {}", key));
}

}  // namespace

Status check_tokens(std::span<const Type> in, size_t base, const Type& q, const Type& k, const Attrs& attrs) {
  if (attrs.all().contains("segmented")) LIGNUM_RETURN_IF_ERROR(bool_attr(attrs, "segmented").status());
  const TokenInputs inputs = token_inputs(attrs, base);
  LIGNUM_RETURN_IF_ERROR(expect_inputs(in, inputs.count));
  if (inputs.segments) {
    for (const auto& [t, like, what] :
         {std::tuple(&in[*inputs.segments], &q, "q"), std::tuple(&in[*inputs.segments + 1], &k, "k")}) {
      LIGNUM_RETURN_IF_ERROR(expect_dtype(*t, "segments", {DType::i32}));
      LIGNUM_RETURN_IF_ERROR(expect_dims(*t, "segments", {like->dims[0], like->dims[1]},
                                         fmt::format("the first two dims of {}", what)));
    }
  }
  if (!inputs.starts) return {};
  LIGNUM_RETURN_IF_ERROR(check_starts(in[*inputs.starts], "queries", attrs, "query_at", q.dims[1]));
  return check_starts(in[*inputs.starts + 1], "keys", attrs, "key_at", k.dims[1]);
}

kernels::Attention attention_shape(const Type& q, const Type& k, const Attrs& attrs) {
  const auto pieces = [&](std::string_view key) {
    return attrs.has<Dims>(key) ? static_cast<int64_t>(attrs.get<Dims>(key).size()) : 1;
  };
  return {.batch = q.dims[0],
          .queries = q.dims[1],
          .keys = k.dims[1],
          .heads = q.dims[2],
          .kv_heads = k.dims[2],
          .dim = q.dims[3],
          .dtype = q.dtype,
          .scale = static_cast<float>(attrs.get<double>("scale")),
          .causal = attrs.get<bool>("causal"),
          .window = attrs.get_or<int64_t>("window", 0),
          .softcap = static_cast<float>(attrs.get_or<double>("softcap", 0.0)),
          .query_pieces = pieces("query_at"),
          .key_pieces = pieces("key_at")};
}

Result<kernels::AttentionTokens> attention_tokens(const CpuCall& c, const kernels::Attention& a,
                                                  size_t base) {
  const TokenInputs inputs = token_inputs(c.site.attrs, base);
  kernels::AttentionTokens tokens;
  if (inputs.segments) {
    tokens.query_segments = data_in<int32_t>(c, *inputs.segments);
    tokens.key_segments = data_in<int32_t>(c, *inputs.segments + 1);
  }
  if (inputs.starts) {
    tokens.query_starts = data_in<int32_t>(c, *inputs.starts);
    tokens.key_starts = data_in<int32_t>(c, *inputs.starts + 1);
  }
  LIGNUM_RETURN_IF_ERROR(kernels::attention_supported(a));
  LIGNUM_RETURN_IF_ERROR(kernels::tokens_supported(a, tokens));
  return tokens;
}

Type lse_type(const Type& q) {
  return {DType::f32,
          {q.dims[0], q.dims[2], q.dims[1]},
          tidy_names({name_of(q, 0), name_of(q, 2), name_of(q, 1)})};
}

ShardRule attention_rule(const Site& s, FunctionRef<void(const AttentionFactors&, ShardRule&)> operands,
                         Values (*local)(const PlacedCall&)) {
  const auto rule_of = [&](bool ring) {
    AttentionFactors f(ring);
    const bool placed = is_placed(s.attrs);
    if (placed) f.q[1] = f.kv[1] = f.lse[2] = f.segments[1] = f.key_segments[1] = -1;
    ShardRule rule;
    operands(f, rule);
    if (is_segmented(s.attrs)) rule.in.insert(rule.in.end(), {f.segments, f.key_segments});
    if (placed) rule.in.insert(rule.in.end(), 2, {-1});
    return rule;
  };
  ShardRule rule = rule_of(false);
  rule.exact = {1};
  rule.shared = 1;
  if (is_placed(s.attrs)) return rule;
  ShardRule ring = rule_of(true);
  rule.exact.push_back(2);
  rule.placed = 2;
  rule.ring_in = std::move(ring.in);
  rule.ring_out = std::move(ring.out);
  rule.local = local;
  return rule;
}

namespace {

// Of m queries from position `query` on and n keys from position `key` on.
double pairs_of(const kernels::Attention& a, int64_t query, int64_t m, int64_t key, int64_t n) {
  if (!a.causal) return static_cast<double>(m) * static_cast<double>(n);
  // The sum over i < m of max(0, i + x).
  const auto ramp = [m](int64_t x) {
    const auto first = static_cast<double>(std::max<int64_t>(0, x)),
               count = static_cast<double>(std::max<int64_t>(0, m - std::max<int64_t>(0, -x)));
    return count * first + count * (count - 1) / 2;
  };
  // Keys before each query and itself, of the n.
  const auto up_to = [&](int64_t x) { return ramp(x) - ramp(x - n); };
  const int64_t x = query - key + 1;
  return up_to(x) - (a.window > 0 ? up_to(x - a.window) : 0);
}

}  // namespace

double attention_pairs(const kernels::Attention& a, const Attrs& attrs) {
  const Dims zero = {0};
  const Dims& queries = is_placed(attrs) ? attrs.get<Dims>("query_at") : zero;
  const Dims& keys = is_placed(attrs) ? attrs.get<Dims>("key_at") : zero;
  double each = 0;
  for (const int64_t query : queries)
    for (const int64_t key : keys)
      each += pairs_of(a, query, a.queries / a.query_pieces, key, a.keys / a.key_pieces);
  return static_cast<double>(a.batch * a.heads) * each;
}

Cost attention_cost(const Site& s, const kernels::Attention& a, double products) {
  Cost c = streaming_cost(s, 0);
  const double pairs = attention_pairs(a, s.attrs);
  c.work = Work::attention;
  c.flops = products * 2 * pairs * static_cast<double>(a.dim);
  c.transcendentals = pairs;
  c.m = a.queries;
  c.k = a.keys;
  c.n = a.dim;
  c.batch = a.batch * a.heads;
  return c;
}

std::vector<int64_t> seen_by(const RefCall& c, const kernels::Attention& a, size_t base, int64_t batch,
                             int64_t i) {
  const TokenInputs inputs = token_inputs(c.site.attrs, base);
  const auto value = [&](size_t input, int64_t at) {
    return static_cast<int64_t>(c.in[input]->data[static_cast<size_t>(at)]);
  };
  const auto position = [&](size_t which, int64_t at, int64_t length) {
    return inputs.starts ? value(*inputs.starts + which, at / length) + at % length : at;
  };
  const int64_t query = position(0, i, a.queries / a.query_pieces);
  std::vector<int64_t> seen;
  for (int64_t j = 0; j < a.keys; ++j) {
    const int64_t key = position(1, j, a.keys / a.key_pieces);
    if (a.causal && key > query) continue;
    if (a.window > 0 && key <= query - a.window) continue;
    if (inputs.segments &&
        value(*inputs.segments, batch * a.queries + i) != value(*inputs.segments + 1, batch * a.keys + j))
      continue;
    seen.push_back(j);
  }
  return seen;
}

Value grouped(Builder& b, Value q, int64_t kv_heads) {
  const Dims d = b.type(q).dims;
  return b.reshape(q, {d[0], d[1], kv_heads, d[2] / kv_heads, d[3]});
}

Value positions_of(Builder& b, Value starts, int64_t count) {
  Arith m(b);
  const int64_t pieces = b.type(starts).dims[0];
  const Dims cut = {pieces, count / pieces};
  return b.reshape(m.add(b.broadcast(starts, cut, {0}), m.iota(cut, 1)), {count});
}

QueryRows all_rows(Builder& b, Value q, Value k, Value v, std::span<const Value> tokens, const Attrs& attrs) {
  const TokenInputs inputs = token_inputs(attrs, 0);
  QueryRows r{.q = q, .k = k, .v = v, .positions = {}};
  if (inputs.segments) {
    r.of_query = tokens[*inputs.segments];
    r.of_key = tokens[*inputs.segments + 1];
  }
  const int64_t queries = b.type(q).dims[1];
  if (inputs.starts) {
    r.positions = positions_of(b, tokens[*inputs.starts], queries);
    r.key_positions = positions_of(b, tokens[*inputs.starts + 1], b.type(k).dims[1]);
  } else {
    r.positions = Arith(b).iota({queries}, 0);
  }
  return r;
}

// Finite, so that no difference of two of them is a NaN; exp() of it is 0 beside any real score.
constexpr double kMasked = -1e30;

Value is_seen(Builder& b, Value scores) {
  Arith m(b);
  return m.compare("gt", scores, m.like(scores, kMasked / 2));
}

Value attention_scores(Builder& b, const QueryRows& r, const Attrs& attrs) {
  Arith m(b);
  const int64_t kv_heads = b.type(r.k).dims[2];
  Value scores =
      m.mul(m.matmul(grouped(b, r.q, kv_heads), r.k, {4}, {3}, {0, 2}, {0, 2}), attrs.get<double>("scale"));
  if (const double cap = attrs.get_or<double>("softcap", 0.0); cap > 0)
    scores = m.mul(b.elementwise("tanh", {m.mul(scores, 1 / cap)}), cap);
  const bool causal = attrs.get<bool>("causal");
  if (!causal && !r.of_query) return scores;
  const Dims dims = b.type(scores).dims;
  const Value masked = m.like(scores, kMasked);
  if (r.of_query) {
    const Value of_query = b.broadcast(*r.of_query, dims, {0, 2}),
                of_key = b.broadcast(*r.of_key, dims, {0, 4});
    scores = m.select(m.compare("eq", of_query, of_key), scores, masked);
  }
  if (!causal) return scores;
  const Value query = b.broadcast(r.positions, dims, {2});
  Value key = r.key_positions ? b.broadcast(*r.key_positions, dims, {4}) : m.iota(dims, 4);
  if (r.first_key > 0) key = m.add(key, static_cast<double>(r.first_key));
  scores = m.select(m.compare("ge", query, key), scores, masked);
  const int64_t window = attrs.get_or<int64_t>("window", 0);
  if (window == 0 || (!r.key_positions && window >= r.first_key + dims[4])) return scores;
  const Value oldest = m.sub(query, m.like(query, static_cast<double>(window - 1)));
  return m.select(m.compare("ge", key, oldest), scores, masked);
}

std::vector<Case> attention_cases(FunctionRef<void(Case&, const kernels::Attention&)> change) {
  constexpr DType f32 = DType::f32, bf16 = DType::bf16;
  const auto shaped = [&](std::string name, const kernels::Attention& a) {
    const Dims q = {a.batch, a.queries, a.heads, a.dim}, kv = {a.batch, a.keys, a.kv_heads, a.dim};
    Attrs attrs = {{"scale", 1 / std::sqrt(static_cast<double>(a.dim))}, {"causal", a.causal}};
    if (a.window > 0) attrs.set("window", a.window);
    if (a.softcap > 0) attrs.set("softcap", static_cast<double>(a.softcap));
    Case c{std::move(name), {tensor(a.dtype, q), tensor(a.dtype, kv), tensor(a.dtype, kv)}, std::move(attrs)};
    change(c, a);
    return c;
  };
  const auto make = [&](std::string name, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                        int64_t dim, DType dtype, bool causal = true, int64_t window = 0, float softcap = 0) {
    return shaped(std::move(name),
                  {batch, seq, seq, heads, kv_heads, dim, dtype, 1, causal, window, softcap});
  };
  // Three documents in any order.
  const auto add_segments = [](Case& c, const kernels::Attention& a) {
    c.in.push_back(tensor(DType::i32, {a.batch, a.queries}, Fill::position, 3));
    c.in.push_back(c.in.back());
    c.in.back().type.dims[1] = a.keys;
    c.attrs.set("segmented", true);
  };
  const auto segmented = [&](std::string name, const kernels::Attention& a) {
    Case c = shaped(std::move(name), a);
    add_segments(c, a);
    return c;
  };
  // Pieces that begin anywhere in [0, bound); a bound of 1 for keys: at 0.
  const auto placed = [&](std::string name, const kernels::Attention& a, int64_t pieces, int64_t key_pieces,
                          double bound, double key_bound, bool segments = false) {
    Case c = shaped(std::move(name), a);
    if (segments) add_segments(c, a);
    for (const auto& [key, count, most] :
         {std::tuple("query_at", pieces, bound), std::tuple("key_at", key_pieces, key_bound)}) {
      c.in.push_back(tensor(DType::i32, {count}, Fill::position, most));
      c.attrs.set(key, Dims(static_cast<size_t>(count), 0));
    }
    return c;
  };
  std::vector<Case> cases = {
      make("one_row", 1, 1, 1, 1, 8, f32),
      make("odd", 2, 7, 3, 3, 5, f32),
      make("grouped", 1, 5, 4, 2, 8, f32),
      make("one_kv_head", 2, 5, 3, 1, 6, f32),
      make("all_pairs", 1, 6, 2, 1, 8, f32, false),
      make("misaligned", 1, 37, 1, 1, 11, f32),
      make("two_blocks", 1, 229, 1, 1, 3, f32),
      make("bf16", 1, 9, 4, 2, 16, bf16),
      make("window", 2, 11, 4, 2, 8, f32, true, 4),
      make("window_two_blocks", 1, 229, 1, 1, 3, f32, true, 3),
      make("window_of_all", 1, 5, 1, 1, 4, f32, true, 7),
      make("softcap", 1, 9, 4, 2, 8, f32, true, 0, 0.5f),
      make("window_softcap_bf16", 1, 9, 4, 2, 16, bf16, true, 5, 2.0f),
      segmented("segments", {2, 11, 11, 4, 2, 8, f32}),
      segmented("segments_window_cut", {2, 12, 12, 2, 1, 8, f32, 1, true, 5}),
      segmented("segments_all_pairs", {1, 9, 9, 2, 1, 8, f32, 1, false}),
      segmented("segments_two_blocks", {1, 229, 229, 1, 1, 3, f32}),
      segmented("segments_window_softcap", {1, 11, 11, 2, 2, 8, f32, 1, true, 4, 0.5f}),
      segmented("segments_bf16", {2, 9, 9, 4, 2, 16, bf16}),
      placed("later_queries", {1, 6, 14, 4, 2, 8, f32}, 1, 1, 9, 1),
      placed("later_two_blocks", {1, 229, 229, 1, 1, 3, f32}, 1, 1, 200, 1),
      placed("pieces", {2, 8, 12, 2, 1, 8, f32}, 2, 4, 12, 1),
      placed("keys_out_of_sight", {1, 9, 8, 2, 2, 6, f32}, 3, 2, 12, 12),
      placed("pieces_window_softcap", {1, 10, 8, 2, 1, 8, f32, 1, true, 3, 0.5f}, 2, 2, 8, 8),
      placed("pieces_segments_bf16", {2, 6, 10, 4, 2, 16, bf16}, 2, 1, 9, 4, true),
      placed("pieces_all_pairs", {1, 3, 7, 2, 2, 8, f32, 1, false}, 1, 1, 4, 4),
      make("bench", 1, 2048, 32, 8, 128, bf16),
  };
  cases.back().bench = true;
  return cases;
}

}  // namespace lignum::ops
