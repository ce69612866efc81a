#include "hw/cpu_curves.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "hw/interpolate.h"

namespace lignum::hw {
namespace {

constexpr std::array<std::string_view, 5> kCollectives = {"all_gather", "reduce_scatter", "all_reduce",
                                                          "all_to_all", "collective_permute"};

// How to measure what is missing, into the same file.
std::string measure_again(const CpuCurves& curves, const std::string& options) {
  return fmt::format("run `lignum calibrate{}{}`", options,
                     curves.origin.empty() ? "" : " --out " + curves.origin);
}

// The rate at `threads` from the points that `pick` accepts, grouped by thread count: `rate_at` gives one
// group's rate.
template <class Point, class Curve>
Result<double> across_threads(const CpuCurves& curves, const std::string& what,
                              const std::vector<Point>& points, int threads,
                              const std::function<bool(const Point&)>& pick,
                              const std::function<void(Curve&, const Point&)>& add,
                              const std::function<double(const Curve&)>& rate_at) {
  std::map<int, Curve> by_threads;
  for (const Point& p : points) {
    if (pick(p)) add(by_threads[p.threads], p);
  }
  if (by_threads.empty()) {
    return user_error("curves: no measured {}; {} again with it", what, measure_again(curves, ""));
  }
  const int low = by_threads.begin()->first, high = by_threads.rbegin()->first;
  if (threads < low || threads > high) {
    return user_error("curves: {} was measured with {} to {} threads, not {}; choose within, or {}", what,
                      low, high, threads, measure_again(curves, fmt::format(" --threads {}", threads)));
  }
  LogCurve scaling;
  for (const auto& [t, curve] : by_threads) scaling.add(t, rate_at(curve));
  return scaling.at(threads);
}

double gemm_work(const GemmPoint& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
}

const std::function<bool(const StreamPoint&)> kAnyStream = [](const StreamPoint&) { return true; };

// --- JSON, one field at a time: the reader takes fields out of a copy, and what is left over is unknown.
class Fields {
 public:
  Fields(nlohmann::json object, std::string where) : rest_(std::move(object)), where_(std::move(where)) {
    if (!rest_.is_object()) status_ = user_error("{}: {} is not an object", where_, rest_.dump());
  }
  void positive(const char* key, double& out) { number(key, out, 0, false); }
  void positive(const char* key, int64_t& out) {
    double v = 0;
    number(key, v, 0, false);
    if (!status_.ok()) return;
    constexpr double kLargest = 9007199254740992.0;  // 2^53: exact in JSON's doubles
    if (v != std::floor(v) || v > kLargest) {
      status_ = user_error("{}.{}: {} is not a whole number up to 2^53", where_, key, v);
      return;
    }
    out = static_cast<int64_t>(v);
  }
  void positive(const char* key, int& out) {
    int64_t v = 0;
    positive(key, v);
    if (status_.ok() && v > 1 << 20) status_ = user_error("{}.{}: {} is out of range", where_, key, v);
    if (status_.ok()) out = static_cast<int>(v);
  }
  void not_negative(const char* key, double& out) { number(key, out, 0, true); }
  void text(const char* key, std::string& out) {
    const nlohmann::json value = take(key);
    if (!status_.ok()) return;
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      status_ = user_error("{}.{}: {} is not a name", where_, key, value.dump());
      return;
    }
    out = value.get<std::string>();
  }
  template <class T>
  void named(const char* key, T& out, const std::function<std::optional<T>(std::string_view)>& from_name,
             std::string_view allowed) {
    std::string name;
    text(key, name);
    if (!status_.ok()) return;
    if (const std::optional<T> value = from_name(name)) {
      out = *value;
    } else {
      status_ = user_error("{}.{}: \"{}\"; allowed: {}", where_, key, name, allowed);
    }
  }
  void way(std::string& out) {
    if (status_.ok() && rest_.contains("way")) text("way", out);
  }
  void group(int64_t& out) {
    if (status_.ok() && rest_.contains("group")) positive("group", out);
  }
  void dtype(DType& out) { named<DType>("dtype", out, dtype_from_name, "f32, bf16, f8e4m3fn, ..."); }
  Status finish() const {
    if (!status_.ok() || rest_.empty()) return status_;
    return user_error("{}.{}: no such field", where_, rest_.begin().key());
  }

