#include "plan/node_time.h"

#include <algorithm>

namespace lignum::plan {
namespace {

// `bytes` of the row op's traffic with a reuse distance of as many, under its name where the specification
// has measured it.
Result<hw::Estimate> row_time(const hw::Spec& spec, hw::Share share, const RowWork& row, double bytes) {
  hw::StreamWork work;
  work.bytes = bytes;
  if (spec.is_cpu()) {
    const auto& rows = spec.curves().rows;
    const bool known = std::any_of(rows.begin(), rows.end(), [&](const hw::RowsPoint& p) {
      return p.op == row.name && p.dtype == row.dtype;
    });
    if (known) {
      work.op = row.name;
      work.dtype = row.dtype;
      work.elements = bytes / static_cast<double>(dtype_size(row.dtype));
    }
  }
  return hw::stream_time(spec, share, work);
}

// Each operand at the rate of its own distance.
Result<hw::Estimate> row_time(const hw::Spec& spec, hw::Share share, const RowWork& row, double bytes,
                              std::span<const Traffic> traffic) {
  if (!spec.is_cpu() || traffic.empty()) return row_time(spec, share, row, bytes);
  hw::Estimate sum;
  for (const Traffic& t : traffic) {
    const double distance = std::max(t.distance, bytes);
    LIGNUM_ASSIGN_OR_RETURN(const hw::Estimate e, row_time(spec, share, row, distance));
    const double part = t.share * bytes / distance;
    sum.seconds += part * e.seconds;
    sum.compute_seconds += part * e.compute_seconds;
    sum.memory_seconds += part * e.memory_seconds;
  }
  sum.bound = sum.compute_seconds >= sum.memory_seconds ? hw::Bound::compute : hw::Bound::memory;
  return sum;
}

// What head and loss do between their products: the loss of a tile of logits, in f32, and its gradient, which
// a step of bf16 writes in two bytes an element.
Result<double> loss_seconds(const hw::Spec& spec, hw::Share share, const ops::Site& site,
                            const ops::Cost& cost) {
  const auto tokens = static_cast<double>(cost.m), logits = tokens * static_cast<double>(cost.n);
  const double tile = std::min(tokens, static_cast<double>(site.attrs.get_or<int64_t>("tile", cost.m)));
  const auto width = static_cast<double>(dtype_size(DType::f32));
  const auto seconds = [&](const char* op, double elements) -> Result<double> {
    const double bytes = elements * width;
    LIGNUM_ASSIGN_OR_RETURN(const hw::Estimate e,
                            row_time(spec, share, {op, DType::f32, elements}, bytes * tile / tokens));
    return e.seconds * tokens / tile;
  };
  LIGNUM_ASSIGN_OR_RETURN(double all, seconds("cross_entropy", logits));
  if (cost.transcendentals <= logits) return all;
  const auto written = static_cast<double>(dtype_size(site.in[0].dtype));
  LIGNUM_ASSIGN_OR_RETURN(const double gradient,
                          seconds("cross_entropy_grad", logits * (1 + written / width)));
  return all + gradient;
}

}  // namespace

RowWork row_work(std::string_view kind, const ops::Site& site, const ops::Cost& cost) {
  RowWork row;
  row.name = kind;
  for (const auto& [name, value] : site.attrs.all())
    if (const auto* text = std::get_if<std::string>(&value)) row.name += ":" + *text;
  const auto is_float = [](const ops::Type& t) { return dtype_is_float(t.dtype); };
  const auto in = std::find_if(site.in.begin(), site.in.end(), is_float);
  row.dtype = in != site.in.end() ? in->dtype : site.out.empty() ? DType::f32 : site.out[0].dtype;
  row.elements = (cost.read + cost.write) / static_cast<double>(dtype_size(row.dtype));
  return row;
}

hw::AttentionWork attention_work(const ops::Site& site, const ops::Cost& cost) {
  hw::AttentionWork work;
  const double products = cost.flops / (2 * cost.transcendentals * static_cast<double>(cost.n));
  work.pass = products > 3.5 ? hw::AttentionPass::backward : hw::AttentionPass::forward;
  work.dtype = site.in[0].dtype;
  work.heads = cost.batch;
  // q, k come first forward, behind the output's gradient backward.
  const size_t q = work.pass == hw::AttentionPass::forward ? 0 : 1;
  if (site.in.size() > q + 1 && site.in[q].rank() == 4 && site.in[q + 1].rank() == 4)
    work.group = std::max<int64_t>(1, site.in[q].dims[2] / std::max<int64_t>(1, site.in[q + 1].dims[2]));
  work.seq = cost.m;
  work.head_dim = cost.n;
  const double all =
      static_cast<double>(cost.batch) * static_cast<double>(cost.m) * static_cast<double>(cost.k);
  work.causal = cost.transcendentals < all;
  return work;
}

Result<hw::Estimate> node_time(const hw::Spec& spec, hw::Share share, std::string_view kind,
                               const ops::Site& site, const ops::Cost& cost, std::span<const Traffic> traffic,
                               std::string_view bf16_dot, bool fp16_sums) {
  switch (cost.work) {
    case ops::Work::none:
      return hw::Estimate{};
    case ops::Work::matmul: {
      hw::MatmulWork work;
      // Operands of two dtypes meet in the wider one.
      work.operands =
          dtype_size(site.in[0].dtype) >= dtype_size(site.in[1].dtype) ? site.in[0].dtype : site.in[1].dtype;
      work.result = site.out[0].dtype;
      work.m = cost.m;
      work.n = cost.n;
      work.k = cost.k;
      work.batch = cost.batch;
      work.way = bf16_dot;
      work.fp16_sums = fp16_sums;
      LIGNUM_ASSIGN_OR_RETURN(hw::Estimate e, hw::matmul_time(spec, share, work));
      // Products with exponentials are those of head and loss. XLA's price has them in its own.
      if (spec.is_cpu() && cost.transcendentals > 0 && cost.m > 0) {
        LIGNUM_ASSIGN_OR_RETURN(const double loss, loss_seconds(spec, share, site, cost));
        e.seconds += loss;
        e.compute_seconds += loss;
      }
      return e;
    }
    case ops::Work::attention: {
      if (cost.transcendentals <= 0) return hw::Estimate{};
      hw::AttentionWork work = attention_work(site, cost);
      work.way = bf16_dot;
      if (site.attrs.all().contains("query_at")) {
        // XLA computes what the mask hides, too: it cannot know which that is.
        const auto heads = static_cast<double>(cost.batch);
        work.seq = cost.k;
        work.pairs = spec.is_cpu() ? cost.transcendentals / heads
                                   : static_cast<double>(cost.m) * static_cast<double>(cost.k);
      }
      return hw::attention_time(spec, share, work);
    }
    case ops::Work::rows:
    case ops::Work::transcendental:
    case ops::Work::copy:
      return row_time(spec, share, row_work(kind, site, cost), cost.read + cost.write, traffic);
    case ops::Work::collective:
    case ops::Work::transfer:
      break;
  }
  return internal_error("{} is not work of the compute engine", kind);
}

}  // namespace lignum::plan
