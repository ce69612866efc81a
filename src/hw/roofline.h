// Time of one piece of work on one device: the slower of arithmetic and memory, with the bound by name, and
// collectives over a torus or between CPU ranks. Fixed cost a node (Spec::dispatch_seconds) is not in it: the
// scheduler adds it once a node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "hw/spec.h"
#include "hw/topology.h"

namespace lignum::hw {

// What one CPU rank has of its machine. `ranks` run at the same time, each with `threads` threads, and share
// cores and memory alike: a rank gets 1/ranks of what the machine does with min(ranks*threads, cores)
// threads. TPU devices share nothing.
struct Share {
  int threads = 1;
  int ranks = 1;
};

enum class Bound { compute, memory, link, none };
std::string_view bound_name(Bound);

struct Estimate {
  double seconds = 0;
  Bound bound = Bound::none;
  double compute_seconds = 0;  // of the arithmetic alone
  double memory_seconds = 0;   // of the traffic to device memory alone
};

// time = max(flops / flop_rate, bytes / byte_rate); FLOP/byte = flops / bytes.
Estimate roofline(double flops, double flop_rate, double bytes, double byte_rate);
double arithmetic_intensity(double flops, double bytes);

// `batch` products C[m,n] = A[m,k] B[k,n]; `result` is C's dtype. Bytes: each matrix once.
struct MatmulWork {
  DType operands = DType::f32;
  DType result = DType::f32;
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  std::string way = {};    // CPU: how bf16 operands are multiplied; empty: the fastest way measured
  bool fp16_sums = false;  // CPU: dots of 8-bit floats by fp16 FMA
};
Result<Estimate> matmul_time(const Spec&, Share, const MatmulWork&);

// Self-attention without the score matrix in memory (flash). `window` > 0: sliding window of that many
// positions. TPU: per (sequence, query head) c * S/2 * (S + b), causal; c * S * S, full: the vector unit is
// the bound, so the cost a score does not depend on head_dim from 64 to 192; c and b are the file's
// (attention.*). A window costs S * (ceil(W/block) + 1) * block scores. CPU: attention_flops() over the
// measured rate.
struct AttentionWork {
  AttentionPass pass = AttentionPass::forward;
  DType dtype = DType::f32;
  int64_t sequences = 1, heads = 1, seq = 0, head_dim = 0;
  bool causal = true;
  int64_t window = 0;
  std::string way = {};  // as MatmulWork::way
  int64_t group = 1;     // CPU: query heads that share a head of keys and values
  // Of a sequence and head, where queries and keys are not the same tokens: pairs that are computed.
  // Causality and window are in them; seq is then that of the keys.
  double pairs = 0;
};
Result<Estimate> attention_time(const Spec&, Share, const AttentionWork&);

// Everything that reads and writes tensors once: element-wise chains, norms, casts, copies, optimiser.
// `bytes` = read + written; `working_set` = bytes that must stay near for the next reader, 0: as many as
// `bytes` (which cache they come from). TPU: bytes over HBM bandwidth, times the file's
// elementwise_multiplier. A row op that is bound by arithmetic is named (`op`, with `elements`): on a CPU it
// costs its measured time if that is more.
struct StreamWork {
  double bytes = 0;
  double working_set = 0;
  std::string op;  // empty: memory only
  DType dtype = DType::f32;
  double elements = 0;
};
Result<Estimate> stream_time(const Spec&, Share, const StreamWork&);

// Bytes between device and host memory, one way.
Result<Estimate> copy_time(const Spec&, Share, double bytes);

// Seconds of one collective, on every device of the group, that no other collective shares links with.
//   `bytes` W: all_gather: the gathered tensor; reduce_scatter: the tensor before it is scattered;
//   all_reduce: the tensor; all_to_all, collective_permute: the tensor of one device. N = devices of the
//   group, L = link one way, d = devices a chip. all_gather, reduce_scatter: W (N-1)/N / B,  all_reduce:
//   twice that, B = directions * L / d: each chip receives over all
//     its links at once, and each of its devices fetches a copy of its own. (Ring bound per axis; measured at
//     2x2x1: all_gather 179 GB/s a chip = 2 x 89.5.)
//   all_to_all: half of all bytes crosses the middle of the longest axis: max over axes of d W n / (4 c) / L,
//   n chips along
//     it, c = 2 (ring) or 1 (line); and no faster than W (N-1)/N / B.
//   collective_permute: d W / L: to the neighbour, over one link.
//   Inside a chip: L = the die-to-die rate, one direction, d = 1.
//   Over S slices, n devices of the group in each, D = a chip's DCN rate / d, in the parts that libtpu 0.0.52
//   makes of it (seen in programs for 2 x tpu7x:2x2x1). Nominal rates: nothing published to check them by.
//     all_gather: shards go to the same devices of the other slices, W/n (S-1)/S / D, then the slice gathers.
//     all_reduce: the slice scatters sums, W/n are summed over slices, 2 W/n (S-1)/S / D, the slice gathers.
//     reduce_scatter: an all_reduce in the slice, of which a device keeps W/n and scatters it over slices,
//       W/n (S-1)/S / D.
//     collective_permute: W / D. all_to_all (not compiled): the slower of slice and W (S-1)/S / D.
// CPU (no topology): W / measured bandwidth for that op and number of ranks. A specification of before
// collective_permute was measured: the all_gather by which a rank receives as many bytes.
Result<double> collective_time(const Spec&, Collective, double bytes, const Group&);
Result<double> collective_time(const Spec& cpu, Collective, double bytes, int ranks);

// A link between ranks that is as slow as it is asked to be, each way: a ring's time for what
// collective_time() calls W bytes. all_gather, reduce_scatter: (N-1) (W/N / bandwidth + latency), all_reduce:
// twice that (Patarasuk, Yuan 2009), collective_permute: W / bandwidth + latency; all_to_all as all_gather.
struct Link {
  double bandwidth = 0;  // bytes a second; 0: there is no such link
  double latency = 0;    // seconds
};
double link_time(const Link& link, Collective op, double bytes, int ranks);

// The FLOPs a device must do a byte of each memory or link so that the link is not the bound: peak bf16 (CPU:
// the best measured f32) over bandwidth, both a chip's. For ICI both directions of one axis count, as is
// usual (tpu7x: 2307e12/200e9).
struct Intensity {
  std::string name;  // "HBM", "ICI, one axis", "DCN", "host copy"
  double flops_per_byte = 0;
};
std::vector<Intensity> hardware_intensities(const Spec&);

}  // namespace lignum::hw