 private:
  nlohmann::json take(const char* key) {
    if (!status_.ok()) return {};
    auto it = rest_.find(key);
    if (it == rest_.end()) {
      status_ = user_error("{}.{}: missing", where_, key);
      return {};
    }
    nlohmann::json value = *it;
    rest_.erase(it);
    return value;
  }
  void number(const char* key, double& out, double low, bool low_allowed) {
    const nlohmann::json value = take(key);
    if (!status_.ok()) return;
    out = value.is_number() ? value.get<double>() : NAN;
    if (!std::isfinite(out) || out < low || (out == low && !low_allowed)) {
      status_ = user_error("{}.{}: {} is not a {} number", where_, key, value.dump(),
                           low_allowed ? "finite non-negative" : "finite positive");
    }
  }
  nlohmann::json rest_;
  std::string where_;
  Status status_;
};

std::optional<AttentionPass> pass_from_name(std::string_view name) {
  if (name == "forward") return AttentionPass::forward;
  if (name == "backward") return AttentionPass::backward;
  return std::nullopt;
}
std::string_view pass_name(AttentionPass pass) {
  return pass == AttentionPass::forward ? "forward" : "backward";
}

// One description of each point's fields serves reading (Fields) and writing (Writer below).
template <class F>
void visit(F& f, GemmPoint& p) {
  f.dtype(p.dtype);
  f.positive("threads", p.threads);
  f.positive("m", p.m);
  f.positive("n", p.n);
  f.positive("k", p.k);
  f.way(p.way);
}
template <class F>
void visit(F& f, StreamPoint& p) {
  f.positive("threads", p.threads);
  f.positive("bytes", p.bytes);
}
template <class F>
void visit(F& f, RowsPoint& p) {
  f.text("op", p.op);
  f.dtype(p.dtype);
  f.positive("threads", p.threads);
  f.positive("elements", p.elements);
}
template <class F>
void visit(F& f, AttentionPoint& p) {
  f.template named<AttentionPass>("pass", p.pass, pass_from_name, "forward, backward");
  f.dtype(p.dtype);
  f.positive("threads", p.threads);
  f.positive("sequences", p.sequences);
  f.positive("heads", p.heads);
  f.positive("seq", p.seq);
  f.positive("head_dim", p.head_dim);
  f.way(p.way);
  f.group(p.group);
}
template <class F>
void visit(F& f, CollectivePoint& p) {
  f.template named<Collective>("op", p.op, collective_from_name,
                               fmt::format("{}", fmt::join(kCollectives, ", ")));
  f.positive("ranks", p.ranks);
  f.positive("bytes", p.bytes);
}
template <class F>
void visit(F& f, HostFilePoint& p) {
  f.text("op", p.op);
  f.text("source", p.source);
  f.positive("bytes", p.bytes);
  f.positive("cpu_seconds", p.cpu_seconds);
}
template <class F>
void visit(F& f, DispatchPoint& p) {
  f.positive("threads", p.threads);
}

struct Writer {
  nlohmann::json object = nlohmann::json::object();
  template <class T>
  void positive(const char* key, T& value) {
    object[key] = value;
  }
  void text(const char* key, std::string& value) { object[key] = value; }
  void way(std::string& value) { object["way"] = value; }
  void group(int64_t& value) { object["group"] = value; }
  void dtype(DType& value) { object["dtype"] = dtype_name(value); }
  template <class T, class From>
  void named(const char* key, T& value, const From&, std::string_view) {
    if constexpr (std::is_same_v<T, Collective>) {
      object[key] = collective_name(value);
    } else {
      object[key] = pass_name(value);
    }
  }
};

template <class Point>
Status read_points(const nlohmann::json& curves, const char* name, bool required, std::vector<Point>& out) {
  auto it = curves.find(name);
  if (it == curves.end() || (it->is_array() && it->empty())) {
    if (!required) return {};
    return user_error("curves.{}: no points; run `lignum calibrate`", name);
  }
  if (!it->is_array()) return user_error("curves.{}: {} is not an array of points", name, it->dump());
  for (size_t i = 0; i < it->size(); ++i) {
    Point point;
    Fields fields((*it)[i], fmt::format("curves.{}[{}]", name, i));
    visit(fields, point);
    fields.positive("seconds", point.seconds);
    fields.not_negative("spread", point.spread);
    LIGNUM_RETURN_IF_ERROR(fields.finish());
    out.push_back(std::move(point));
  }
  return {};
}

template <class Point>
nlohmann::json write_points(const std::vector<Point>& points) {
  nlohmann::json array = nlohmann::json::array();
  for (Point point : points) {
    Writer writer;
    visit(writer, point);
    writer.object["seconds"] = point.seconds;
    writer.object["spread"] = point.spread;
    array.push_back(std::move(writer.object));
  }
  return array;
}

}  // namespace

