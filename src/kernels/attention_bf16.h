// Attention on bf16 inputs by pairs (tile_product.h), over any way of taking bf16 dots. Internal; included by
// ISA files only (isa.h).
//
// The layout is that of attention_forward.h and attention_backward.h: scores transposed, keys along rows and
// 32 queries along lanes, here as tiles of [16 keys, 16 queries]. A row of exponentials of a pair of keys is
// then a row of a B tile for the product with v, and a key's 32 exponentials are a row of an A tile for the
// gradients of k and v: nothing is transposed between the products. Exponentials and their gradients are
// rounded to bf16 on the way; sums of exponentials are taken before that.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention_backward.h"
#include "kernels/bf16_tiles.h"
#include "kernels/math.h"

namespace lignum::kernels {

template <class Way>
struct AttentionBf16 {
  using Ops = typename Way::Ops;
  using T = Bf16Tiles<Way>;
  using R = AttentionRows<Ops>;
  using V = typename Ops::V;
  using Head = typename R::Head;
  static constexpr int kLanes = 32;
  static constexpr int64_t kTilePair = 512;  // floats of the tiles of 16 rows and 32 lanes

  LIGNUM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  // Hands out parts of the workspace, aligned to 64 bytes.
  struct Space {
    char* at;
    float* floats(int64_t n) { return reinterpret_cast<float*>(bytes(n * 4)); }
    char* bytes(int64_t n) {
      char* part = at;
      at += (n + 63) / 64 * 64;
      return part;
    }
  };

  // [rows, 32] as tiles: the 16 lanes of half j of a row.
  LIGNUM_INLINE float* lanes_at(float* tiles, int64_t row, int j) {
    return tiles + row / 16 * kTilePair + j * 256 + row % 16 * 16;
  }

  // Rows first .. first + count of q or dout, one after the other, dim apart.
  static void gather(const Attention& x, const Head& head, const uint16_t* base, int64_t first, int64_t count,
                     uint16_t* to) {
    for (int64_t i = 0; i < count; ++i, to += x.dim) {
      const uint16_t* from = base + head.row(x, first + i);
      int64_t d = 0;
      for (; d + 32 <= x.dim; d += 32) _mm512_storeu_si512(to + d, _mm512_loadu_si512(from + d));
      const __mmask32 rest = T::first(x.dim - d);
      if (d < x.dim) _mm512_mask_storeu_epi16(to + d, rest, _mm512_maskz_loadu_epi16(rest, from + d));
    }
  }

  // [dim, 32] as tiles become 32 rows of padded_dim floats.
  static void transpose_back(const float* tiles, int64_t dim, float* rows) {
    const int64_t stride = R::padded_dim(dim);
    for (int64_t d = 0; d < dim; d += 16) {
      for (int j = 0; j < 2; ++j) {
        V r[16];
        LIGNUM_UNROLL
        for (int i = 0; i < 16; ++i) r[i] = Ops::load(tiles + d / 16 * kTilePair + j * 256 + i * 16);
        Ops::transpose(r);
        LIGNUM_UNROLL
        for (int i = 0; i < 16; ++i) Ops::store(rows + (j * 16 + i) * stride + d, r[i]);
      }
    }
  }

  // Between two blocks of keys, for each lane: as AttentionForward::State; out is tiles of [dim, 32].
  struct State {
    float* largest;
    float* sum;
    float* out;
  };

