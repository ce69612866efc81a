// Attention of one token over a cache, the queries of one key/value head: bound by the reading of the cache,
// which is read once for a group of heads. The steps and the order of every sum are those of
// attention_forward.h, so the bits are too. Internal; included by ISA files only (isa.h).
#pragma once

#include <cstdint>

#include "kernels/attention_path.h"
#include "kernels/decode_attention_path.h"
#include "kernels/lines.h"
#include "kernels/math.h"

namespace lignum::kernels {

template <class Ops>
struct DecodeAttention {
  using L = Lines<Ops>;
  using V = typename Ops::V;
  static constexpr int kWidth = Ops::kWidth;
  static constexpr int kHeads = 4;    // query heads whose sums are in registers together
  static constexpr int kVectors = 4;  // vectors of the head dim likewise

  LIGNUM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
  // Calls fn with the number of heads as a constant.
  template <int kH, class Fn>
  LIGNUM_INLINE void with_heads(int64_t heads, const Fn& fn) {
    if constexpr (kH > 1) {
      if (heads < kH) return with_heads<kH - 1>(heads, fn);
    }
    fn.template operator()<kH>();
  }

  // scores[h * kAttentionBlock + i] = q[h] . k[i]
  template <int kH, class T>
  static void score(const DecodeCall& x, const T* k, int64_t keys, const float* q, float* scores) {
    for (int64_t i = 0; i < keys; i += kWidth) {
      const int lines = static_cast<int>(smaller(kWidth, keys - i));
      V sum[kH];
      LIGNUM_UNROLL
      for (int h = 0; h < kH; ++h) sum[h] = Ops::zero();
      L::template dot<kH>(k + i * x.ld, x.ld, lines, x.dim, q, x.padded_dim, kWidth * x.ld, sum);
      LIGNUM_UNROLL
      for (int h = 0; h < kH; ++h) Ops::store(scores + h * kAttentionBlock + i, sum[h]);
    }
  }

  // scores = c tanh(scores / c)
  static void cap(float softcap, float* scores, int64_t n) {
    const V c = Ops::set1(softcap), inverse = Ops::set1(1.0f / softcap);
    for (int64_t i = 0; i < n; i += kWidth)
      Ops::store(scores + i, Ops::mul(c, tanh_of<Ops>(Ops::mul(Ops::load(scores + i), inverse))));
  }

  // A block of scores becomes exponentials; returns what the sums so far are multiplied by.
  static float softmax_block(float* scores, int64_t keys, float& largest, float& sum) {
    const float before = largest;
    for (int64_t i = 0; i < keys; ++i) largest = ScalarOps::max(largest, scores[i]);
    const V shift = Ops::set1(largest);
    for (int64_t i = 0; i < keys; i += kWidth)
      Ops::store(scores + i, exp_of<Ops>(Ops::sub(Ops::load(scores + i), shift)));
    float block = 0;
    for (int64_t i = 0; i < keys; ++i) block += scores[i];
    const float shrink = exp_of(before - largest);
    sum = __builtin_fmaf(sum, shrink, block);
    return shrink;
  }

  // out[h] = out[h] shrink[h] + sum_i e[h][i] v[i], over kVectors vectors of the head dim from d on.
  template <int kH, class T>
  static void weigh(const DecodeCall& x, const T* v, int64_t keys, int64_t d, const float* e,
                    const float* shrink, float* out) {
    V sum[kH][kVectors];
    LIGNUM_UNROLL
    for (int h = 0; h < kH; ++h) {
      LIGNUM_UNROLL
      for (int j = 0; j < kVectors; ++j) sum[h][j] = Ops::zero();
    }
    const auto add = [&](int64_t i, const V(&row)[kVectors]) __attribute__((always_inline)) {
      LIGNUM_UNROLL
      for (int h = 0; h < kH; ++h) {
        const V weight = Ops::set1(e[h * kAttentionBlock + i]);
        LIGNUM_UNROLL
        for (int j = 0; j < kVectors; ++j) sum[h][j] = Ops::fma(weight, row[j], sum[h][j]);
      }
    };
    V row[kVectors];
    if (d + kVectors * kWidth <= x.dim) {
      for (int64_t i = 0; i < keys; ++i) {
        LIGNUM_UNROLL
        for (int j = 0; j < kVectors; ++j) row[j] = Ops::load(v + i * x.ld + d + j * kWidth);
        add(i, row);
      }
    } else {
      int lanes[kVectors];
      for (int j = 0; j < kVectors; ++j) {
        const int64_t left = x.dim - d - j * kWidth;
        lanes[j] = static_cast<int>(left < 0 ? 0 : smaller(left, kWidth));
      }
      for (int64_t i = 0; i < keys; ++i) {
        LIGNUM_UNROLL
        for (int j = 0; j < kVectors; ++j) {
          row[j] = lanes[j] > 0 ? Ops::load_n(v + i * x.ld + d + j * kWidth, lanes[j]) : Ops::zero();
        }
        add(i, row);
      }
    }
    LIGNUM_UNROLL
    for (int h = 0; h < kH; ++h) {
      const V factor = Ops::set1(shrink[h]);
      LIGNUM_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        float* at = out + h * x.padded_dim + d + j * kWidth;
        Ops::store(at, Ops::add(Ops::mul(Ops::load(at), factor), sum[h][j]));
      }
    }
  }

