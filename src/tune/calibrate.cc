#include "tune/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "base/file.h"
#include "exec/thread_pool.h"
#include "hw/cpu_spec_builder.h"
#include "hw/probe.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/rows.h"
#include "ops/cases.h"
#include "tune/clock.h"
#include "tune/collective_timing.h"
#include "tune/dispatch.h"
#include "tune/file_timing.h"
#include "tune/row_timing.h"
#include "tune_commit.h"

namespace lignum::tune {
namespace {

using hw::Measurement;

// Stored operands of one product, as a linear layer meets them: forward x W^T, input gradient dy W, weight
// gradient dy^T x.
struct GemmShape {
  int64_t m, n, k;
  bool trans_a, trans_b;
};
// The planner interpolates over (smallest dim, FLOPs): these cover both ends of either.
constexpr std::array<GemmShape, 18> kGemms = {{
    {256, 256, 256, false, true},
    {1024, 1024, 1024, false, true},
    {512, 512, 512, false, true},
    {37, 64, 48, false, true},
    {16, 512, 512, false, true},
    {128, 64, 64, false, true},
    {128, 1024, 256, false, true},
    {512, 256, 128, false, true},
    {2048, 128, 384, false, true},
    {2048, 576, 576, false, true},
    {2048, 576, 1536, false, true},
    {1024, 6144, 320, false, true},
    {512, 320, 768, false, false},
    {2048, 192, 512, false, false},
    {1024, 320, 6144, false, false},
    {64, 64, 256, true, false},
    {320, 768, 512, true, false},
    {576, 576, 2048, true, false},
}};

// What products are measured in: f32, bf16 in each way that goes with the kernels, 8-bit floats by fp16 FMA.
struct DotKind {
  DType dtype = DType::f32;
  kernels::Choice choice;
  std::string way() const { return std::string(kernels::bf16_dot_name(choice.bf16_dot)); }
  std::string text() const {
    return dtype == DType::bf16 ? fmt::format("bf16 {}", way()) : std::string(dtype_name(dtype));
  }
};
std::vector<DotKind> dot_kinds(kernels::Isa isa) {
  std::vector<DotKind> kinds = {{DType::f32, {isa}}};
  for (const kernels::Bf16Dot dot : kernels::available_bf16_dots(isa))
    kinds.push_back({DType::bf16, {isa, dot}});
  constexpr auto kSums = kernels::Fp8Accumulation::fp16_64;
  if (kernels::fp8_accumulation_refusal(kSums, isa) == nullptr)
    kinds.push_back({DType::f8e4m3fn, {isa, kernels::Bf16Dot::fma, kSums}});
  return kinds;
}

// kv_heads: those of keys and values. Heads that share them take fewer passes over them, and packing is done
// once for all: bf16 by AMX, 512 x 64, forward, 190 GFLOP/s with heads of their own, 270 with three to a
// head.
struct AttentionShape {
  int64_t heads, kv_heads, seq, dim;
};
constexpr std::array<AttentionShape, 8> kAttentions = {{{8, 8, 128, 64},
                                                        {4, 4, 512, 32},
                                                        {8, 8, 512, 64},
                                                        {4, 4, 512, 128},
                                                        {2, 2, 2048, 64},
                                                        {2, 2, 1024, 128},
                                                        {8, 2, 512, 64},
                                                        {8, 2, 1024, 128}}};

constexpr std::array<int64_t, 6> kStreamBytes = {1 << 17, 1 << 20, 3 << 20, 1 << 24, 1 << 26, 1 << 28};
constexpr std::array<int64_t, 4> kCollectiveBytes = {1 << 12, 1 << 17, 1 << 21, 1 << 25};

// Shares of the time budget.
constexpr double kDispatchShare = 0.02, kGemmShare = 0.33, kStreamShare = 0.08, kRowsShare = 0.34,
                 kAttentionShare = 0.12, kCollectiveShare = 0.07, kCopyShare = 0.02, kFileShare = 0.02;

// Bytes of one core's L2, 0 when the system does not say.
double l2_bytes() {
  std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index2/size");
  double kib = 0;
  char unit = 0;
  if (in >> kib >> unit && unit == 'K') return kib * 1024;
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<double>(bytes) : 0;
}

// A call to measure, and where its result goes.
struct Point {
  std::string what;  // the same with each pool
  exec::ThreadPool* pool;
  std::function<void(Parallel&)> call;
  std::function<void(const Measurement&)> add;
  int threads() const { return pool->threads(); }
  std::string text() const { return fmt::format("{}, {} threads", what, threads()); }
};

class Calibrator {
 public:
  Calibrator(const CalibrateOptions& options, hw::CpuMachine machine)
      : options_(options), kinds_(dot_kinds(options.choice.isa)), builder_("cpu", std::move(machine)) {}

