#include "hw/roofline.h"

#include <algorithm>
#include <cmath>

namespace lignum::hw {
namespace {

// What `share.ranks` ranks together put to work on the machine.
Result<int> active_threads(const Spec& spec, Share share) {
  if (share.threads < 1 || share.ranks < 1) {
    return user_error("threads {}, ranks {}: both at least 1", share.threads, share.ranks);
  }
  return std::min(share.threads * share.ranks, spec.machine().cores);
}

double matrix_bytes(const MatmulWork& w) {
  const auto m = static_cast<double>(w.m), n = static_cast<double>(w.n), k = static_cast<double>(w.k);
  const auto in = static_cast<double>(dtype_size(w.operands)),
             out = static_cast<double>(dtype_size(w.result));
  return static_cast<double>(w.batch) * ((m * k + k * n) * in + m * n * out);
}

// The bytes/bandwidth side on either kind of machine.
Result<double> memory_seconds(const Spec& spec, Share share, double bytes, double working_set) {
  if (bytes <= 0) return 0.0;
  if (!spec.is_cpu()) {
    LIGNUM_ASSIGN_OR_RETURN(const double bandwidth, spec.memory_bandwidth());
    return bytes / bandwidth;
  }
  LIGNUM_ASSIGN_OR_RETURN(const int threads, active_threads(spec, share));
  // The curve is the machine's: `ranks` working sets are alive at once, and one rank gets its part of the
  // bandwidth.
  LIGNUM_ASSIGN_OR_RETURN(const double bandwidth,
                          spec.curves().stream_bandwidth(threads, working_set * share.ranks));
  return bytes * share.ranks / bandwidth;
}

Estimate slower_of(double compute, double memory) {
  Estimate e;
  e.compute_seconds = compute;
  e.memory_seconds = memory;
  e.seconds = std::max(compute, memory);
  e.bound = e.seconds <= 0 ? Bound::none : compute >= memory ? Bound::compute : Bound::memory;
  return e;
}

// Cost of one score: the vector unit's up to wide_head_dim, above it the matrix unit's floor may be more.
Result<double> tpu_score_seconds(const Spec& spec, bool forward, double head_dim) {
  LIGNUM_ASSIGN_OR_RETURN(double seconds,
                          spec.get(forward ? "attention.forward_per_score" : "attention.backward_per_score"));
  const Quantity* wide = spec.find("attention.wide_head_dim");
  const Quantity* factor = spec.find("attention.wide_head_factor");
  const Quantity* floor = spec.find(forward ? "attention.forward_floor" : "attention.backward_floor");
  if (wide != nullptr && head_dim > wide->value) {
    if (factor != nullptr) seconds *= factor->value;
    // Two products forward, five backward, of 2 * head_dim FLOP a score.
    if (floor != nullptr) seconds = std::max(seconds, (forward ? 4 : 10) * head_dim / floor->value);
  }
  return seconds;
}

Result<Estimate> tpu_attention(const Spec& spec, const AttentionWork& w) {
  const bool forward = w.pass == AttentionPass::forward;
  const auto s = static_cast<double>(w.seq);
  LIGNUM_ASSIGN_OR_RETURN(const double per_score,
                          tpu_score_seconds(spec, forward, static_cast<double>(w.head_dim)));
  LIGNUM_ASSIGN_OR_RETURN(const double diagonal, spec.get(forward ? "attention.forward_block_positions"
                                                                  : "attention.backward_block_positions"));
  double scores = w.causal ? s / 2 * (s + diagonal) : s * s;
  double factor = 1;
  if (w.window > 0 && w.window < w.seq) {
    LIGNUM_ASSIGN_OR_RETURN(const double block, spec.get(forward ? "attention.forward_window_block"
                                                                 : "attention.backward_window_block"));
    LIGNUM_ASSIGN_OR_RETURN(const double masks, spec.get("attention.window_factor"));
    const double windowed = s * (std::ceil(static_cast<double>(w.window) / block) + 1) * block;
    // A window wider than half the sequence saves no block.
    if (windowed * masks < scores) {
      scores = windowed;
      factor = masks;
    }
  }
  const double seconds = static_cast<double>(w.sequences * w.heads) * per_score * scores * factor;
  return slower_of(seconds, 0);
}

}  // namespace

std::string_view bound_name(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "compute";
    case Bound::memory:
      return "memory";
    case Bound::link:
      return "link";
    case Bound::none:
      return "none";
  }
  return "none";
}

Estimate roofline(double flops, double flop_rate, double bytes, double byte_rate) {
  LIGNUM_CHECK(flops >= 0 && bytes >= 0 && flop_rate > 0 && byte_rate > 0, "flops {} at {}, bytes {} at {}",
               flops, flop_rate, bytes, byte_rate);
  return slower_of(flops / flop_rate, bytes / byte_rate);
}

double arithmetic_intensity(double flops, double bytes) { return bytes > 0 ? flops / bytes : INFINITY; }

