// The gradient. With p the softmax, g = dout and delta_i = g_i . out_i:
//   dv_j = sum_i p_ij g_i,  ds_ij = p_ij (g_i . v_j - delta_i),  dq_i = scale sum_j ds_ij k_j,  dk_j = scale
//   sum_i ds_ij q_i.
// p is recomputed from lse. Internal; included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/math.h"

namespace lignum::kernels {

template <class Ops>
struct AttentionBackward : AttentionRows<Ops> {
  using R = AttentionRows<Ops>;
  using P = Panels<Ops>;
  using V = typename Ops::V;
  using Head = typename R::Head;
  static constexpr int kWidth = Ops::kWidth;
  static constexpr int kLanes = P::kColumns;

  template <class T>
  static void prepare_rows(const Attention& x, const AttentionGradCall& call, const Head& head, int64_t first,
                           float* workspace) {
    const int64_t dim = x.dim, stride = R::padded_dim(dim);
    float* lane_rows = workspace;
    float* dout = lane_rows + kLanes * stride;
    float* out = dout + kLanes * dim;
    float* delta = out + kLanes * dim;
    const int64_t end = P::smaller(first + kAttentionTaskRows, head.rows);
    for (int64_t row = first; row < end; row += kLanes) {
      const int64_t count = P::smaller(kLanes, end - row);
      R::load_rows(x, head, static_cast<const T*>(call.dout), row, count, 1.0f, lane_rows);
      R::pack_rows(lane_rows, stride, count, dim, dout);
      R::load_rows(x, head, static_cast<const T*>(call.out), row, count, 1.0f, lane_rows);
      R::pack_rows(lane_rows, stride, count, dim, out);
      for (int j = 0; j < kLanes; j += kWidth) {
        V sum = Ops::zero();
        for (int64_t d = 0; d < dim; ++d) {
          sum = Ops::fma(Ops::load(dout + d * kLanes + j), Ops::load(out + d * kLanes + j), sum);
        }
        Ops::store(delta + j, sum);
      }
      for (int64_t l = 0; l < count; ++l) {
        call.row_delta[head.flat(x, row + l)] = delta[l];
        call.row_lse[head.flat(x, row + l)] = call.lse[head.lse(x, row + l)];
      }
    }
  }

  // Lanes of a panel that exist are copied, the others repeat the last.
  static void load_lanes(const float* from, int64_t count, float* to) {
    for (int64_t l = 0; l < kLanes; ++l) to[l] = from[P::smaller(l, count - 1)];
  }

  // scores -> p, dp -> ds, both [keys, kLanes]. A soft cap's slope is 1 - (score / cap)^2, of the capped
  // score.
  static void probabilities(const Attention& x, float* scores, float* dp, int64_t keys,
                            const typename R::Mask& mask, const float* lse, const float* delta) {
    const V inverse = Ops::set1(x.softcap > 0 ? 1.0f / x.softcap : 0.0f);
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) {
      const V lse_v = Ops::load(lse + j * kWidth);
      const V delta_v = Ops::load(delta + j * kWidth);
      for (int64_t i = 0; i < keys; ++i) {
        const int64_t at = i * kLanes + j * kWidth;
        const V score = Ops::load(scores + at);
        V p = exp_of<Ops>(Ops::sub(score, lse_v));
        if (mask.may_hide(i)) p = R::if_seen(mask, i, j, p, Ops::zero());
        Ops::store(scores + at, p);
        V ds = Ops::mul(p, Ops::sub(Ops::load(dp + at), delta_v));
        if (x.softcap > 0) {
          const V y = Ops::mul(score, inverse);
          ds = Ops::mul(ds, Ops::sub(Ops::set1(1.0f), Ops::mul(y, y)));
        }
        Ops::store(dp + at, ds);
      }
    }
  }