  Status run() {
    LIGNUM_RETURN_IF_ERROR(start_pools());
    report("dispatch");
    measure_dispatch();
    LIGNUM_RETURN_IF_ERROR(measure_stream());
    LIGNUM_RETURN_IF_ERROR(measure_gemms());
    LIGNUM_RETURN_IF_ERROR(measure_rows());
    LIGNUM_RETURN_IF_ERROR(measure_attention());
    LIGNUM_RETURN_IF_ERROR(measure_collectives());
    report("host copy");
    measure_copy();
    report("host file");
    LIGNUM_RETURN_IF_ERROR(measure_file());
    const double l2 = l2_bytes();
    if (l2 <= 0) return internal_error("the system does not say how large L2 is");
    builder_.memory(hw::this_machine_memory(), l2);
    return {};
  }

  const hw::CpuSpecBuilder& builder() const { return builder_; }

  void summarize(Calibration& c) {
    c.points = static_cast<int>(spreads_.size());
    std::sort(spreads_.begin(), spreads_.end());
    c.median_spread = spreads_[spreads_.size() / 2].first;
    std::tie(c.worst_spread, c.worst) = spreads_.back();
    for (const hw::DispatchPoint& p : c.spec.curves().dispatch)
      c.dispatch_spread = std::max(c.dispatch_spread, p.spread);
  }

 private:
  void report(std::string_view what) const {
    if (options_.progress) options_.progress(std::min(1.0, done_), what);
  }

  Status start_pools() {
    const int most = options_.threads;
    for (const int t : measured_counts(1, most)) {
      LIGNUM_ASSIGN_OR_RETURN(auto pool, exec::ThreadPool::create(t));
      pools_.push_back(std::move(pool));
    }
    dispatch_.resize(static_cast<size_t>(most) + 1, 0);
    return {};
  }

  // Keeps with the point how far its median lies above its fastest sample: little on a machine of one's own.
  void note(const std::string& what, Measurement& m) {
    m.spread = m.min > 0 ? m.median / m.min - 1 : 0;
    spreads_.emplace_back(m.spread, what);
  }

  static hw::ProbeOptions probe(double seconds) {
    hw::ProbeOptions p;
    p.min_repeats = 3;
    p.min_seconds = seconds;
    p.sample_seconds = std::min(p.sample_seconds, seconds / 10);
    p.max_repeats = 60;
    p.best_share = kBestShare;
    return p;
  }

  // Whether a call of so many operations, each a nanosecond at worst, has room in a small budget.
  static bool affordable(double operations, double seconds_each) {
    return operations * 1e-9 < 20 * seconds_each;
  }

  // One shape with each thread count, in turn: a slow spell hits all of them. A call that takes so long that
  // the budget has no room for a few of them (scalar kernels) is left out, if it can be: `needed` ones give a
  // curve its first point. (Points of unlike length do not go together: the short ones would need as many
  // rounds as fill their time, and the long ones take part in each.)
  void measure_group(std::vector<Point> points, double seconds_each, bool needed) {
    std::vector<Point> kept;
    std::vector<bool> handed_over;
    for (Point& p : points) {
      WatchedPool watched(*p.pool);
      p.call(watched);
      const Clock::time_point start = Clock::now();
      p.call(*p.pool);
      if (!needed && seconds_since(start) >= 2 * seconds_each) continue;
      handed_over.push_back(watched.handed_over());
      kept.push_back(std::move(p));
    }
    if (kept.empty()) return;
    std::vector<std::function<void()>> calls;
    for (const Point& p : kept) calls.emplace_back([&p] { p.call(*p.pool); });
    std::vector<Measurement> measured = hw::measure_interleaved(calls, probe(seconds_each));
    for (size_t i = 0; i < kept.size(); ++i) note(kept[i].text(), measured[i]);
    for (size_t i = 0; i < kept.size(); ++i) {
      Measurement m = measured[i];
      const int threads = kept[i].threads();
      // Where one thread was too slow to be timed, dispatch is nothing beside the call.
      double alone = m.seconds * threads;
      for (size_t j = 0; j < kept.size(); ++j)
        if (kept[j].threads() == 1 && kept[j].what == kept[i].what) alone = measured[j].seconds;
      if (handed_over[i])
        m.seconds = work_seconds(m.seconds, dispatch_[static_cast<size_t>(threads)], threads, alone);
      kept[i].add(m);
    }
  }

