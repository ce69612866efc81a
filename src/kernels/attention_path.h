// Between attention.cc and the ISA files. Internal.
//
// Rows: the queries of one key/value head, row r = query * group + (head in the group). Neighbouring lanes
// of a vector are neighbouring rows, so a group of heads fills vectors even for one query. A task's rows, and
// a block's keys, are of one piece.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace lignum::kernels {

constexpr int64_t kAttentionBlock = 224;     // keys (and, in the gradient, positions) a block; fixes bits
constexpr int64_t kAttentionTaskRows = 512;  // rows a forward task takes; bits do not depend on it
constexpr int64_t kAttentionGradRows = 128;  // rows summed in one chain for dk and dv; fixes bits

struct AttentionCall {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* lse;
  AttentionTokens tokens;
};

// Some consecutive queries or keys: token i of them, first <= i < last, stands at position i + shift.
struct AttentionSpan {
  int64_t first, last, shift;
};

struct AttentionGradCall {
  const void* dout;
  const void* q;
  const void* k;
  const void* v;
  const void* out;
  const float* lse;
  // fp32 sums, in the layouts of q, k and v.
  float* dq;
  float* dk;
  float* dv;
  // [B, Hkv, rows]: lse, and the sum over d of dout * out.
  float* row_lse;
  float* row_delta;
  AttentionTokens tokens;
};

struct AttentionPath {
  Isa isa;
  Bf16Dot dot;
  const char* (*refuses)(const Attention&);  // nullptr, or why this path does not take the shape
  // Rows [first, first + kAttentionTaskRows) of one batch entry and key/value head, as far as the piece goes.
  void (*forward)(const Attention&, const AttentionCall&, int64_t batch, int64_t kv_head, AttentionSpan piece,
                  int64_t first, float* workspace);
  // row_lse and row_delta of rows [first, first + kAttentionTaskRows).
  void (*prepare)(const Attention&, const AttentionGradCall&, int64_t batch, int64_t kv_head, int64_t first,
                  float* workspace);
  // Adds what some queries and some keys, at most kAttentionBlock each, give to dq, dk and dv; `first_visit`,
  // of queries and keys at the same positions, overwrites.
  void (*backward)(const Attention&, const AttentionGradCall&, int64_t batch, int64_t kv_head,
                   AttentionSpan queries, AttentionSpan keys, bool first_visit, float* workspace);
  void (*round)(const float* from, uint16_t* to, int64_t n);  // to bf16
};

extern const AttentionPath kAttentionScalar, kAttentionAvx2, kAttentionAvx512, kAttentionVdpbf16ps,
    kAttentionAmx;

// Floats a thread needs; enough for every choice.
int64_t attention_forward_floats(const Attention&);
int64_t attention_backward_floats(const Attention&);

}  // namespace lignum::kernels
