// The forward pass. Internal; included by ISA files only (isa.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/math.h"

namespace lignum::kernels {

template <class Ops>
struct AttentionForward : AttentionRows<Ops> {
  using R = AttentionRows<Ops>;
  using P = Panels<Ops>;
  using V = typename Ops::V;
  using Head = typename R::Head;
  static constexpr int kWidth = Ops::kWidth;
  static constexpr int kLanes = P::kColumns;

  // A panel of rows between two blocks of keys, for each lane: the largest score, the sum of exp(score -
  // largest), and the sum of exp(score - largest) v, [dim, kLanes].
  struct State {
    float* largest;
    float* sum;
    float* out;
  };

  // One block of keys of one panel; scores [keys, kLanes] come in, their exponentials go out. A block that is
  // hidden from a lane leaves its state as it is.
  static void softmax_block(float* scores, int64_t keys, const typename R::Mask& mask, int64_t dim,
                            const State& state) {
    const V hidden = Ops::set1(-R::kInfinity);
    V largest[2];
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) largest[j] = Ops::load(state.largest + j * kWidth);
    for (int64_t i = 0; i < keys; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < 2; ++j) {
        float* at = scores + i * kLanes + j * kWidth;
        V s = Ops::load(at);
        if (mask.may_hide(i)) {
          s = R::if_seen(mask, i, j, s, hidden);
          Ops::store(at, s);
        }
        largest[j] = Ops::max(largest[j], s);
      }
    }
    V shrink[2], sum[2];
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) {
      // A lane that has seen no key yet: -inf less a finite number is -inf, and its exponential 0.
      if (mask.may_hide_all()) largest[j] = Ops::max(Ops::set1(-0x1.fffffep127f), largest[j]);
      shrink[j] = exp_of<Ops>(Ops::sub(Ops::load(state.largest + j * kWidth), largest[j]));
      Ops::store(state.largest + j * kWidth, largest[j]);
      sum[j] = Ops::zero();
    }
    for (int64_t i = 0; i < keys; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < 2; ++j) {
        float* at = scores + i * kLanes + j * kWidth;
        const V e = exp_of<Ops>(Ops::sub(Ops::load(at), largest[j]));
        sum[j] = Ops::add(sum[j], e);
        Ops::store(at, e);
      }
    }
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) {
      float* at = state.sum + j * kWidth;
      Ops::store(at, Ops::fma(Ops::load(at), shrink[j], sum[j]));
      for (int64_t d = 0; d < dim; ++d) {
        float* o = state.out + d * kLanes + j * kWidth;
        Ops::store(o, Ops::mul(Ops::load(o), shrink[j]));
      }
    }
  }

  template <class T>
  static void run(const Attention& x, const AttentionCall& call, const Head& head, const AttentionSpan& piece,
                  int64_t first, float* workspace) {
    const int64_t dim = x.dim, group = head.group;
    const int64_t rows = P::smaller(kAttentionTaskRows, piece.last * group - first);
    const int64_t panels = (rows + kLanes - 1) / kLanes;
    float* at = workspace;
    const auto take = [&at](int64_t floats) {
      float* part = at;
      at += (floats + 15) / 16 * 16;
      return part;
    };
    float* queries = take(panels * kLanes * dim);
    float* sums = take(panels * kLanes * dim);
    float* largest = take(panels * kLanes);
    float* sum = take(panels * kLanes);
    float* packed_k = take(P::a_floats(kAttentionBlock, dim));
    float* packed_v = take(P::a_floats(dim, kAttentionBlock));
    float* scores = take(kAttentionBlock * kLanes);
    float* lane_rows = take(kLanes * R::padded_dim(dim));
    float* position = take(kLanes);
    float* lane_ids = take(kLanes);

    for (int64_t p = 0; p < panels; ++p) {
      const int64_t count = P::smaller(kLanes, rows - p * kLanes);
      R::load_rows(x, head, static_cast<const T*>(call.q), first + p * kLanes, count, x.scale, lane_rows);
      R::pack_rows(lane_rows, R::padded_dim(dim), count, dim, queries + p * kLanes * dim);
    }
    for (int64_t i = 0; i < panels * kLanes; ++i) largest[i] = -R::kInfinity;
    for (int64_t i = 0; i < panels * kLanes; ++i) sum[i] = 0;
    for (int64_t i = 0; i < panels * kLanes * dim; ++i) sums[i] = 0;

    const int64_t ld = x.kv_heads * dim, last = (first + rows - 1) / group + piece.shift;
    const int64_t oldest_seen = R::first_seen(x, first / group + piece.shift);
    const auto documents = R::documents_of_rows(x, head, call.tokens, first, rows);
    for (int64_t k = 0; k < x.key_pieces; ++k) {
      const AttentionSpan of_keys = R::key_piece(x, call.tokens, k);
      // Keys that some row sees.
      const int64_t end = x.causal ? P::smaller(of_keys.last, last + 1 - of_keys.shift) : of_keys.last;
      for (int64_t key = of_keys.first; key < end; key += kAttentionBlock) {
        const int64_t keys = P::smaller(kAttentionBlock, end - key), place = key + of_keys.shift;
        if (oldest_seen >= place + keys) continue;
        const int32_t* key_ids = R::key_ids(x, head, call.tokens, key);
        const auto block = R::documents(key_ids, keys);
        if (block.apart_from(documents)) continue;
        P::pack_a(static_cast<const T*>(call.k) + head.key(x, key), ld, true, keys, dim, packed_k);
        P::pack_a(static_cast<const T*>(call.v) + head.key(x, key), ld, false, dim, keys, packed_v);
        for (int64_t p = 0; p < panels; ++p) {
          const int64_t row = first + p * kLanes;
          const int64_t count = P::smaller(kLanes, rows - p * kLanes);
          const auto own = R::documents_of_rows(x, head, call.tokens, row, count);
          if (block.apart_from(own)) continue;
          const int64_t oldest = row / group + piece.shift, newest = (row + count - 1) / group + piece.shift;
          int64_t seen = keys;
          typename R::Mask mask{.first_key = place,
                                .masked = keys,
                                .reach = static_cast<float>(x.window - 1),
                                .position = position};
          if (x.causal) {
            seen = P::smaller(keys, newest + 1 - place);
            if (seen <= 0) continue;
            mask.masked = oldest + 1 - place;
          }
          // Keys before it are hidden from the panel's last position; none of the block is seen if its first
          // hides all.
          if (x.window > 0) mask.clear = R::first_seen(x, newest) - place;
          if (x.window > 0 && R::first_seen(x, oldest) >= place + keys) continue;
          R::positions(head, piece.shift, row, count, position);
          if (!block.are_one_with(own)) {
            R::lane_ids(x, head, call.tokens, row, count, lane_ids);
            mask.lane_ids = lane_ids;
            mask.key_ids = key_ids;
          }
          P::multiply(seen, kLanes, dim, packed_k, dim, queries + p * kLanes * dim,
                      {.c = scores, .ldc = kLanes});
          if (x.softcap > 0) R::cap(x.softcap, scores, seen * kLanes);
          const State state{largest + p * kLanes, sum + p * kLanes, sums + p * kLanes * dim};
          softmax_block(scores, seen, mask, dim, state);
          P::multiply(dim, kLanes, seen, packed_v, keys, scores,
                      {.add = state.out, .ld_add = kLanes, .c = state.out, .ldc = kLanes});
        }
      }
    }

    for (int64_t p = 0; p < panels; ++p) {
      R::transpose_back(sums + p * kLanes * dim, dim, lane_rows);
      const int64_t count = P::smaller(kLanes, rows - p * kLanes);
      for (int64_t l = 0; l < count; ++l) {
        const int64_t row = first + p * kLanes + l;
        const float s = sum[p * kLanes + l];
        // s is 0 where the row has seen no key.
        R::store_row(lane_rows + l * R::padded_dim(dim), dim, s == 0 ? 0.0f : 1.0f / s, false,
                     static_cast<T*>(call.out) + head.row(x, row));
        // In double: the logarithm then rounds to the same float whatever libm is underneath.
        call.lse[head.lse(x, row)] =
            static_cast<float>(static_cast<double>(largest[p * kLanes + l]) + ::log(static_cast<double>(s)));
      }
    }
  }

  static void forward(const Attention& x, const AttentionCall& call, int64_t batch, int64_t kv_head,
                      AttentionSpan piece, int64_t first, float* workspace) {
    const Head head(x, batch, kv_head);
    if (x.dtype == DType::bf16) {
      run<uint16_t>(x, call, head, piece, first, workspace);
    } else {
      run<float>(x, call, head, piece, first, workspace);
    }
  }
};

}  // namespace lignum::kernels