  void measure_dispatch() {
    const double each = kDispatchShare * options_.seconds / static_cast<double>(pools_.size());
    for (const auto& pool : pools_) {
      const int threads = pool->threads();
      const auto nothing = [](int64_t, int) {};
      Measurement m = hw::measure([&] { pool->run(threads, nothing); }, probe(each));
      note(fmt::format("dispatch, {} threads", threads), m);
      builder_.dispatch(threads, m);
      dispatch_[static_cast<size_t>(threads)] = m.seconds;
    }
    done_ += kDispatchShare;
  }

  // A row kernel that does next to nothing: y = -x.
  Status measure_stream() {
    report("memory");
    const double each =
        kStreamShare * options_.seconds / static_cast<double>(kStreamBytes.size() * pools_.size());
    const kernels::RowKernels& rows = kernels::row_kernels(options_.choice);
    const int64_t most = kStreamBytes.back() / 2;
    ops::Buffer x(most, 0), y(most, 0);
    std::memset(x.data(), 0, static_cast<size_t>(most));
    for (const int64_t bytes : kStreamBytes) {
      if (!affordable(static_cast<double>(bytes), each)) continue;
      std::vector<Point> points;
      for (const auto& pool : pools_) {
        points.push_back({fmt::format("stream of {} bytes", bytes), pool.get(),
                          [&rows, &x, &y, bytes](Parallel& p) {
                            rows.elementwise(kernels::Elementwise::neg, DType::f32,
                                             bytes / 2 / static_cast<int64_t>(sizeof(float)), x.data(),
                                             nullptr, nullptr, y.data(), p);
                          },
                          [this, bytes, p = pool.get()](const Measurement& m) {
                            builder_.stream(p->threads(), bytes, m);
                          }});
      }
      measure_group(std::move(points), each, bytes == kStreamBytes.front());
    }
    done_ += kStreamShare;
    return {};
  }

  Status measure_gemms() {
    const double each =
        kGemmShare * options_.seconds / static_cast<double>(kGemms.size() * kinds_.size() * pools_.size());
    for (const DotKind& kind : kinds_) {
      const DType dtype = kind.dtype;
      report(fmt::format("{} GEMM", kind.text()));
      for (const GemmShape& s : kGemms) {
        // Some ten FLOPs a nanosecond, on any machine with vectors.
        if (!affordable(0.2 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k),
                        each))
          continue;
        kernels::Gemm g;
        g.m = s.m;
        g.n = s.n;
        g.k = s.k;
        g.trans_a = s.trans_a;
        g.trans_b = s.trans_b;
        g.a = g.b = dtype;
        g.c = is_float8(dtype) ? DType::bf16 : dtype;
        g.lda = s.trans_a ? s.m : s.k;
        g.ldb = s.trans_b ? s.k : s.n;
        g.ldc = s.n;
        LIGNUM_RETURN_IF_ERROR(kernels::gemm_supported(g));
        std::vector<std::unique_ptr<ops::Buffer>> buffers;
        std::vector<Point> points;
        void* a = operand(buffers, dtype, s.m * s.k);
        void* b = operand(buffers, dtype, s.k * s.n);
        void* c = operand(buffers, g.c, s.m * s.n);
        for (const auto& pool : pools_) {
          const int threads = pool->threads();
          buffers.push_back(std::make_unique<ops::Buffer>(kernels::gemm_workspace(g, threads), 0));
          points.push_back({fmt::format("{} GEMM {} x {} x {}", kind.text(), s.m, s.n, s.k), pool.get(),
                            [choice = kind.choice, g, a, b, c, w = buffers.back()->data()](Parallel& p) {
                              kernels::gemm(choice, g, a, b, c, w, p);
                            },
                            [this, g, threads, way = kind.way()](const Measurement& m) {
                              builder_.gemm(g.a, threads, g.m, g.n, g.k, m, way);
                            }});
        }
        measure_group(std::move(points), each, &s == kGemms.data());
      }
      done_ += kGemmShare / static_cast<double>(kinds_.size());
    }
    return {};
  }

  // Values near 1: a multiplication by zeros or denormals may take another time.
  static void* operand(std::vector<std::unique_ptr<ops::Buffer>>& buffers, DType dtype, int64_t elements) {
    buffers.push_back(std::make_unique<ops::Buffer>(elements * dtype_size(dtype), 0));
    for (int64_t i = 0; i < elements; ++i)
      store_from_double(dtype, buffers.back()->data(), i, 0.5 + static_cast<double>(i % 61) / 64);
    return buffers.back()->data();
  }

