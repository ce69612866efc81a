#include "kernels/cached_attention.h"

#include <algorithm>
#include <cstring>

#include "base/round.h"
#include "kernels/attention.h"
#include "kernels/attention_path.h"
#include "kernels/decode_attention_path.h"

namespace lignum::kernels {
namespace {

// Up to as many tokens each is a decoding step of its own, which reads the cache anew; beyond, tiles of
// tokens share what they read, after packing it.
constexpr int64_t kDecodeTokens = 4;

// Elements of the cache below which a hand-over to other threads costs more than the reading (some 10 us).
constexpr int64_t kSerialElements = 32768;

constexpr const DecodePath* kDecodePaths[] = {&kDecodeAvx512, &kDecodeAvx2, &kDecodeScalar};

const DecodePath& path_for(Choice choice) {
  for (const DecodePath* path : kDecodePaths)
    if (path->isa == choice.isa) return *path;
  LIGNUM_CHECK(false, "no decoding attention of {}", isa_name(choice.isa));
  __builtin_unreachable();
}

constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));

bool decodes(const CachedAttention& x) { return x.tokens <= kDecodeTokens; }
int64_t padded_dim(const CachedAttention& x) { return round_up(x.dim, 64); }
int64_t decode_floats(const CachedAttention& x) {
  const int64_t group = x.heads / x.kv_heads;
  return round_up(group * (2 * padded_dim(x) + kAttentionBlock + 3), 16);
}

// The last `count` tokens of a sequence of that length.
Attention sequence(const CachedAttention& x, int64_t length, int64_t count) {
  return {.batch = 1,
          .queries = count,
          .keys = length,
          .heads = x.heads,
          .kv_heads = x.kv_heads,
          .dim = x.dim,
          .dtype = x.dtype,
          .scale = x.scale,
          .causal = true,
          .window = x.window,
          .softcap = x.softcap};
}
int64_t lse_bytes(const CachedAttention& x) { return round_up(x.tokens * x.heads * kFloat, 64); }

}  // namespace

Status cached_attention_supported(const CachedAttention& x) {
  if (x.batch < 0 || x.tokens < 0 || x.capacity < 0) {
    return user_error("cached_attention: batch is {}, tokens {}, capacity {}; 0 or more is allowed", x.batch,
                      x.tokens, x.capacity);
  }
  return attention_supported(sequence(x, x.capacity, x.tokens));
}

Status cached_rows_fit(int64_t batch, int64_t tokens, int64_t capacity, const int32_t* start,
                       const int32_t* count) {
  for (int64_t b = 0; b < batch; ++b) {
    if (count[b] < 0 || count[b] > tokens)
      return user_error("row {}: count is {}; 0 to {}, the step's tokens, is allowed", b, count[b], tokens);
    if (start[b] < 0 || start[b] > capacity - count[b]) {
      return user_error("row {}: {} token{} from position {} on do not fit in a cache of {} positions", b,
                        count[b], count[b] == 1 ? "" : "s", start[b], capacity);
    }
  }
  return {};
}

int64_t cached_attention_workspace(const CachedAttention& x, int threads) {
  if (decodes(x)) return decode_floats(x) * kFloat * threads;
  return lse_bytes(x) + attention_workspace(sequence(x, x.capacity, x.tokens), threads);
}

void cached_attention(Choice choice, const CachedAttention& x, const void* q, const void* k, const void* v,
                      const int32_t* start, const int32_t* count, void* out, void* workspace,
                      Parallel& pool) {
  const int64_t size = dtype_size(x.dtype), token = x.heads * x.dim * size, key = x.kv_heads * x.dim * size;
  const auto at = [](auto* base, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(base)>>, const char, char>;
    return static_cast<Byte*>(base) + bytes;
  };
  for (int64_t b = 0; b < x.batch; ++b)
    std::memset(at(out, (b * x.tokens + count[b]) * token), 0,
                static_cast<size_t>((x.tokens - count[b]) * token));
  if (!decodes(x)) {
    for (int64_t b = 0; b < x.batch; ++b) {
      if (count[b] == 0) continue;
      attention(choice, sequence(x, start[b] + count[b], count[b]), at(q, b * x.tokens * token),
                at(k, b * x.capacity * key), at(v, b * x.capacity * key), at(out, b * x.tokens * token),
                static_cast<float*>(workspace), at(workspace, lse_bytes(x)), pool,
                {.query_starts = start + b});
    }
    return;
  }
  const DecodePath& path = path_for(choice);
  const int64_t group = x.heads / x.kv_heads, floats = decode_floats(x);
  int64_t elements = 0;
  for (int64_t b = 0; b < x.batch; ++b) elements += 2 * count[b] * (start[b] + count[b]) * x.kv_heads * x.dim;
  Serial serial;
  Parallel& threads = elements < kSerialElements ? serial : pool;
  threads.run(x.batch * x.tokens * x.kv_heads, [&](int64_t task, int thread) {
    const int64_t h = task % x.kv_heads, t = task / x.kv_heads % x.tokens, b = task / x.kv_heads / x.tokens;
    if (t >= count[b]) return;
    const int64_t query = ((b * x.tokens + t) * x.heads + h * group) * x.dim * size;
    const int64_t first_key = (b * x.capacity * x.kv_heads + h) * x.dim * size;
    path.token({.q = at(q, query),
                .k = at(k, first_key),
                .v = at(v, first_key),
                .out = at(out, query),
                .first_key = x.window > 0 ? std::max<int64_t>(0, start[b] + t + 1 - x.window) : 0,
                .keys = start[b] + t + 1,
                .group = group,
                .dim = x.dim,
                .ld = x.kv_heads * x.dim,
                .padded_dim = padded_dim(x),
                .dtype = x.dtype,
                .scale = x.scale,
                .softcap = x.softcap},
               static_cast<float*>(workspace) + thread * floats);
  });
}

}  // namespace lignum::kernels