  // One block of keys: scores come in, their exponentials go out as panels of B.
  static void softmax_block(float* scores, int64_t keys, const typename R::Mask& mask, float scale,
                            int64_t dim, const State& state, char* panels) {
    const V scale_v = Ops::set1(scale);
    V largest[2], shrink[2], sum[2];
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) largest[j] = Ops::load(state.largest + j * 16);
    for (int64_t i = 0; i < keys; ++i) {
      LIGNUM_UNROLL
      for (int j = 0; j < 2; ++j) {
        float* at = lanes_at(scores, i, j);
        V s = Ops::mul(Ops::load(at), scale_v);
        if (mask.may_hide(i)) s = R::if_seen(mask, i, j, s, Ops::set1(-R::kInfinity));
        Ops::store(at, s);
        largest[j] = Ops::max(largest[j], s);
      }
    }
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) {
      // As AttentionForward: a lane that has seen no key yet.
      if (mask.may_hide_all()) largest[j] = Ops::max(Ops::set1(-0x1.fffffep127f), largest[j]);
      shrink[j] = exp_of<Ops>(Ops::sub(Ops::load(state.largest + j * 16), largest[j]));
      Ops::store(state.largest + j * 16, largest[j]);
      sum[j] = Ops::zero();
    }
    const int64_t panel = panel_bytes(kAttentionBlock);
    for (int64_t i = 0; i < keys; i += 2) {
      LIGNUM_UNROLL
      for (int j = 0; j < 2; ++j) {
        const V even = exp_of<Ops>(Ops::sub(Ops::load(lanes_at(scores, i, j)), largest[j]));
        sum[j] = Ops::add(sum[j], even);
        V odd = Ops::zero();
        if (i + 1 < keys) {
          odd = exp_of<Ops>(Ops::sub(Ops::load(lanes_at(scores, i + 1, j)), largest[j]));
          sum[j] = Ops::add(sum[j], odd);
        }
        _mm512_store_si512(panels + j * panel + i / 2 * 64, T::narrow_pairs(even, odd));
      }
    }
    clear_pairs(panels, panel, keys);
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) {
      float* at = state.sum + j * 16;
      Ops::store(at, Ops::fma(Ops::load(at), shrink[j], sum[j]));
      for (int64_t d = 0; d < dim; ++d) {
        float* o = lanes_at(state.out, d, j);
        Ops::store(o, Ops::mul(Ops::load(o), shrink[j]));
      }
    }
  }

  // Pairs of keys from `keys` up to whole tiles are zeros.
  static void clear_pairs(char* panels, int64_t panel, int64_t keys) {
    for (int64_t pair = (keys + 1) / 2; pair < tiles_of(keys, kTileK) * 16; ++pair) {
      _mm512_store_si512(panels + pair * 64, _mm512_setzero_si512());
      _mm512_store_si512(panels + panel + pair * 64, _mm512_setzero_si512());
    }
  }

  static void forward(const Attention& x, const AttentionCall& call, int64_t batch, int64_t kv_head,
                      AttentionSpan piece, int64_t first, float* workspace) {
    const Head head(x, batch, kv_head);
    const int64_t dim = x.dim, dim_tiles = tiles_of(dim, kTileK), group = head.group;
    const int64_t rows = smaller(kAttentionTaskRows, piece.last * group - first);
    const int64_t panels = tiles_of(rows, kLanes);
    const int64_t q_bytes = packed_bytes(kLanes, dim), out_floats = dim_tiles * 2 * kTilePair;
    Space space{reinterpret_cast<char*>(workspace)};
    char* queries = space.bytes(panels * q_bytes);
    float* sums = space.floats(panels * out_floats);
    float* largest = space.floats(panels * kLanes);
    float* sum = space.floats(panels * kLanes);
    char* packed_k = space.bytes(packed_bytes(kAttentionBlock, dim));
    char* packed_v = space.bytes(packed_bytes(dim, kAttentionBlock));
    float* scores = space.floats(kAttentionBlock * kLanes);
    char* exponentials = space.bytes(packed_bytes(kLanes, kAttentionBlock));
    auto* gathered = reinterpret_cast<uint16_t*>(space.bytes(kLanes * dim * 2));
    float* lane_rows = space.floats(kLanes * R::padded_dim(dim));
    float* position = space.floats(kLanes);
    float* lane_ids = space.floats(kLanes);
    Way::begin();

    for (int64_t p = 0; p < panels; ++p) {
      const int64_t count = smaller(kLanes, rows - p * kLanes);
      gather(x, head, static_cast<const uint16_t*>(call.q), first + p * kLanes, count, gathered);
      T::pack_b(gathered, dim, false, count, dim, queries + p * q_bytes);
    }
    for (int64_t i = 0; i < panels * kLanes; ++i) largest[i] = -R::kInfinity;
    for (int64_t i = 0; i < panels * kLanes; ++i) sum[i] = 0;
    for (int64_t i = 0; i < panels * out_floats; ++i) sums[i] = 0;

    const int64_t ld = x.kv_heads * dim, last = (first + rows - 1) / group + piece.shift;
    const auto documents = R::documents_of_rows(x, head, call.tokens, first, rows);
    for (int64_t k = 0; k < x.key_pieces; ++k) {
      const AttentionSpan of_keys = R::key_piece(x, call.tokens, k);
      // Keys that some row sees.
      const int64_t end = x.causal ? smaller(of_keys.last, last + 1 - of_keys.shift) : of_keys.last;
      for (int64_t key = of_keys.first; key < end; key += kAttentionBlock) {
        const int64_t keys = smaller(kAttentionBlock, end - key), place = key + of_keys.shift;
        const int32_t* key_ids = R::key_ids(x, head, call.tokens, key);
        const auto block = R::documents(key_ids, keys);
        if (block.apart_from(documents)) continue;
        T::pack_a(static_cast<const uint16_t*>(call.k) + head.key(x, key), ld, false, keys, dim, packed_k);
        T::pack_a(static_cast<const uint16_t*>(call.v) + head.key(x, key), ld, true, dim, keys, packed_v);
        for (int64_t p = 0; p < panels; ++p) {
          const int64_t row = first + p * kLanes;
          const int64_t count = smaller(kLanes, rows - p * kLanes);
          const auto own = R::documents_of_rows(x, head, call.tokens, row, count);
          if (block.apart_from(own)) continue;
          int64_t seen = keys;
          typename R::Mask mask{.first_key = place, .masked = keys, .position = position};
          if (x.causal) {
            seen = smaller(keys, (row + count - 1) / group + piece.shift + 1 - place);
            if (seen <= 0) continue;
            mask.masked = row / group + piece.shift + 1 - place;
          }
          R::positions(head, piece.shift, row, count, position);
          if (!block.are_one_with(own)) {
            R::lane_ids(x, head, call.tokens, row, count, lane_ids);
            mask.lane_ids = lane_ids;
            mask.key_ids = key_ids;
          }
          T::multiply({.rows = seen,
                       .columns = kLanes,
                       .k_tiles = dim_tiles,
                       .a = packed_k,
                       .a_panel = panel_bytes(dim),
                       .b = queries + p * q_bytes,
                       .b_panel = panel_bytes(dim),
                       .partial = scores,
                       .partial_row = kTilePair,
                       .store = true});
          const State state{largest + p * kLanes, sum + p * kLanes, sums + p * out_floats};
          softmax_block(scores, seen, mask, x.scale, dim, state, exponentials);
          T::multiply({.rows = dim,
                       .columns = kLanes,
                       .k_tiles = tiles_of(seen, kTileK),
                       .a = packed_v,
                       .a_panel = panel_bytes(keys),
                       .b = exponentials,
                       .b_panel = panel_bytes(kAttentionBlock),
                       .partial = state.out,
                       .partial_row = kTilePair,
                       .add = true,
                       .store = true});
        }
      }
    }

    for (int64_t p = 0; p < panels; ++p) {
      transpose_back(sums + p * out_floats, dim, lane_rows);
      const int64_t count = smaller(kLanes, rows - p * kLanes);
      for (int64_t l = 0; l < count; ++l) {
        const int64_t row = first + p * kLanes + l;
        const float s = sum[p * kLanes + l];
        // s is 0 where the row has seen no key.
        R::store_row(lane_rows + l * R::padded_dim(dim), dim, s == 0 ? 0.0f : 1.0f / s, false,
                     static_cast<uint16_t*>(call.out) + head.row(x, row));
        call.lse[head.lse(x, row)] =
            static_cast<float>(static_cast<double>(largest[p * kLanes + l]) + ::log(static_cast<double>(s)));
      }
    }
    Way::end();
  }

  // What the gradient of one panel of lanes needs beside its scores.
  struct Lanes {
    int64_t count;  // that exist
    float position[kLanes], ids[kLanes], lse[kLanes], delta[kLanes];
  };

  // scores, dp -> p and ds as rows of A's tiles (one tile of k, its panels a_panel bytes apart), and ds as
  // panels of B.
  static void probabilities(const float* scores, const float* dp, int64_t keys, const typename R::Mask& mask,
                            float scale, const Lanes& lanes, char* p_rows, char* ds_rows, int64_t a_panel,
                            char* ds_panels) {
    const int64_t b_panel = panel_bytes(kAttentionBlock);
    const V scale_v = Ops::set1(scale);
    const __mmask32 exist = T::first(lanes.count);
    V lse[2], delta[2];
    LIGNUM_UNROLL
    for (int j = 0; j < 2; ++j) {
      lse[j] = Ops::load(lanes.lse + j * 16);
      delta[j] = Ops::load(lanes.delta + j * 16);
    }
    V ds[2][2];
    for (int64_t pair = 0; pair < keys; pair += 2) {
      LIGNUM_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const int64_t i = pair + odd;
        V p[2];
        LIGNUM_UNROLL
        for (int j = 0; j < 2; ++j) {
          if (i >= keys) {
            ds[odd][j] = Ops::zero();
            continue;
          }
          const int64_t at = i / 16 * kTilePair + j * 256 + i % 16 * 16;
          p[j] = exp_of<Ops>(Ops::sub(Ops::mul(Ops::load(scores + at), scale_v), lse[j]));
          if (mask.may_hide(i)) p[j] = R::if_seen(mask, i, j, p[j], Ops::zero());
          ds[odd][j] = Ops::mul(p[j], Ops::sub(Ops::load(dp + at), delta[j]));
        }
        if (i >= keys) continue;
        const int64_t row = i / 16 * a_panel + i % 16 * 64;
        _mm512_store_si512(p_rows + row, _mm512_maskz_mov_epi16(exist, T::narrow(p[0], p[1])));
        _mm512_store_si512(ds_rows + row, _mm512_maskz_mov_epi16(exist, T::narrow(ds[odd][0], ds[odd][1])));
      }
      LIGNUM_UNROLL
      for (int j = 0; j < 2; ++j) {
        _mm512_store_si512(ds_panels + j * b_panel + pair / 2 * 64, T::narrow_pairs(ds[0][j], ds[1][j]));
      }
    }
    clear_pairs(ds_panels, b_panel, keys);
  }

  // to[row, :] = (add ? to : 0) + factor * tiles of [rows, dim].
  static void add_tiles(const float* tiles, int64_t rows, int64_t dim, float factor, bool add, float* to,
                        int64_t ld) {
    const V f = Ops::set1(factor);
    const int64_t row_floats = tiles_of(dim, 32) * 512;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t d = 0; d < dim; d += 16) {
        const int n = static_cast<int>(smaller(16, dim - d));
        float* at = to + i * ld + d;
        V v = Ops::mul(Ops::load(tiles + i / 16 * row_floats + d / 16 * 256 + i % 16 * 16), f);
        if (add) v = Ops::add(Ops::load_n(at, n), v);
        Ops::store_n(at, v, n);
      }
    }
  }

  static void backward(const Attention& x, const AttentionGradCall& call, int64_t batch, int64_t kv_head,
                       AttentionSpan of_queries, AttentionSpan of_keys, bool first_visit, float* workspace) {
    const Head head(x, batch, kv_head);
    const int64_t group = head.group, dim = x.dim, dim_tiles = tiles_of(dim, kTileK),
                  stride = R::padded_dim(dim);
    const int64_t block_tiles = kAttentionBlock / 16;
    const int64_t grad_floats = block_tiles * dim_tiles * 512;
    const int64_t lane_bytes = packed_bytes(kLanes, dim);
    const int64_t a_panel = panel_bytes(kAttentionGradRows), d_panel = panel_bytes(dim);
    Space space{reinterpret_cast<char*>(workspace)};
    char* packed_k = space.bytes(packed_bytes(kAttentionBlock, dim));
    char* packed_v = space.bytes(packed_bytes(kAttentionBlock, dim));
    char* packed_kt = space.bytes(packed_bytes(dim, kAttentionBlock));
    auto* q_rows = reinterpret_cast<uint16_t*>(space.bytes(kAttentionGradRows * dim * 2));
    auto* dout_rows = reinterpret_cast<uint16_t*>(space.bytes(kAttentionGradRows * dim * 2));
    char* q_columns = space.bytes(packed_bytes(dim, kAttentionGradRows));
    char* dout_columns = space.bytes(packed_bytes(dim, kAttentionGradRows));
    char* q_lanes = space.bytes(lane_bytes);
    char* dout_lanes = space.bytes(lane_bytes);
    float* scores = space.floats(kAttentionBlock * kLanes);
    float* dp = space.floats(kAttentionBlock * kLanes);
    char* packed_p = space.bytes(packed_bytes(kAttentionBlock, kAttentionGradRows));
    char* packed_ds = space.bytes(packed_bytes(kAttentionBlock, kAttentionGradRows));
    char* ds_panels = space.bytes(packed_bytes(kLanes, kAttentionBlock));
    float* dq_lanes = space.floats(dim_tiles * 2 * kTilePair);
    float* dk_tiles = space.floats(grad_floats);
    float* dv_tiles = space.floats(grad_floats);
    float* lane_rows = space.floats(kLanes * stride);

    const int64_t key = of_keys.first, keys = of_keys.last - key, place = key + of_keys.shift;
    const int64_t begin = of_queries.first * group, end = of_queries.last * group;
    // Never on a first visit: keys and queries are the same positions then.
    const int32_t* key_ids = R::key_ids(x, head, call.tokens, key);
    const auto block = R::documents(key_ids, keys);
    if (block.apart_from(R::documents_of_rows(x, head, call.tokens, begin, end - begin))) return;
    // Of the block's keys, how many some row up to that one sees.
    const auto seen_by = [&](int64_t row) {
      return x.causal ? smaller(keys, row / group + of_queries.shift + 1 - place) : keys;
    };
    Way::begin();
    const int64_t ld = x.kv_heads * dim;
    const uint16_t* k = static_cast<const uint16_t*>(call.k) + head.key(x, key);
    T::pack_a(k, ld, false, keys, dim, packed_k);
    T::pack_a(static_cast<const uint16_t*>(call.v) + head.key(x, key), ld, false, keys, dim, packed_v);
    T::pack_a(k, ld, true, dim, keys, packed_kt);
    for (int64_t i = 0; i < grad_floats; ++i) dk_tiles[i] = 0;
    for (int64_t i = 0; i < grad_floats; ++i) dv_tiles[i] = 0;

    for (int64_t first = begin; first < end; first += kAttentionGradRows) {
      const int64_t rows = smaller(kAttentionGradRows, end - first);
      if (block.apart_from(R::documents_of_rows(x, head, call.tokens, first, rows))) continue;
      const int64_t group_seen = seen_by(first + rows - 1);
      if (group_seen <= 0) continue;
      gather(x, head, static_cast<const uint16_t*>(call.q), first, rows, q_rows);
      gather(x, head, static_cast<const uint16_t*>(call.dout), first, rows, dout_rows);
      T::pack_b(q_rows, dim, true, dim, rows, q_columns);
      T::pack_b(dout_rows, dim, true, dim, rows, dout_columns);
      for (int64_t from = 0; from < rows; from += kLanes) {
        const int64_t row = first + from;
        const int64_t seen = R::larger(0, seen_by(smaller(row + kLanes, first + rows) - 1));
        char* p_tile = packed_p + from / kTileK * kTileBytes;
        char* ds_tile = packed_ds + from / kTileK * kTileBytes;
        if (seen > 0) {
          alignas(64) Lanes lanes;
          lanes.count = smaller(kLanes, rows - from);
          typename R::Mask mask{.first_key = place,
                                .masked = x.causal ? row / group + of_queries.shift + 1 - place : keys,
                                .position = lanes.position};
          R::positions(head, of_queries.shift, row, lanes.count, lanes.position);
          if (!block.are_one_with(R::documents_of_rows(x, head, call.tokens, row, lanes.count))) {
            R::lane_ids(x, head, call.tokens, row, lanes.count, lanes.ids);
            mask.lane_ids = lanes.ids;
            mask.key_ids = key_ids;
          }
          for (int64_t l = 0; l < kLanes; ++l) {
            const int64_t at = head.flat(x, row + smaller(l, lanes.count - 1));
            lanes.lse[l] = call.row_lse[at];
            lanes.delta[l] = call.row_delta[at];
          }
          T::pack_b(q_rows + from * dim, dim, false, lanes.count, dim, q_lanes);
          T::pack_b(dout_rows + from * dim, dim, false, lanes.count, dim, dout_lanes);
          TileProduct product{.rows = seen,
                              .columns = kLanes,
                              .k_tiles = dim_tiles,
                              .a = packed_k,
                              .a_panel = d_panel,
                              .b = q_lanes,
                              .b_panel = d_panel,
                              .partial = scores,
                              .partial_row = kTilePair,
                              .store = true};
          T::multiply(product);
          product.a = packed_v;
          product.b = dout_lanes;
          product.partial = dp;
          T::multiply(product);
          probabilities(scores, dp, seen, mask, x.scale, lanes, p_tile, ds_tile, a_panel, ds_panels);
          T::multiply({.rows = dim,
                       .columns = kLanes,
                       .k_tiles = tiles_of(seen, kTileK),
                       .a = packed_kt,
                       .a_panel = panel_bytes(keys),
                       .b = ds_panels,
                       .b_panel = panel_bytes(kAttentionBlock),
                       .partial = dq_lanes,
                       .partial_row = kTilePair,
                       .store = true});
          transpose_back(dq_lanes, dim, lane_rows);
          for (int64_t l = 0; l < lanes.count; ++l)
            R::store_row(lane_rows + l * stride, dim, x.scale, !first_visit, call.dq + head.row(x, row + l));
        }
        for (int64_t i = seen; i < tiles_of(group_seen, 32) * 32; ++i) {
          _mm512_store_si512(p_tile + i / 16 * a_panel + i % 16 * 64, _mm512_setzero_si512());
          _mm512_store_si512(ds_tile + i / 16 * a_panel + i % 16 * 64, _mm512_setzero_si512());
        }
      }
      TileProduct product{.rows = group_seen,
                          .columns = dim,
                          .k_tiles = tiles_of(rows, kTileK),
                          .a = packed_p,
                          .a_panel = a_panel,
                          .b = dout_columns,
                          .b_panel = panel_bytes(rows),
                          .partial = dv_tiles,
                          .partial_row = dim_tiles * 512,
                          .add = true,
                          .store = true};
      T::multiply(product);
      product.a = packed_ds;
      product.b = q_columns;
      product.partial = dk_tiles;
      T::multiply(product);
    }
    add_tiles(dv_tiles, keys, dim, 1.0f, !first_visit, call.dv + head.key(x, key), ld);
    add_tiles(dk_tiles, keys, dim, x.scale, !first_visit, call.dk + head.key(x, key), ld);
    Way::end();
  }

  static const char* refuses(const Attention& x) {
    if (x.window > 0) return "windows are for the fp32 products";
    if (x.softcap > 0) return "soft caps are for the fp32 products";
    return x.dtype == DType::bf16 ? nullptr : "dtype is not bf16";
  }

  static constexpr AttentionPath path(Bf16Dot dot) {
    return {Isa::avx512,
            dot,
            &refuses,
            &forward,
            &AttentionBackward<Ops>::prepare,
            &backward,
            &AttentionBackward<Ops>::round};
  }
};

}  // namespace lignum::kernels