Result<Estimate> matmul_time(const Spec& spec, Share share, const MatmulWork& w) {
  if (w.m <= 0 || w.n <= 0 || w.k <= 0 || w.batch <= 0) return Estimate{};
  const auto m = static_cast<double>(w.m), n = static_cast<double>(w.n), k = static_cast<double>(w.k);
  const double flops = 2 * m * n * k * static_cast<double>(w.batch);
  const double bytes = matrix_bytes(w);
  LIGNUM_ASSIGN_OR_RETURN(const double memory, memory_seconds(spec, share, bytes, bytes));
  if (!spec.is_cpu()) {
    LIGNUM_ASSIGN_OR_RETURN(const double rate, spec.matmul_flops(w.operands));
    return slower_of(flops / rate, memory);
  }
  LIGNUM_ASSIGN_OR_RETURN(const int threads, active_threads(spec, share));
  // 8-bit operands are widened while they are packed: their dots are bf16's, or those of fp16 FMA, which E4M3
  // was measured with (kernels/gemm.h).
  const DType dots = !is_float8(w.operands) ? w.operands : w.fp16_sums ? DType::f8e4m3fn : DType::bf16;
  LIGNUM_ASSIGN_OR_RETURN(const double rate, spec.curves().gemm_flops(dots, threads, m, n, k, w.way));
  return slower_of(flops * share.ranks / rate, memory);
}

Result<Estimate> attention_time(const Spec& spec, Share share, const AttentionWork& w) {
  if (w.sequences <= 0 || w.heads <= 0 || w.seq <= 0 || w.head_dim <= 0) return Estimate{};
  if (w.pairs > 0) {
    AttentionWork all = w;
    all.causal = false;
    all.window = 0;
    all.pairs = 0;
    LIGNUM_ASSIGN_OR_RETURN(const Estimate e, attention_time(spec, share, all));
    const auto seq = static_cast<double>(w.seq);
    return slower_of(e.seconds * w.pairs / (seq * seq), 0);
  }
  if (!spec.is_cpu()) return tpu_attention(spec, w);
  LIGNUM_ASSIGN_OR_RETURN(const int threads, active_threads(spec, share));
  const auto seq = static_cast<double>(w.seq), dim = static_cast<double>(w.head_dim);
  LIGNUM_ASSIGN_OR_RETURN(
      const double rate,
      spec.curves().attention_rate(w.pass, w.dtype, threads, seq, dim, w.way, static_cast<double>(w.group)));
  double flops = attention_flops(w.pass, static_cast<double>(w.sequences), static_cast<double>(w.heads), seq,
                                 dim, w.causal);
  // Each position sees at most `window` others; the first ones see fewer.
  if (w.window > 0 && w.window < w.seq) {
    const auto window = static_cast<double>(w.window);
    flops *= w.causal ? window * (2 * seq - window) / (seq * seq) : std::min(1.0, (2 * window + 1) / seq);
  }
  return slower_of(flops * share.ranks / rate, 0);
}

Result<Estimate> stream_time(const Spec& spec, Share share, const StreamWork& w) {
  const double working_set = w.working_set > 0 ? w.working_set : w.bytes;
  LIGNUM_ASSIGN_OR_RETURN(double memory, memory_seconds(spec, share, w.bytes, working_set));
  if (!spec.is_cpu()) {
    LIGNUM_ASSIGN_OR_RETURN(const double multiplier, spec.get("elementwise.multiplier"));
    return slower_of(0, memory * multiplier);
  }
  double compute = 0;
  if (!w.op.empty() && w.elements > 0) {
    LIGNUM_ASSIGN_OR_RETURN(const int threads, active_threads(spec, share));
    LIGNUM_ASSIGN_OR_RETURN(const double rate,
                            spec.curves().rows_rate(w.op, w.dtype, threads, w.elements * share.ranks));
    compute = w.elements * share.ranks / rate;
  }
  return slower_of(compute, memory);
}

Result<Estimate> copy_time(const Spec& spec, Share share, double bytes) {
  LIGNUM_ASSIGN_OR_RETURN(const double bandwidth, spec.copy_bandwidth());
  Estimate e;
  // A CPU's figure is the machine's; a TPU device has its own part of PCIe.
  e.seconds = bytes * (spec.is_cpu() ? share.ranks : 1) / bandwidth;
  e.memory_seconds = e.seconds;
  e.bound = bytes > 0 ? Bound::link : Bound::none;
  return e;
}