  Status measure_rows() {
    // What L2 holds, what it does not, and what only memory (or a large L3) does.
    const std::vector<RowSubject> subjects = row_subjects({256e3, 4e6, 48e6});
    size_t points_all = 0;
    for (const RowSubject& s : subjects) points_all += s.cases.size() * pools_.size();
    const double each = kRowsShare * options_.seconds / static_cast<double>(points_all);
    for (const RowSubject& s : subjects) {
      report(fmt::format("{} {}", s.name, dtype_name(s.dtype)));
      for (const ops::Case& c : s.cases) {
        if (!affordable(traffic(*s.op, c).value_or(0), each)) continue;
        RowBench bench(*s.op, c, options_.choice);
        std::vector<Point> points;
        for (const auto& pool : pools_) {
          LIGNUM_RETURN_IF_ERROR(bench.run(*pool).with_context(fmt::format("measuring {}", s.name)));
          const int threads = pool->threads();
          points.push_back({fmt::format("{} {}, {:.0f} bytes", s.name, dtype_name(s.dtype), bench.bytes()),
                            pool.get(),
                            [&bench](Parallel& p) {
                              const Status status = bench.run(p);
                              LIGNUM_CHECK(status.ok(), "{}", status.message());  // it ran before
                            },
                            [this, &bench, threads](const Measurement& m) {
                              const plan::RowWork& w = bench.work();
                              builder_.rows(w.name, w.dtype, threads, static_cast<int64_t>(w.elements), m);
                            }});
        }
        measure_group(std::move(points), each, false);
      }
      done_ += kRowsShare / static_cast<double>(subjects.size());
    }
    return {};
  }

  Status measure_attention() {
    const double each = kAttentionShare * options_.seconds /
                        static_cast<double>(kAttentions.size() * 2 * kinds_.size() * pools_.size());
    for (const DotKind& kind : kinds_) {
      if (is_float8(kind.dtype)) continue;
      report(fmt::format("{} attention", kind.text()));
      for (const AttentionShape& s : kAttentions) {
        const double flops =
            hw::attention_flops(hw::AttentionPass::backward, 1, static_cast<double>(s.heads),
                                static_cast<double>(s.seq), static_cast<double>(s.dim), true);
        if (!affordable(0.1 * flops, each)) continue;
        std::vector<std::unique_ptr<ops::Buffer>> buffers;
        std::vector<Point> points;
        LIGNUM_RETURN_IF_ERROR(add_attention(kind, s, buffers, points));
        measure_group(std::move(points), each, &s == kAttentions.data());
      }
      done_ += kAttentionShare / static_cast<double>(kinds_.size());
    }
    return {};
  }

  Status add_attention(const DotKind& kind, const AttentionShape& s,
                       std::vector<std::unique_ptr<ops::Buffer>>& buffers, std::vector<Point>& points) {
    const DType dtype = kind.dtype;
    kernels::Attention a;
    a.queries = a.keys = s.seq;
    a.heads = s.heads;
    a.kv_heads = s.kv_heads;
    a.dim = s.dim;
    a.dtype = dtype;
    a.scale = 0.125f;
    LIGNUM_RETURN_IF_ERROR(kernels::attention_supported(a));
    std::array<void*, 8> t{};  // q, k, v, out, dout, dq, dk, dv
    for (void*& p : t) p = operand(buffers, dtype, s.seq * s.heads * s.dim);
    auto* lse = static_cast<float*>(operand(buffers, DType::f32, s.heads * s.seq));
    for (const auto& pool : pools_) {
      const int threads = pool->threads();
      const auto add = [&](hw::AttentionPass pass, const char* name, std::function<void(Parallel&)> call) {
        points.push_back({fmt::format("{} attention {}, {} heads on {}, {} x {}", kind.text(), name, s.heads,
                                      s.kv_heads, s.seq, s.dim),
                          pool.get(), std::move(call),
                          [this, pass, dtype, s, threads, way = kind.way()](const Measurement& m) {
                            builder_.attention(pass, dtype, threads, 1, s.heads, s.seq, s.dim, m, way,
                                               s.heads / s.kv_heads);
                          }});
      };
      buffers.push_back(std::make_unique<ops::Buffer>(
          std::max(kernels::attention_workspace(a, threads), kernels::attention_grad_workspace(a, threads)),
          0));
      void* w = buffers.back()->data();
      add(hw::AttentionPass::forward, "forward", [choice = kind.choice, a, t, lse, w](Parallel& p) {
        kernels::attention(choice, a, t[0], t[1], t[2], t[3], lse, w, p);
      });
      add(hw::AttentionPass::backward, "backward", [choice = kind.choice, a, t, lse, w](Parallel& p) {
        kernels::attention_grad(choice, a, t[4], t[0], t[1], t[2], t[3], lse, t[5], t[6], t[7], w, p);
      });
    }
    return {};
  }