  template <class T>
  static void run(const DecodeCall& x, float* workspace) {
    float* q = workspace;
    float* out = q + x.group * x.padded_dim;
    float* scores = out + x.group * x.padded_dim;
    float* largest = scores + x.group * kAttentionBlock;
    float* sum = largest + x.group;
    float* shrink = sum + x.group;
    const auto* from = static_cast<const T*>(x.q);
    const V scale = Ops::set1(x.scale);
    for (int64_t h = 0; h < x.group; ++h) {
      for (int64_t d = 0; d < x.dim; d += kWidth) {
        const int n = static_cast<int>(smaller(kWidth, x.dim - d));
        Ops::store(q + h * x.padded_dim + d, Ops::mul(Ops::load_n(from + h * x.dim + d, n), scale));
      }
      for (int64_t d = 0; d < x.padded_dim; ++d) out[h * x.padded_dim + d] = 0;
      largest[h] = -__builtin_inff();
      sum[h] = 0;
    }
    // Blocks lie where they do in a whole sequence; what a window hides of the first adds zeros there,
    // nothing here.
    for (int64_t key = x.first_key, next = 0; key < x.keys; key = next) {
      next = (key / kAttentionBlock + 1) * kAttentionBlock;
      const int64_t keys = smaller(next, x.keys) - key;
      const T* k = static_cast<const T*>(x.k) + key * x.ld;
      const T* v = static_cast<const T*>(x.v) + key * x.ld;
      for (int64_t h = 0; h < x.group; h += kHeads) {
        with_heads<kHeads>(smaller(kHeads, x.group - h), [&]<int kH>() {
          score<kH>(x, k, keys, q + h * x.padded_dim, scores + h * kAttentionBlock);
        });
      }
      if (x.softcap > 0) cap(x.softcap, scores, x.group * kAttentionBlock);
      for (int64_t h = 0; h < x.group; ++h)
        shrink[h] = softmax_block(scores + h * kAttentionBlock, keys, largest[h], sum[h]);
      for (int64_t h = 0; h < x.group; h += kHeads) {
        with_heads<kHeads>(smaller(kHeads, x.group - h), [&]<int kH>() {
          for (int64_t d = 0; d < x.dim; d += kVectors * kWidth) {
            weigh<kH>(x, v, keys, d, scores + h * kAttentionBlock, shrink + h, out + h * x.padded_dim);
          }
        });
      }
    }
    auto* to = static_cast<T*>(x.out);
    for (int64_t h = 0; h < x.group; ++h) {
      const V factor = Ops::set1(1.0f / sum[h]);
      for (int64_t d = 0; d < x.dim; d += kWidth) {
        const int n = static_cast<int>(smaller(kWidth, x.dim - d));
        Ops::store_n(to + h * x.dim + d, Ops::mul(Ops::load(out + h * x.padded_dim + d), factor), n);
      }
    }
  }

  static void token(const DecodeCall& x, float* workspace) {
    if (x.dtype == DType::bf16) {
      run<uint16_t>(x, workspace);
    } else {
      run<float>(x, workspace);
    }
  }

  static constexpr DecodePath path(Isa isa) { return DecodePath{isa, &token}; }
};

}  // namespace lignum::kernels
