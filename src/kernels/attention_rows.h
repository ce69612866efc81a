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
        : batch(b), kv_head(h), group(x.heads / x.kv_heads), rows(x.seq * group) {}
    // First element of a row of q, out or their gradients.
    int64_t row(const Attention& x, int64_t r) const {
      return ((batch * (x.seq - x.first) + r / group - x.first) * x.heads + kv_head * group + r % group) *
             x.dim;
    }
    int64_t key(const Attention& x, int64_t s) const {
      return ((batch * x.seq + s) * x.kv_heads + kv_head) * x.dim;
    }
    int64_t lse(const Attention& x, int64_t r) const {
      return (batch * x.heads + kv_head * group + r % group) * (x.seq - x.first) + r / group - x.first;
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
  static void positions(const Head& head, int64_t first, int64_t count, float* to) {
    for (int64_t l = 0; l < kLanes; ++l) {
      to[l] = static_cast<float>((first + P::smaller(l, count - 1)) / head.group);
    }
  }
};

}  // namespace lignum::kernels