std::string_view collective_name(Collective op) { return kCollectives[static_cast<size_t>(op)]; }

std::optional<Collective> collective_from_name(std::string_view name) {
  const auto* it = std::find(kCollectives.begin(), kCollectives.end(), name);
  if (it == kCollectives.end()) return std::nullopt;
  return static_cast<Collective>(it - kCollectives.begin());
}

double attention_flops(AttentionPass pass, double sequences, double heads, double seq, double head_dim,
                       bool causal) {
  const double products = pass == AttentionPass::forward ? 2 : 5;
  return products * 2 * sequences * heads * seq * seq * head_dim * (causal ? 0.5 : 1.0);
}

std::vector<DotRate> CpuCurves::dot_rates(DType dtype) const {
  using Shape = std::array<int64_t, 4>;
  std::map<std::string, std::map<Shape, double>> flops;  // by way
  std::map<Shape, size_t> ways;                          // that measured it
  for (const GemmPoint& p : gemm) {
    if (p.dtype != dtype) continue;
    const Shape shape = {p.threads, p.m, p.n, p.k};
    if (flops[p.way].emplace(shape, gemm_work(p) / p.seconds).second) ++ways[shape];
  }
  const bool common =
      std::any_of(ways.begin(), ways.end(), [&](const auto& w) { return w.second == flops.size(); });
  std::vector<DotRate> rates;
  for (const auto& [way, shapes] : flops) {
    double logs = 0, n = 0;
    for (const auto& [shape, rate] : shapes) {
      if (common && ways.at(shape) != flops.size()) continue;
      logs += std::log(rate);
      ++n;
    }
    rates.push_back({way, std::exp(logs / n)});
  }
  std::stable_sort(rates.begin(), rates.end(),
                   [](const DotRate& a, const DotRate& b) { return a.flops > b.flops; });
  return rates;
}

std::string CpuCurves::way_of(DType dtype, std::string_view way) const {
  if (dtype != DType::bf16) return "fma";
  if (!way.empty()) return std::string(way);
  const std::vector<DotRate> rates = dot_rates(dtype);
  return rates.empty() ? "fma" : rates.front().way;
}

Result<double> CpuCurves::gemm_flops(DType dtype, int threads, double m, double n, double k,
                                     std::string_view way) const {
  const std::string by = way_of(dtype, way);
  return across_threads<GemmPoint, LogScatter>(
      *this, fmt::format("{} GEMM by {}", dtype_name(dtype), by), gemm, threads,
      [&](const GemmPoint& p) { return p.dtype == dtype && p.way == by; },
      [](LogScatter& curve, const GemmPoint& p) {
        const double flops = gemm_work(p);
        curve.add(static_cast<double>(std::min({p.m, p.n, p.k})), flops, flops / p.seconds);
      },
      [&](const LogScatter& curve) { return curve.at(std::min({m, n, k}), 2 * m * n * k); });
}

Result<double> CpuCurves::stream_bandwidth(int threads, double working_set_bytes) const {
  return across_threads<StreamPoint, LogCurve>(
      *this, "streaming", stream, threads, kAnyStream,
      [](LogCurve& curve, const StreamPoint& p) {
        curve.add(static_cast<double>(p.bytes), static_cast<double>(p.bytes) / p.seconds);
      },
      [&](const LogCurve& curve) { return curve.at(working_set_bytes); });
}

Result<double> CpuCurves::rows_rate(const std::string& op, DType dtype, int threads, double elements) const {
  std::set<std::string> known;
  for (const RowsPoint& p : rows) known.insert(fmt::format("{} {}", p.op, dtype_name(p.dtype)));
  return across_threads<RowsPoint, LogCurve>(
      *this,
      fmt::format("row op {} {} (measured: {})", op, dtype_name(dtype),
                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))),
      rows, threads, [&](const RowsPoint& p) { return p.op == op && p.dtype == dtype; },
      [](LogCurve& curve, const RowsPoint& p) {
        curve.add(static_cast<double>(p.elements), static_cast<double>(p.elements) / p.seconds);
      },
      [&](const LogCurve& curve) { return curve.at(elements); });
}

