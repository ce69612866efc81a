#include "kernels/attention.h"

#include <algorithm>
#include <utility>

#include "base/round.h"
#include "kernels/attention_path.h"
#include "kernels/tile_product.h"

namespace lignum::kernels {
namespace {

// Best first within an ISA; a way of bf16 dots other than the chosen one is passed over.
constexpr const AttentionPath* kAttentionPaths[] = {&kAttentionAmx, &kAttentionVdpbf16ps, &kAttentionAvx512,
                                                    &kAttentionAvx2, &kAttentionScalar};

const AttentionPath& path_for(Choice choice, const Attention& x) {
  for (const AttentionPath* path : kAttentionPaths) {
    if (path->dot != Bf16Dot::fma && path->dot != choice.bf16_dot) continue;
    if (path->isa == choice.isa && path->refuses(x) == nullptr) return *path;
  }
  LIGNUM_CHECK(false, "no attention path of {} takes S={} H={} Hkv={} D={}", isa_name(choice.isa), x.seq,
               x.heads, x.kv_heads, x.dim);
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
  const int64_t rows = round_up(std::min(kAttentionTaskRows, x.seq * (x.heads / x.kv_heads)), 32);
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

bool empty(const Attention& x) { return x.batch == 0 || x.seq == x.first; }

// fp32 sums beside bf16 gradients, in floats.
struct GradScratch {
  int64_t lse = 0, delta = 0, dq = 0, dk = 0, dv = 0, threads = 0;
};
GradScratch grad_scratch(const Attention& x) {
  const int64_t rows = x.batch * x.seq * x.heads, keys = x.batch * x.seq * x.kv_heads;
  const bool sums = x.dtype == DType::bf16;
  GradScratch s;
  s.delta = round_up(rows, 16);
  s.dq = s.delta + round_up(rows, 16);
  s.dk = s.dq + (sums ? round_up(rows * x.dim, 16) : 0);
  s.dv = s.dk + (sums ? round_up(keys * x.dim, 16) : 0);
  s.threads = s.dv + (sums ? round_up(keys * x.dim, 16) : 0);
  return s;
}

void round_all(const AttentionPath& path, const float* from, void* to, int64_t n, Parallel& pool) {
  constexpr int64_t kPiece = 1 << 16;
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
  // Positions are compared as fp32 in the causal mask.
  if (x.seq < 0 || x.seq > (1 << 24)) return user_error("attention: seq is {}; 0 to 2^24 is allowed", x.seq);
  if (x.first < 0 || x.first > x.seq)
    return user_error("attention: first is {}; 0 to seq, {}, is allowed", x.first, x.seq);
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

Status segments_supported(const Attention& x, const int32_t* segments) {
  constexpr int32_t kMost = 1 << 24;  // compared as fp32
  for (int64_t i = 0; i < x.batch * x.seq; ++i) {
    if (segments[i] < 0 || segments[i] > kMost) {
      return user_error("attention: row {}, position {}: segment is {}; 0 to 2^24 is allowed", i / x.seq,
                        i % x.seq, segments[i]);
    }
  }
  return {};
}

int64_t attention_forward_floats(const Attention& x) {
  const int64_t rows = round_up(std::min(kAttentionTaskRows, x.seq * (x.heads / x.kv_heads)), kMostLanes);
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
               float* lse, void* workspace, Parallel& pool, const int32_t* segments) {
  if (empty(x)) return;
  const AttentionPath& path = path_for(choice, x);
  const AttentionCall call{q, k, v, out, lse, segments};
  const int64_t group = x.heads / x.kv_heads;
  const int64_t chunks = ceil_div((x.seq - x.first) * group, kAttentionTaskRows);
  const int64_t heads = x.batch * x.kv_heads;
  const int64_t floats = attention_forward_floats(x);
  pool.run(chunks * heads, [&](int64_t t, int thread) {
    // The last rows see the most keys: the long tasks first.
    const int64_t chunk = chunks - 1 - t / heads, head = t % heads;
    path.forward(x, call, head / x.kv_heads, head % x.kv_heads, x.first * group + chunk * kAttentionTaskRows,
                 static_cast<float*>(workspace) + thread * floats);
  });
}

void attention_grad(Choice choice, const Attention& x, const void* dout, const void* q, const void* k,
                    const void* v, const void* out, const float* lse, void* dq, void* dk, void* dv,
                    void* workspace, Parallel& pool, const int32_t* segments) {
  if (empty(x)) return;
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
                               segments};
  const int64_t heads = x.batch * x.kv_heads;
  const int64_t floats = attention_backward_floats(x);
  const auto thread_base = [&](int thread) { return base + scratch.threads + thread * floats; };

  const int64_t chunks = ceil_div(x.seq * (x.heads / x.kv_heads), kAttentionTaskRows);
  pool.run(chunks * heads, [&](int64_t t, int thread) {
    path.prepare(x, call, (t / chunks) / x.kv_heads, (t / chunks) % x.kv_heads,
                 t % chunks * kAttentionTaskRows, thread_base(thread));
  });
  // Waves over the square (or triangle) of blocks: in wave w the keys of block j meet the queries of block j
  // + w, so no two tasks add to the same place, and dq, dk and dv are summed in the order of the waves
  // whoever runs a task.
  const int64_t blocks = ceil_div(x.seq, kAttentionBlock);
  // With a window, the queries of block j + w and the keys of block j meet while (w - 1) blocks and one
  // position are less than it.
  const int64_t waves =
      x.window > 0 ? std::min(blocks, (x.window + kAttentionBlock - 2) / kAttentionBlock + 1) : blocks;
  for (int64_t wave = 0; wave < waves; ++wave) {
    const int64_t width = x.causal ? blocks - wave : blocks;
    pool.run(width * heads, [&](int64_t t, int thread) {
      const int64_t head = t / width, j = t % width;
      path.backward(x, call, head / x.kv_heads, head % x.kv_heads, (j + wave) % blocks, j, wave == 0,
                    thread_base(thread));
    });
  }
  if (!sums) return;
  round_all(path, call.dq, dq, x.batch * x.seq * x.heads * x.dim, pool);
  round_all(path, call.dk, dk, x.batch * x.seq * x.kv_heads * x.dim, pool);
  round_all(path, call.dv, dv, x.batch * x.seq * x.kv_heads * x.dim, pool);
}

}  // namespace lignum::kernels
