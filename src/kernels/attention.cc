#include "kernels/attention.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/round.h"
#include "kernels/attention_path.h"
#include "kernels/tile_product.h"

namespace lignum::kernels {
namespace {

// Best first within an ISA; a way of bf16 dots other than the chosen one is passed over.
// Positions and numbers of documents are compared as fp32.
constexpr int32_t kMostPosition = 1 << 24;

constexpr const AttentionPath* kAttentionPaths[] = {&kAttentionAmx, &kAttentionVdpbf16ps, &kAttentionAvx512,
                                                    &kAttentionAvx2, &kAttentionScalar};

const AttentionPath& path_for(Choice choice, const Attention& x) {
  for (const AttentionPath* path : kAttentionPaths) {
    if (path->dot != Bf16Dot::fma && path->dot != choice.bf16_dot) continue;
    if (path->isa == choice.isa && path->refuses(x) == nullptr) return *path;
  }
  LIGNUM_CHECK(false, "no attention path of {} takes Sq={} Sk={} H={} Hkv={} D={}", isa_name(choice.isa),
               x.queries, x.keys, x.heads, x.kv_heads, x.dim);
  __builtin_unreachable();
}

// The most, over the ISAs, that a workspace part takes: panels of A of 14 rows in 16 floats, 6 in 8, 4 in 4;
// panels of B and lanes of 32.
constexpr int64_t kMostLanes = 32;
int64_t a_floats(int64_t rows, int64_t k) {
  return round_up(std::max(ceil_div(rows, 14) * 16, ceil_div(rows, 6) * 8) * k, 16);
}
int64_t b_floats(int64_t columns, int64_t k) { return round_up(columns, kMostLanes) * k; }

// As AttentionBf16 hands out the workspace, each part up to 64 bytes: floats.
int64_t bf16_forward_floats(const Attention& x) {
  const int64_t rows = round_up(std::min(kAttentionTaskRows, x.queries * (x.heads / x.kv_heads)), 32);
  const int64_t bytes = rows / 32 * packed_bytes(32, x.dim) + packed_bytes(kAttentionBlock, x.dim) +
                        packed_bytes(x.dim, kAttentionBlock) + packed_bytes(32, kAttentionBlock) +
                        round_up(32 * x.dim * 2, 64);
  return bytes / 4 + rows * round_up(x.dim, 32) + 2 * rows + kAttentionBlock * 32 + 32 * round_up(x.dim, 16) +
         64;
}
int64_t bf16_backward_floats(const Attention& x) {
  const int64_t bytes = 2 * packed_bytes(kAttentionBlock, x.dim) + packed_bytes(x.dim, kAttentionBlock) +
                        2 * round_up(kAttentionGradRows * x.dim * 2, 64) +
                        2 * packed_bytes(x.dim, kAttentionGradRows) + 2 * packed_bytes(32, x.dim) +
                        2 * packed_bytes(kAttentionBlock, kAttentionGradRows) +
                        packed_bytes(32, kAttentionBlock);
  return bytes / 4 + 2 * kAttentionBlock * 32 + (32 + 2 * kAttentionBlock) * round_up(x.dim, 32) +
         32 * round_up(x.dim, 16);
}

// One kind of a call's tokens, in its pieces and their blocks.
struct Pieces {
  int64_t count, length;
  const int32_t* starts;