namespace {

// Inside one slice. Per device: what comes in over all links at once, what one link gives, and the
// bisection's share of the bytes that one link must carry in an all_to_all.
struct Links {
  double all = 0, one = 0, bisection = 0;
};

Result<Links> links_of(const Spec& spec, const Group& group) {
  Links links;
  if (group.link == Group::Link::die) {
    LIGNUM_ASSIGN_OR_RETURN(links.one, spec.die_bandwidth());
    links.all = links.one;
    return links;
  }
  LIGNUM_ASSIGN_OR_RETURN(const double link, spec.link_bandwidth());
  links.one = link / spec.devices_per_chip();
  links.all = links.one * group.directions();
  for (size_t a = 0; a < group.shape.size(); ++a) {
    if (group.shape[a] == 1) continue;
    links.bisection =
        std::max(links.bisection, group.interleaved[a] * group.shape[a] / (group.ring[a] ? 8.0 : 4.0));
  }
  return links;
}

Result<double> slice_collective_time(const Spec& spec, Collective op, double bytes, const Group& group) {
  if (group.link == Group::Link::none) return 0.0;
  LIGNUM_ASSIGN_OR_RETURN(const Links links, links_of(spec, group));
  const auto n = static_cast<double>(group.devices);
  const double once = bytes * (n - 1) / n / links.all;
  switch (op) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return once;
    case Collective::all_reduce:
      return 2 * once;
    case Collective::all_to_all:
      return std::max(once, bytes * links.bisection / links.one);
    case Collective::collective_permute:
      return bytes / links.one;
  }
  return internal_error("collective {}", static_cast<int>(op));
}

}  // namespace

Result<double> collective_time(const Spec& spec, Collective op, double bytes, const Group& group) {
  if (spec.is_cpu()) return user_error("{}: a CPU has no torus; pass the number of ranks", spec.name());
  if (group.devices <= 1 || bytes <= 0) return 0.0;
  Group slice = group;
  slice.slices = 1;
  slice.devices = group.devices / group.slices;
  const bool sums_first = group.slices > 1 && op == Collective::reduce_scatter;
  LIGNUM_ASSIGN_OR_RETURN(
      const double inside,
      slice_collective_time(spec, sums_first ? Collective::all_reduce : op, bytes, slice));
  if (group.slices == 1) return inside;

  LIGNUM_ASSIGN_OR_RETURN(const double chip_dcn, spec.dcn_bandwidth());
  const double dcn = chip_dcn / spec.devices_per_chip();
  const double crossing = static_cast<double>(group.slices - 1) / group.slices;
  const double shard = bytes / static_cast<double>(slice.devices);
  switch (op) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return inside + shard * crossing / dcn;
    case Collective::all_reduce:
      return inside + 2 * shard * crossing / dcn;
    case Collective::all_to_all:
      return std::max(inside, bytes * crossing / dcn);
    case Collective::collective_permute:
      return bytes / dcn;
  }
  return internal_error("collective {}", static_cast<int>(op));
}

Result<double> collective_time(const Spec& cpu, Collective op, double bytes, int ranks) {
  if (!cpu.is_cpu()) return user_error("{}: a collective needs a group of its torus", cpu.name());
  if (ranks <= 1 || bytes <= 0) return 0.0;
  const auto& measured = cpu.curves().collectives;
  if (op == Collective::collective_permute &&
      std::none_of(measured.begin(), measured.end(), [&](const CollectivePoint& p) { return p.op == op; })) {
    op = Collective::all_gather;
    bytes *= static_cast<double>(ranks) / (ranks - 1);
  }
  LIGNUM_ASSIGN_OR_RETURN(const double bandwidth, cpu.curves().collective_bandwidth(op, ranks, bytes));
  return bytes / bandwidth;
}

double link_time(const Link& link, Collective op, double bytes, int ranks) {
  if (link.bandwidth <= 0 || ranks <= 1) return 0;
  if (op == Collective::collective_permute) return bytes / link.bandwidth + link.latency;
  const double once = (ranks - 1) * (bytes / ranks / link.bandwidth + link.latency);
  return op == Collective::all_reduce ? 2 * once : once;
}

std::vector<Intensity> hardware_intensities(const Spec& spec) {
  std::vector<Intensity> all;
  const auto add = [&](const char* name, double flops, const Result<double>& bytes_per_second, double times) {
    if (bytes_per_second.ok()) all.push_back({name, flops / (*bytes_per_second * times)});
  };
  if (spec.is_cpu()) {
    const Result<double> peak = spec.peak_matmul_flops(DType::f32);
    if (!peak.ok()) return all;
    add("memory", *peak, spec.memory_bandwidth(), 1);
    add("host copy", *peak, spec.copy_bandwidth(), 1);
    return all;
  }
  const Result<double> peak = spec.get("chip.peak_matmul.bf16");
  LIGNUM_CHECK(peak.ok(), "{}", peak.status().message());  // a TPU specification without it does not load
  add("HBM", *peak, spec.get("chip.memory_bandwidth"), 1);
  add("ICI, one axis", *peak, spec.get("link.nominal_bandwidth"), 2);
  add("die to die", *peak, spec.die_bandwidth(), 2);
  add("DCN", *peak, spec.dcn_bandwidth(), 1);
  add("host copy", *peak, spec.copy_bandwidth(), spec.devices_per_chip());
  return all;
}

}  // namespace lignum::hw
