#include "ops/attention/scores.h"

#include <algorithm>
#include <cmath>

namespace lignum::ops {

Status check_attention(const Type& q, const Type& k, const Type& v, const Attrs& attrs) {
  LIGNUM_RETURN_IF_ERROR(expect_edge(q, "q"));
  LIGNUM_RETURN_IF_ERROR(expect_rank(q, "q", 4));
  LIGNUM_RETURN_IF_ERROR(expect_dtype(k, "k", {q.dtype}));
  LIGNUM_RETURN_IF_ERROR(expect_rank(k, "k", 4));
  LIGNUM_RETURN_IF_ERROR(
      expect_dims(k, "k", {q.dims[0], q.dims[1], k.dims[2], q.dims[3]}, "those of q but for the heads"));
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

Status check_segments(std::span<const Type> in, size_t without, const Type& q, const Attrs& attrs) {
  if (attrs.all().contains("segmented")) LIGNUM_RETURN_IF_ERROR(bool_attr(attrs, "segmented").status());
  if (!is_segmented(attrs)) return expect_inputs(in, without);
  LIGNUM_RETURN_IF_ERROR(expect_inputs(in, without + 1));
  LIGNUM_RETURN_IF_ERROR(expect_dtype(in.back(), "segments", {DType::i32}));
  return expect_dims(in.back(), "segments", {q.dims[0], q.dims[1]}, "the first two dims of q");
}

kernels::Attention attention_shape(const Type& q, const Type& k, const Attrs& attrs) {
  return {.batch = q.dims[0],
          .seq = q.dims[1],
          .heads = q.dims[2],
          .kv_heads = k.dims[2],
          .dim = q.dims[3],
          .dtype = q.dtype,
          .scale = static_cast<float>(attrs.get<double>("scale")),
          .causal = attrs.get<bool>("causal"),
          .window = attrs.get_or<int64_t>("window", 0),
          .softcap = static_cast<float>(attrs.get_or<double>("softcap", 0.0))};
}

Type lse_type(const Type& q) {
  return {DType::f32,
          {q.dims[0], q.dims[2], q.dims[1]},
          tidy_names({name_of(q, 0), name_of(q, 2), name_of(q, 1)})};
}

double attention_pairs(const kernels::Attention& a) {
  const auto s = static_cast<double>(a.seq), w = static_cast<double>(a.window);
  double each = a.causal ? s * (s + 1) / 2 : s * s;
  if (a.window > 0 && w < s) each -= (s - w) * (s - w + 1) / 2;
  return static_cast<double>(a.batch * a.heads) * each;
}

std::vector<int64_t> seen_by(const kernels::Attention& a, const RefTensor* segments, int64_t batch,
                             int64_t i) {
  const auto document = [&](int64_t at) { return segments->data[static_cast<size_t>(batch * a.seq + at)]; };
  std::vector<int64_t> seen;
  for (int64_t j = a.window > 0 ? std::max<int64_t>(0, i - a.window + 1) : 0; j < (a.causal ? i + 1 : a.seq);
       ++j) {
    if (segments == nullptr || document(i) == document(j)) seen.push_back(j);
  }
  return seen;
}

Value grouped(Builder& b, Value q, int64_t kv_heads) {
  const Dims d = b.type(q).dims;
  return b.reshape(q, {d[0], d[1], kv_heads, d[2] / kv_heads, d[3]});
}

QueryRows all_rows(Builder& b, Value q, Value k, Value v, std::optional<Value> segments) {
  return {.q = q,
          .k = k,
          .v = v,
          .positions = Arith(b).iota({b.type(q).dims[1]}, 0),
          .of_query = segments,
          .of_key = segments};
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
  // Finite, so that no difference of two of them is a NaN; exp() of it is 0 beside any real score.
  constexpr double kMasked = -1e30;
  const Value masked = m.like(scores, kMasked);
  if (r.of_query) {
    const Value of_query = b.broadcast(*r.of_query, dims, {0, 2}),
                of_key = b.broadcast(*r.of_key, dims, {0, 4});
    scores = m.select(m.compare("eq", of_query, of_key), scores, masked);
  }
  if (!causal) return scores;
  const Value query = b.broadcast(r.positions, dims, {2});
  Value key = m.iota(dims, 4);
  if (r.first_key > 0) key = m.add(key, static_cast<double>(r.first_key));
  scores = m.select(m.compare("ge", query, key), scores, masked);
  const int64_t window = attrs.get_or<int64_t>("window", 0);
  if (window == 0 || window >= r.first_key + dims[4]) return scores;
  const Value oldest = m.sub(query, m.like(query, static_cast<double>(window - 1)));
  return m.select(m.compare("ge", key, oldest), scores, masked);
}

std::vector<Case> attention_cases(FunctionRef<void(Case&, const kernels::Attention&)> change) {
  constexpr DType f32 = DType::f32, bf16 = DType::bf16;
  const auto shaped = [&](std::string name, const kernels::Attention& a) {
    const Dims q = {a.batch, a.seq, a.heads, a.dim}, kv = {a.batch, a.seq, a.kv_heads, a.dim};
    Attrs attrs = {{"scale", 1 / std::sqrt(static_cast<double>(a.dim))}, {"causal", a.causal}};
    if (a.window > 0) attrs.set("window", a.window);
    if (a.softcap > 0) attrs.set("softcap", static_cast<double>(a.softcap));
    Case c{std::move(name), {tensor(a.dtype, q), tensor(a.dtype, kv), tensor(a.dtype, kv)}, std::move(attrs)};
    change(c, a);
    return c;
  };
  const auto make = [&](std::string name, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                        int64_t dim, DType dtype, bool causal = true, int64_t window = 0, float softcap = 0) {
    return shaped(std::move(name), {batch, seq, heads, kv_heads, dim, dtype, 1, causal, window, softcap});
  };
  const auto segmented = [&](std::string name, const kernels::Attention& a) {
    Case c = shaped(std::move(name), a);
    c.in.push_back(tensor(DType::i32, {a.batch, a.seq}, Fill::position, 3));
    c.attrs.set("segmented", true);
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
      segmented("segments", {2, 11, 4, 2, 8, f32}),
      segmented("segments_all_pairs", {1, 9, 2, 1, 8, f32, 1, false}),
      segmented("segments_two_blocks", {1, 229, 1, 1, 3, f32}),
      segmented("segments_window_softcap", {1, 11, 2, 2, 8, f32, 1, true, 4, 0.5f}),
      segmented("segments_bf16", {2, 9, 4, 2, 16, bf16}),
      make("bench", 1, 2048, 32, 8, 128, bf16),
  };
  cases.back().bench = true;
  return cases;
}

}  // namespace lignum::ops