  AttentionSpan piece(int64_t p) const {
    return {p * length, (p + 1) * length, starts == nullptr ? 0 : starts[p] - p * length};
  }
  int64_t blocks_of_piece() const { return ceil_div(length, kAttentionBlock); }
  int64_t blocks() const { return count * blocks_of_piece(); }
  AttentionSpan block(int64_t b) const {
    const AttentionSpan all = piece(b / blocks_of_piece());
    const int64_t first = all.first + b % blocks_of_piece() * kAttentionBlock;
    return {first, std::min(first + kAttentionBlock, all.last), all.shift};
  }
};
Pieces queries_of(const Attention& x, const AttentionTokens& tokens) {
  return {x.query_pieces, x.queries / x.query_pieces, tokens.query_starts};
}
Pieces keys_of(const Attention& x, const AttentionTokens& tokens) {
  return {x.key_pieces, x.keys / x.key_pieces, tokens.key_starts};
}

// Whether causal mask and window leave a pair of one of the queries and one of the keys.
bool meet(const Attention& x, const AttentionSpan& queries, const AttentionSpan& keys) {
  const int64_t last_query = queries.last - 1 + queries.shift, last_key = keys.last - 1 + keys.shift;
  if (x.causal && keys.first + keys.shift > last_query) return false;
  return x.window == 0 || last_key > queries.first + queries.shift - x.window;
}

// fp32 sums beside bf16 gradients, in floats.
struct GradScratch {
  int64_t lse = 0, delta = 0, dq = 0, dk = 0, dv = 0, threads = 0;
};
GradScratch grad_scratch(const Attention& x) {
  const int64_t rows = x.batch * x.queries * x.heads, keys = x.batch * x.keys * x.kv_heads;
  const bool sums = x.dtype == DType::bf16;
  GradScratch s;
  s.delta = round_up(rows, 16);
  s.dq = s.delta + round_up(rows, 16);
  s.dk = s.dq + (sums ? round_up(rows * x.dim, 16) : 0);
  s.dv = s.dk + (sums ? round_up(keys * x.dim, 16) : 0);
  s.threads = s.dv + (sums ? round_up(keys * x.dim, 16) : 0);
  return s;
}

constexpr int64_t kPiece = 1 << 16;  // elements a task; bits do not depend on it

void clear_all(float* to, int64_t n, Parallel& pool) {
  pool.run(ceil_div(n, kPiece),
           [&](int64_t t, int) { std::fill(to + t * kPiece, to + std::min(n, (t + 1) * kPiece), 0.0f); });
}

void round_all(const AttentionPath& path, const float* from, void* to, int64_t n, Parallel& pool) {
  pool.run(ceil_div(n, kPiece), [&](int64_t t, int) {
    path.round(from + t * kPiece, static_cast<uint16_t*>(to) + t * kPiece, std::min(kPiece, n - t * kPiece));
  });
}

}  // namespace

Status attention_supported(const Attention& x) {
  if (x.dtype != DType::f32 && x.dtype != DType::bf16) {
    return user_error("attention: dtype is {}; f32 and bf16 are allowed: convert it first",
                      dtype_name(x.dtype));
  }
  if (x.batch < 0) return user_error("attention: batch is {}; 0 or more is allowed", x.batch);
  for (const auto& [what, tokens, pieces] :
       {std::tuple("queries", x.queries, x.query_pieces), std::tuple("keys", x.keys, x.key_pieces)}) {
    if (tokens < 0 || tokens > kMostPosition)
      return user_error("attention: {} is {}; 0 to 2^24 is allowed", what, tokens);
    if (pieces < 1 || tokens % pieces != 0)
      return user_error("attention: {} {} in {} pieces; a divisor is allowed", tokens, what, pieces);
  }
  if (x.heads < 1 || x.kv_heads < 1 || x.heads % x.kv_heads != 0) {
    return user_error("attention: heads is {} and kv_heads {}; a positive multiple of kv_heads is allowed",
                      x.heads, x.kv_heads);
  }
  if (x.window < 0 || (x.window > 0 && !x.causal))
    return user_error("attention: window is {}, causal {}; 0, or more with causal, is allowed", x.window,
                      x.causal);
  if (!(x.softcap >= 0)) return user_error("attention: softcap is {}; 0 or more is allowed", x.softcap);
  if (x.dim < 1) return user_error("attention: dim is {}; 1 or more is allowed", x.dim);
  return {};
}

Status tokens_supported(const Attention& x, const AttentionTokens& tokens) {
  for (const auto& [what, pieces] :
       {std::pair("queries", queries_of(x, tokens)), std::pair("keys", keys_of(x, tokens))}) {
    for (int64_t p = 0; pieces.starts != nullptr && p < pieces.count; ++p) {
      if (const int64_t most = kMostPosition - pieces.length; pieces.starts[p] < 0 || pieces.starts[p] > most)
        return user_error("attention: piece {} of the {} starts at {}; 0 to {} is allowed", p, what,
                          pieces.starts[p], most);
    }
  }
  for (const auto& [segments, count] :
       {std::pair(tokens.query_segments, x.queries), std::pair(tokens.key_segments, x.keys)}) {
    for (int64_t i = 0; segments != nullptr && i < x.batch * count; ++i) {
      if (segments[i] < 0 || segments[i] > kMostPosition)
        return user_error("attention: row {}, position {}: segment is {}; 0 to 2^24 is allowed", i / count,
                          i % count, segments[i]);
    }
  }
  return {};
}

int64_t attention_forward_floats(const Attention& x) {
  const int64_t rows = round_up(std::min(kAttentionTaskRows, x.queries * (x.heads / x.kv_heads)), kMostLanes);
  const int64_t floats = 2 * rows * x.dim + 2 * rows + a_floats(kAttentionBlock, x.dim) +
                         a_floats(x.dim, kAttentionBlock) + kAttentionBlock * kMostLanes +
                         kMostLanes * round_up(x.dim, 16) + 2 * kMostLanes;
  return x.dtype == DType::bf16 ? std::max(floats, bf16_forward_floats(x)) : floats;
}

int64_t attention_backward_floats(const Attention& x) {
  const int64_t floats = 2 * a_floats(kAttentionBlock, x.dim) + a_floats(x.dim, kAttentionBlock) +
                         2 * kAttentionGradRows * round_up(x.dim, 16) +
                         2 * b_floats(x.dim, kAttentionGradRows) + 3 * kMostLanes * x.dim +
                         kMostLanes * round_up(x.dim, 16) + 2 * kAttentionBlock * kMostLanes +
                         2 * a_floats(kAttentionBlock, kAttentionGradRows) + 4 * kMostLanes;
  return x.dtype == DType::bf16 ? std::max(floats, bf16_backward_floats(x)) : floats;
}

int64_t attention_workspace(const Attention& x, int threads) {
  return attention_forward_floats(x) * threads * static_cast<int64_t>(sizeof(float));
}

int64_t attention_grad_workspace(const Attention& x, int threads) {
  return (grad_scratch(x).threads + attention_backward_floats(x) * threads) *
         static_cast<int64_t>(sizeof(float));
}

void attention(Choice choice, const Attention& x, const void* q, const void* k, const void* v, void* out,
               float* lse, void* workspace, Parallel& pool, const AttentionTokens& tokens) {
  if (x.batch == 0 || x.queries == 0) return;
  const AttentionPath& path = path_for(choice, x);
  const AttentionCall call{q, k, v, out, lse, tokens};
  const int64_t group = x.heads / x.kv_heads;
  const Pieces queries = queries_of(x, tokens);
  const int64_t chunks = ceil_div(queries.length * group, kAttentionTaskRows);
  const int64_t heads = x.batch * x.kv_heads;
  const int64_t floats = attention_forward_floats(x);
  pool.run(queries.count * chunks * heads, [&](int64_t t, int thread) {
    // The last rows see the most keys: the long tasks first.
    const int64_t at = queries.count * chunks - 1 - t / heads, head = t % heads;
    const AttentionSpan piece = queries.piece(at / chunks);
    path.forward(x, call, head / x.kv_heads, head % x.kv_heads, piece,
                 piece.first * group + at % chunks * kAttentionTaskRows,
                 static_cast<float*>(workspace) + thread * floats);
  });
}

void attention_grad(Choice choice, const Attention& x, const void* dout, const void* q, const void* k,
                    const void* v, const void* out, const float* lse, void* dq, void* dk, void* dv,
                    void* workspace, Parallel& pool, const AttentionTokens& tokens) {
  if (x.batch == 0) return;
  const AttentionPath& path = path_for(choice, x);
  const GradScratch scratch = grad_scratch(x);
  float* base = static_cast<float*>(workspace);
  const bool sums = x.dtype == DType::bf16;
  const AttentionGradCall call{dout,
                               q,
                               k,
                               v,
                               out,
                               lse,
                               sums ? base + scratch.dq : static_cast<float*>(dq),
                               sums ? base + scratch.dk : static_cast<float*>(dk),
                               sums ? base + scratch.dv : static_cast<float*>(dv),
                               base + scratch.lse,
                               base + scratch.delta,
                               tokens};
  const int64_t heads = x.batch * x.kv_heads;
  const int64_t floats = attention_backward_floats(x);
  const auto thread_base = [&](int thread) { return base + scratch.threads + thread * floats; };

  const int64_t chunks = ceil_div(x.queries * (x.heads / x.kv_heads), kAttentionTaskRows);
  pool.run(chunks * heads, [&](int64_t t, int thread) {
    path.prepare(x, call, (t / chunks) / x.kv_heads, (t / chunks) % x.kv_heads,
                 t % chunks * kAttentionTaskRows, thread_base(thread));
  });
  // Queries and keys at the same positions: each block meets itself first, which overwrites.
  const bool same = tokens.query_starts == nullptr && tokens.key_starts == nullptr && x.queries == x.keys;
  if (!same) {
    clear_all(call.dq, x.batch * x.queries * x.heads * x.dim, pool);
    clear_all(call.dk, x.batch * x.keys * x.kv_heads * x.dim, pool);
    clear_all(call.dv, x.batch * x.keys * x.kv_heads * x.dim, pool);
  }
  // Waves over the rectangle of blocks: in wave w the keys of block j meet the queries of block j + w, so no
  // two tasks add to the same place, and dq, dk and dv are summed in the order of the waves whoever runs a
  // task.
  const Pieces queries = queries_of(x, tokens), keys = keys_of(x, tokens);
  const int64_t of_queries = queries.blocks(), of_keys = keys.blocks(), waves = std::max(of_queries, of_keys);
  for (int64_t wave = 0; wave < waves; ++wave) {
    const auto block_of = [&](int64_t j) { return (j + wave) % waves; };
    const auto meets = [&](int64_t j) {
      const int64_t i = block_of(j);
      return i < of_queries && meet(x, queries.block(i), keys.block(j));
    };
    int64_t first = 0, last = of_keys;  // none of the others meets its queries
    while (first < last && !meets(first)) ++first;
    while (last > first && !meets(last - 1)) --last;
    const int64_t width = last - first;
    pool.run(width * heads, [&](int64_t t, int thread) {
      const int64_t head = t / width, j = first + t % width;
      if (!meets(j)) return;
      path.backward(x, call, head / x.kv_heads, head % x.kv_heads, queries.block(block_of(j)), keys.block(j),
                    same && wave == 0, thread_base(thread));
    });
  }
  if (!sums) return;
  round_all(path, call.dq, dq, x.batch * x.queries * x.heads * x.dim, pool);
  round_all(path, call.dk, dk, x.batch * x.keys * x.kv_heads * x.dim, pool);
  round_all(path, call.dv, dv, x.batch * x.keys * x.kv_heads * x.dim, pool);
}

}  // namespace lignum::kernels
