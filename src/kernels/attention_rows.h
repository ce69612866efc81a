// Attention over the panels of panels.h: moving rows in and out. Internal; included by ISA files only
// (isa.h).
//
// Scores are kept transposed, keys along rows and queries along lanes: the maximum, exponential and sum of
// the softmax are then vertical, the scores already have the layout of a B panel for the product with v, and
// no sum depends on the vector width.
#pragma once

#include <cstdint>

#include "kernels/attention_path.h"
#include "kernels/math.h"
#include "kernels/panels.h"

namespace lignum::kernels {

template <class Ops>
struct AttentionRows {
  using P = Panels<Ops>;
  using V = typename Ops::V;
  static constexpr int kWidth = Ops::kWidth;
  static constexpr int kLanes = P::kColumns;
  static constexpr float kInfinity = __builtin_inff();

  LIGNUM_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
  LIGNUM_INLINE int64_t padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }

  // One batch entry and key/value head: where its rows and keys are.
  struct Head {
    int64_t batch, kv_head, group, rows;
    Head(const Attention& x, int64_t b, int64_t h)
        : batch(b), kv_head(h), group(x.heads / x.kv_heads), rows(x.queries * group) {}
    // First element of a row of q, out or their gradients.
    int64_t row(const Attention& x, int64_t r) const {
      return ((batch * x.queries + r / group) * x.heads + kv_head * group + r % group) * x.dim;
    }
    int64_t key(const Attention& x, int64_t s) const {
      return ((batch * x.keys + s) * x.kv_heads + kv_head) * x.dim;
    }
    int64_t lse(const Attention& x, int64_t r) const {
      return (batch * x.heads + kv_head * group + r % group) * x.queries + r / group;
    }
    // The same row in [B, Hkv, rows].
    int64_t flat(const Attention& x, int64_t r) const { return (batch * x.kv_heads + kv_head) * rows + r; }
  };