  Status measure_collectives() {
    const std::vector<int> ranks = measured_counts(2, options_.max_ranks);
    if (ranks.empty()) return {};
    constexpr std::array<hw::Collective, 4> kOps = {
        hw::Collective::all_gather, hw::Collective::reduce_scatter, hw::Collective::all_reduce,
        hw::Collective::collective_permute};
    const double each = kCollectiveShare * options_.seconds /
                        static_cast<double>(ranks.size() * kOps.size() * kCollectiveBytes.size());
    for (const int r : ranks) {
      report(fmt::format("collectives between {} ranks", r));
      for (const hw::Collective op : kOps) {
        for (const int64_t bytes : kCollectiveBytes) {
          LIGNUM_ASSIGN_OR_RETURN(Measurement m, measure_collective(op, r, bytes, each));
          note(fmt::format("{} of {} bytes, {} ranks", hw::collective_name(op), bytes, r), m);
          builder_.collective(op, r, bytes, m);
        }
      }
      done_ += kCollectiveShare / static_cast<double>(ranks.size());
    }
    return {};
  }

  void measure_copy() {
    constexpr int64_t kBytes = 1 << 26;
    ops::Buffer from(kBytes, 0), to(kBytes, 0);
    Measurement m = hw::measure([&] { std::memcpy(to.data(), from.data(), kBytes); },
                                probe(kCopyShare * options_.seconds));
    note("host copy", m);
    builder_.copy_bandwidth(static_cast<double>(kBytes) / m.seconds);
    done_ += kCopyShare;
  }

  Status measure_file() {
    if (options_.files.empty()) return {};
    LIGNUM_ASSIGN_OR_RETURN(
        std::vector<hw::HostFilePoint> points,
        time_file(options_.files, kFileShare * options_.seconds, "measured by lignum calibrate"));
    for (const hw::HostFilePoint& p : points)
      spreads_.emplace_back(p.spread, fmt::format("{} of {} bytes of a file", p.op, p.bytes));
    builder_.host_file(std::move(points));
    done_ = 1;
    return {};
  }

  const CalibrateOptions& options_;
  const std::vector<DotKind> kinds_;
  hw::CpuSpecBuilder builder_;
  std::vector<std::unique_ptr<exec::ThreadPool>> pools_;
  std::vector<double> dispatch_;  // by threads
  std::vector<std::pair<double, std::string>> spreads_;
  double done_ = 0;
};

}  // namespace

std::vector<int> measured_counts(int first, int most) {
  std::vector<int> counts;
  for (int n = first; n < most; n *= 2) counts.push_back(n);
  if (first <= most) counts.push_back(most);
  return counts;
}

Result<Calibration> calibrate(const CalibrateOptions& options) {
  CalibrateOptions o = options;
  const hw::CpuMachine machine =
      hw::this_machine(std::string(kernels::isa_name(o.choice.isa)), LIGNUM_COMMIT);
  if (o.threads == 0) o.threads = machine.cores;
  if (o.threads < 1 || o.threads > machine.cores) {
    return user_error("threads={}: 1 to {}, the cores that this process may use, or 0 for all", o.threads,
                      machine.cores);
  }
  if (!(o.seconds > 0)) return user_error("seconds={}: a time above 0", o.seconds);
  if (o.max_ranks < 1 || o.max_ranks > 64) {
    return user_error("ranks={}: 1 to 64 thread ranks", o.max_ranks);
  }
  if (o.write && o.path.empty()) o.path = calibrated_spec_path();
  if (o.write && o.path.empty()) {
    return user_error(
        "neither XDG_CACHE_HOME nor HOME is set, so there is no cache folder; name a file to write");
  }
  if (o.write && o.files.empty()) {
    const std::filesystem::path folder = std::filesystem::absolute(o.path).parent_path();
    LIGNUM_RETURN_IF_ERROR(make_directories(folder.string()));
    o.files = folder.string();
  }
  Calibrator calibrator(o, machine);
  LIGNUM_RETURN_IF_ERROR(calibrator.run());
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, calibrator.builder().build());
  if (o.write) LIGNUM_RETURN_IF_ERROR(calibrator.builder().write(o.path));
  LIGNUM_ASSIGN_OR_RETURN(hw::Spec spec, hw::Spec::parse(text, o.write ? o.path : "this calibration"));
  Calibration c{std::move(spec), o.write ? o.path : ""};
  calibrator.summarize(c);
  return c;
}

}  // namespace lignum::tune