  // [keys, kLanes], of which `count` lanes exist, into panels of A whose k are rows: lanes go to row .. row +
  // count.
  static void pack_lanes(const float* panel, int64_t keys, int64_t count, int64_t row, int64_t rows,
                         float* to) {
    for (int64_t i = 0; i < keys; i += Ops::kRows, to += rows * kWidth) {
      const int n = static_cast<int>(P::smaller(Ops::kRows, keys - i));
      P::pack_lines(panel + i * kLanes, kLanes, n, count, to + row * kWidth, kWidth);
    }
  }

  static void clear(float* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) from[i] = 0;
  }

  template <class T>
  static void run(const Attention& x, const AttentionGradCall& call, const Head& head,
                  const AttentionSpan& of_queries, const AttentionSpan& of_keys, bool first_visit,
                  float* workspace) {
    const int64_t dim = x.dim, stride = R::padded_dim(dim), group = head.group;
    float* at = workspace;
    const auto take = [&at](int64_t floats) {
      float* part = at;
      at += (floats + 15) / 16 * 16;
      return part;
    };
    float* packed_k = take(P::a_floats(kAttentionBlock, dim));
    float* packed_v = take(P::a_floats(kAttentionBlock, dim));
    float* packed_kt = take(P::a_floats(dim, kAttentionBlock));
    float* q_rows = take(kAttentionGradRows * stride);
    float* dout_rows = take(kAttentionGradRows * stride);
    float* q_columns = take(P::b_floats(dim, kAttentionGradRows));
    float* dout_columns = take(P::b_floats(dim, kAttentionGradRows));
    float* q_lanes = take(kLanes * dim);
    float* dout_lanes = take(kLanes * dim);
    float* dq_lanes = take(kLanes * dim);
    float* lane_rows = take(kLanes * stride);
    float* scores = take(kAttentionBlock * kLanes);
    float* dp = take(kAttentionBlock * kLanes);
    float* packed_p = take(P::a_floats(kAttentionBlock, kAttentionGradRows));
    float* packed_ds = take(P::a_floats(kAttentionBlock, kAttentionGradRows));
    float* lanes = take(4 * kLanes);
    float* position = lanes;
    float* lse = lanes + kLanes;
    float* delta = lanes + 2 * kLanes;
    float* lane_ids = lanes + 3 * kLanes;

    const int64_t key = of_keys.first, keys = of_keys.last - key, place = key + of_keys.shift;
    const int64_t begin = of_queries.first * group, end = of_queries.last * group;
    // On a first visit keys and queries are the same positions, so nothing is passed over that must be
    // written.
    const int32_t* key_ids = R::key_ids(x, head, call.tokens, key);
    const auto block = R::documents(key_ids, keys);
    if (block.apart_from(R::documents_of_rows(x, head, call.tokens, begin, end - begin))) return;
    // Of the block's keys, how many some row up to that one sees.
    const auto seen_by = [&](int64_t row) {
      return x.causal ? P::smaller(keys, row / group + of_queries.shift + 1 - place) : keys;
    };
    const int64_t ld = x.kv_heads * dim;
    const T* k = static_cast<const T*>(call.k) + head.key(x, key);
    P::pack_a(k, ld, true, keys, dim, packed_k);
    P::pack_a(static_cast<const T*>(call.v) + head.key(x, key), ld, true, keys, dim, packed_v);
    P::pack_a(k, ld, false, dim, keys, packed_kt);
    float* dk = call.dk + head.key(x, key);
    float* dv = call.dv + head.key(x, key);
    if (first_visit) {
      for (int64_t i = 0; i < keys; ++i) clear(dk + i * ld, dim);
      for (int64_t i = 0; i < keys; ++i) clear(dv + i * ld, dim);
    }

    for (int64_t first = begin; first < end; first += kAttentionGradRows) {
      const int64_t rows = P::smaller(kAttentionGradRows, end - first);
      if (block.apart_from(R::documents_of_rows(x, head, call.tokens, first, rows))) continue;
      const int64_t group_seen = seen_by(first + rows - 1);
      if (group_seen <= 0) continue;
      R::load_rows(x, head, static_cast<const T*>(call.q), first, rows, x.scale, q_rows);
      R::load_rows(x, head, static_cast<const T*>(call.dout), first, rows, 1.0f, dout_rows);
      P::pack_b(q_rows, stride, false, dim, rows, q_columns);
      P::pack_b(dout_rows, stride, false, dim, rows, dout_columns);
      for (int64_t from = 0; from < rows; from += kLanes) {
        const int64_t row = first + from;
        const int64_t count = P::smaller(kLanes, rows - from);
        const int64_t seen = R::larger(0, seen_by(row + count - 1));
        if (seen > 0) {
          const int64_t oldest = row / group + of_queries.shift;
          typename R::Mask mask{.first_key = place,
                                .masked = x.causal ? oldest + 1 - place : keys,
                                .reach = static_cast<float>(x.window - 1),
                                .position = position};
          if (x.window > 0)
            mask.clear = R::first_seen(x, (row + count - 1) / group + of_queries.shift) - place;
          if (!block.are_one_with(R::documents_of_rows(x, head, call.tokens, row, count))) {
            R::lane_ids(x, head, call.tokens, row, count, lane_ids);
            mask.lane_ids = lane_ids;
            mask.key_ids = key_ids;
          }
          R::positions(head, of_queries.shift, row, count, position);
          load_lanes(call.row_lse + head.flat(x, row), count, lse);
          load_lanes(call.row_delta + head.flat(x, row), count, delta);
          R::pack_rows(q_rows + from * stride, stride, count, dim, q_lanes);
          R::pack_rows(dout_rows + from * stride, stride, count, dim, dout_lanes);
          P::multiply(seen, kLanes, dim, packed_k, dim, q_lanes, {.c = scores, .ldc = kLanes});
          P::multiply(seen, kLanes, dim, packed_v, dim, dout_lanes, {.c = dp, .ldc = kLanes});
          if (x.softcap > 0) R::cap(x.softcap, scores, seen * kLanes);
          probabilities(x, scores, dp, seen, mask, lse, delta);
          P::multiply(dim, kLanes, seen, packed_kt, keys, dp, {.c = dq_lanes, .ldc = kLanes});
          R::transpose_back(dq_lanes, dim, lane_rows);
          for (int64_t l = 0; l < count; ++l)
            R::store_row(lane_rows + l * stride, dim, x.scale, !first_visit, call.dq + head.row(x, row + l));
        }
        clear(scores + seen * kLanes, (group_seen - seen) * kLanes);
        clear(dp + seen * kLanes, (group_seen - seen) * kLanes);
        pack_lanes(scores, group_seen, count, from, rows, packed_p);
        pack_lanes(dp, group_seen, count, from, rows, packed_ds);
      }
      P::multiply(group_seen, dim, rows, packed_p, rows, dout_columns,
                  {.add = dv, .ld_add = ld, .c = dv, .ldc = ld});
      P::multiply(group_seen, dim, rows, packed_ds, rows, q_columns,
                  {.add = dk, .ld_add = ld, .c = dk, .ldc = ld});
    }
  }

  static void prepare(const Attention& x, const AttentionGradCall& call, int64_t batch, int64_t kv_head,
                      int64_t first, float* workspace) {
    const Head head(x, batch, kv_head);
    if (x.dtype == DType::bf16) {
      prepare_rows<uint16_t>(x, call, head, first, workspace);
    } else {
      prepare_rows<float>(x, call, head, first, workspace);
    }
  }

  static void backward(const Attention& x, const AttentionGradCall& call, int64_t batch, int64_t kv_head,
                       AttentionSpan queries, AttentionSpan keys, bool first_visit, float* workspace) {
    const Head head(x, batch, kv_head);
    if (x.dtype == DType::bf16) {
      run<uint16_t>(x, call, head, queries, keys, first_visit, workspace);
    } else {
      run<float>(x, call, head, queries, keys, first_visit, workspace);
    }
  }

  static void round(const float* from, uint16_t* to, int64_t n) { R::store_row(from, n, 1.0f, false, to); }
};

}  // namespace lignum::kernels