  template <class T>
  static void load_row(const T* from, int64_t n, float factor, float* to) {
    const V f = Ops::set1(factor);
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) Ops::store(to + i, Ops::mul(Ops::load(from + i), f));
    const int rest = static_cast<int>(n - i);
    if (rest > 0) Ops::store_n(to + i, Ops::mul(Ops::load_n(from + i, rest), f), rest);
  }

  // Rows first .. first + count, times factor, one after the other with padded_dim floats each.
  template <class T>
  static void load_rows(const Attention& x, const Head& head, const T* base, int64_t first, int64_t count,
                        float factor, float* to) {
    for (int64_t i = 0; i < count; ++i) {
      load_row(base + head.row(x, first + i), x.dim, factor, to + i * padded_dim(x.dim));
    }
  }

  // to[i] = (add ? to[i] : 0) + from[i] * factor.
  template <class T>
  static void store_row(const float* from, int64_t n, float factor, bool add, T* to) {
    const V f = Ops::set1(factor);
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      V v = Ops::mul(Ops::load(from + i), f);
      if (add) v = Ops::add(Ops::load(to + i), v);
      Ops::store(to + i, v);
    }
    const int rest = static_cast<int>(n - i);
    if (rest == 0) return;
    V v = Ops::mul(Ops::load_n(from + i, rest), f);
    if (add) v = Ops::add(Ops::load_n(to + i, rest), v);
    Ops::store_n(to + i, v, rest);
  }

  // `count` rows become the lanes of a panel [dim, kLanes]; lanes beyond repeat the last row.
  static void pack_rows(const float* rows, int64_t stride, int64_t count, int64_t dim, float* panel) {
    for (int j = 0; j < kLanes; j += kWidth) {
      const int64_t first = P::smaller(j, count - 1);
      const int lines = static_cast<int>(P::smaller(kWidth, count - first));
      P::pack_lines(rows + first * stride, stride, lines, dim, panel + j, kLanes);
    }
  }

  // [dim, kLanes] -> kLanes rows of padded_dim floats.
  static void transpose_back(const float* panel, int64_t dim, float* rows) {
    for (int64_t d = 0; d < dim; d += kWidth) {
      const int n = static_cast<int>(P::smaller(kWidth, dim - d));
      P::pack_lines(panel + d * kLanes, kLanes, n, kLanes, rows + d, padded_dim(dim));
    }
  }

  // Piece p of the keys.
  static AttentionSpan key_piece(const Attention& x, const AttentionTokens& tokens, int64_t p) {
    const int64_t length = x.keys / x.key_pieces, first = p * length;
    return {first, first + length, tokens.key_starts == nullptr ? 0 : tokens.key_starts[p] - first};
  }

  // The documents of some tokens: the smallest of their numbers and the largest.
  struct Documents {
    int32_t least = 0, most = 0;
    bool apart_from(const Documents& o) const { return most < o.least || o.most < least; }
    bool are_one_with(const Documents& o) const { return least == o.most && most == o.least; }
  };
  // Of `count` tokens; all of document 0 where there are no segments.
  static Documents documents(const int32_t* ids, int64_t count) {
    if (ids == nullptr) return {};
    Documents d{ids[0], ids[0]};
    for (int64_t i = 1; i < count; ++i) {
      d.least = ids[i] < d.least ? ids[i] : d.least;
      d.most = ids[i] > d.most ? ids[i] : d.most;
    }
    return d;
  }
  // The segments of keys from that one on; null where there are none.
  static const int32_t* key_ids(const Attention& x, const Head& head, const AttentionTokens& tokens,
                                int64_t key) {
    return tokens.key_segments == nullptr ? nullptr : tokens.key_segments + head.batch * x.keys + key;
  }
  static const int32_t* query_ids(const Attention& x, const Head& head, const AttentionTokens& tokens) {
    return tokens.query_segments == nullptr ? nullptr : tokens.query_segments + head.batch * x.queries;
  }
  // Of the queries of rows first .. first + count.
  static Documents documents_of_rows(const Attention& x, const Head& head, const AttentionTokens& tokens,
                                     int64_t first, int64_t count) {
    const int64_t query = first / head.group;
    const int32_t* ids = query_ids(x, head, tokens);
    return documents(ids == nullptr ? nullptr : ids + query, (first + count - 1) / head.group + 1 - query);
  }

  // What hides keys of a block, which begins at position first_key, from lanes of a panel: those from
  // `masked` on may stand after a lane's position; those before `clear` may be too old, the oldest that a
  // lane sees being its position less `reach`; and where numbers of documents are given, key i's must be the
  // lane's.
  struct Mask {
    int64_t first_key = 0, masked = 0, clear = 0;
    float reach = 0;
    const float* position = nullptr;
    const int32_t* key_ids = nullptr;
    const float* lane_ids = nullptr;

    bool may_hide(int64_t i) const { return i >= masked || i < clear || key_ids != nullptr; }
    // Some lane may see no key of the block.
    bool may_hide_all() const { return clear > 0 || masked <= 0 || key_ids != nullptr; }
  };
  // x where half j of the lanes sees key i of the block, else y.
  LIGNUM_INLINE V if_seen(const Mask& m, int64_t i, int j, V x, V y) {
    const V position = Ops::load(m.position + j * kWidth);
    const V key = Ops::set1(static_cast<float>(m.first_key + i));
    if (i >= m.masked) x = Ops::if_ge(position, key, x, y);
    if (i < m.clear) x = Ops::if_ge(key, Ops::sub(position, Ops::set1(m.reach)), x, y);
    if (m.key_ids != nullptr) {
      const V lane = Ops::load(m.lane_ids + j * kWidth), id = Ops::set1(static_cast<float>(m.key_ids[i]));
      x = Ops::if_ge(lane, id, Ops::if_ge(id, lane, x, y), y);
    }
    return x;
  }

  // First position that a query at that one sees.
  LIGNUM_INLINE int64_t first_seen(const Attention& x, int64_t position) {
    return x.window > 0 ? larger(0, position - x.window + 1) : 0;
  }

  // scores = c tanh(scores / c), n of them, a multiple of kWidth.
  static void cap(float softcap, float* scores, int64_t n) {
    const V c = Ops::set1(softcap), inverse = Ops::set1(1.0f / softcap);
    for (int64_t i = 0; i < n; i += kWidth)
      Ops::store(scores + i, Ops::mul(c, tanh_of<Ops>(Ops::mul(Ops::load(scores + i), inverse))));
  }

  // Positions of a panel's lanes; lanes beyond count stand where the last one does.
  static void positions(const Head& head, int64_t shift, int64_t first, int64_t count, float* to) {
    for (int64_t l = 0; l < kLanes; ++l) {
      to[l] = static_cast<float>((first + P::smaller(l, count - 1)) / head.group + shift);
    }
  }

  // Numbers of their documents, likewise.
  static void lane_ids(const Attention& x, const Head& head, const AttentionTokens& tokens, int64_t first,
                       int64_t count, float* to) {
    const int32_t* ids = query_ids(x, head, tokens);
    for (int64_t l = 0; l < kLanes; ++l) {
      to[l] = static_cast<float>(ids[(first + P::smaller(l, count - 1)) / head.group]);
    }
  }
};

}  // namespace lignum::kernels