Result<double> CpuCurves::attention_rate(AttentionPass pass, DType dtype, int threads, double seq,
                                         double head_dim, std::string_view way, double group) const {
  const std::string by = way_of(dtype, way);
  using Curve = std::map<int64_t, LogScatter>;  // by group
  return across_threads<AttentionPoint, Curve>(
      *this, fmt::format("{} attention {} by {}", dtype_name(dtype), pass_name(pass), by), attention, threads,
      [&](const AttentionPoint& p) { return p.pass == pass && p.dtype == dtype && p.way == by; },
      [](Curve& curve, const AttentionPoint& p) {
        const double flops =
            attention_flops(p.pass, static_cast<double>(p.sequences), static_cast<double>(p.heads),
                            static_cast<double>(p.seq), static_cast<double>(p.head_dim), true);
        curve[p.group].add(static_cast<double>(p.seq), static_cast<double>(p.head_dim), flops / p.seconds);
      },
      [&](const Curve& curve) {
        LogCurve rates;
        for (const auto& [g, rate] : curve) rates.add(static_cast<double>(g), rate.at(seq, head_dim));
        return rates.at(group);
      });
}

Result<double> CpuCurves::collective_bandwidth(Collective op, int ranks, double bytes) const {
  LogCurve curve;
  std::set<int> measured;
  for (const CollectivePoint& p : collectives) {
    if (p.op != op) continue;
    measured.insert(p.ranks);
    if (p.ranks == ranks) curve.add(static_cast<double>(p.bytes), static_cast<double>(p.bytes) / p.seconds);
  }
  if (curve.empty()) {
    return user_error("curves: {} was measured between {} ranks, not {}; {}", collective_name(op),
                      measured.empty() ? "no" : fmt::format("{}", fmt::join(measured, ", ")), ranks,
                      measure_again(*this, fmt::format(" --ranks {}", ranks)));
  }
  return curve.at(bytes);
}

Result<double> CpuCurves::dispatch_seconds(int threads) const {
  return across_threads<DispatchPoint, LogCurve>(
      *this, "dispatch", dispatch, threads, [](const DispatchPoint&) { return true; },
      [](LogCurve& curve, const DispatchPoint& p) { curve.add(1, p.seconds); },
      [](const LogCurve& curve) { return curve.at(1); });
}

Result<FileTransfer> CpuCurves::file_transfer(bool write, double bytes) const {
  LogCurve rate, share;
  for (const HostFilePoint& p : host_file) {
    if (p.op != (write ? "write" : "read")) continue;
    rate.add(static_cast<double>(p.bytes), static_cast<double>(p.bytes) / p.seconds);
    share.add(static_cast<double>(p.bytes), std::min(1.0, p.cpu_seconds / p.seconds));
  }
  if (rate.empty())
    return user_error("curves: no file was measured; {}", measure_again(*this, " --files FOLDER"));
  return FileTransfer{bytes / rate.at(std::max(1.0, bytes)), share.at(std::max(1.0, bytes))};
}

Result<CpuCurves> CpuCurves::parse(const nlohmann::json& json) {
  if (!json.is_object()) return user_error("curves: {} is not an object", json.dump());
  constexpr std::array<std::string_view, 7> kNames = {"gemm",        "stream",   "rows",     "attention",
                                                      "collectives", "dispatch", "host_file"};
  for (const auto& [key, unused] : json.items()) {
    if (std::find(kNames.begin(), kNames.end(), key) == kNames.end()) {
      return user_error("curves.{}: no such curve; there are {}", key, fmt::join(kNames, ", "));
    }
  }
  CpuCurves curves;
  LIGNUM_RETURN_IF_ERROR(read_points(json, "gemm", true, curves.gemm));
  LIGNUM_RETURN_IF_ERROR(read_points(json, "stream", true, curves.stream));
  LIGNUM_RETURN_IF_ERROR(read_points(json, "rows", false, curves.rows));
  LIGNUM_RETURN_IF_ERROR(read_points(json, "attention", false, curves.attention));
  LIGNUM_RETURN_IF_ERROR(read_points(json, "collectives", false, curves.collectives));
  LIGNUM_RETURN_IF_ERROR(read_points(json, "dispatch", true, curves.dispatch));
  LIGNUM_RETURN_IF_ERROR(read_points(json, "host_file", false, curves.host_file));
  for (const HostFilePoint& p : curves.host_file)
    if (p.op != "write" && p.op != "read")
      return user_error("curves.host_file: op \"{}\"; allowed: write, read", p.op);
  return curves;
}

nlohmann::json CpuCurves::to_json() const {
  return {{"gemm", write_points(gemm)},
          {"stream", write_points(stream)},
          {"rows", write_points(rows)},
          {"attention", write_points(attention)},
          {"collectives", write_points(collectives)},
          {"dispatch", write_points(dispatch)},
          {"host_file", write_points(host_file)}};
}

}  // namespace lignum::hw
