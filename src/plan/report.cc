#include "plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

namespace lignum::plan {
namespace {

// Three significant digits.
std::string scaled_text(double value, const char* unit) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

std::string rate_text(double rate, const char* unit) {
  constexpr std::array<std::pair<double, const char*>, 5> kPrefixes = {
      {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [scale, prefix] : kPrefixes)
    if (rate >= scale) return scaled_text(rate / scale, fmt::format("{}{}", prefix, unit).c_str());
  return scaled_text(rate, unit);
}

std::string share_text(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "";
}

// The end of a path says more than its start.
std::string shortened(const std::string& text, size_t width) {
  return text.size() <= width ? text : "..." + text.substr(text.size() - width + 3);
}

nlohmann::ordered_json node_json(const NodePrice& n) {
  nlohmann::ordered_json json;
  json["id"] = n.id;
  json["kind"] = n.kind;
  json["path"] = n.path;
  json["role"] = ir::role_name(n.role);
  json["engine"] = passes::engine_name(n.engine);
  json["count"] = n.count;
  json["seconds"] = n.seconds;
  json["total_seconds"] = n.total_seconds;
  if (n.exposed_seconds > 0) json["exposed_seconds"] = n.exposed_seconds;
  json["flops"] = n.flops;
  json["bytes"] = n.bytes;
  json["bound"] = hw::bound_name(n.bound);
  return json;
}

nlohmann::ordered_json time_json(const Price& p) {
  nlohmann::ordered_json json = {{"step_seconds", p.step_seconds},
                                 {"compute_seconds", p.compute_seconds},
                                 {"communication_seconds", p.communication_seconds},
                                 {"copy_seconds", p.copy_seconds},
                                 {"exposed_seconds", p.exposed_seconds},
                                 {"contention_seconds", p.contention_seconds},
                                 {"dispatch_seconds", p.dispatch_seconds},
                                 {"executed_flops", p.executed_flops},
                                 {"bytes", p.bytes},
                                 {"ranks", p.ranks}};
  if (std::isfinite(p.arithmetic_intensity)) json["arithmetic_intensity"] = p.arithmetic_intensity;
  if (p.model_flops > 0) json["model_flops"] = p.model_flops;
  if (p.tokens_per_second) json["tokens_per_second"] = *p.tokens_per_second;
  if (p.model_flop_rate) json["model_flop_rate"] = *p.model_flop_rate;
  if (p.mfu) json["mfu"] = *p.mfu;
  if (p.pipeline.stages > 1)
    json["pipeline"] = {{"stages", p.pipeline.stages},
                        {"microbatches", p.pipeline.microbatches},
                        {"repeats", p.pipeline.repeats},
                        {"idle_ticks", passes::idle_share(passes::fill_and_drain(p.pipeline))},
                        {"bubble", p.pipeline.bubble()}};
  return json;
}

nlohmann::ordered_json spec_json(const hw::Spec& spec) {
  nlohmann::ordered_json json = {{"name", spec.name()}, {"origin", spec.origin()}};
  if (spec.is_cpu()) {
    const hw::CpuMachine& m = spec.machine();
    json["machine"] = {
        {"cpu", m.cpu}, {"cores", m.cores}, {"isa", m.isa}, {"date", m.date}, {"commit", m.commit}};
  }
  for (const hw::Intensity& i : hw::hardware_intensities(spec))
    json["intensities"][i.name] = i.flops_per_byte;
  return json;
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : scaled_text(bytes, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds >= 0.9995) return scaled_text(seconds, "s");
  if (seconds >= 0.9995e-3) return scaled_text(seconds * 1e3, "ms");
  return scaled_text(seconds * 1e6, "us");
}

std::string memory_table(const passes::MemoryPlan& memory, const ReportOptions& options) {
  std::vector<passes::MemoryPart> parts = memory.parts;
  std::sort(parts.begin(), parts.end(), [](const passes::MemoryPart& a, const passes::MemoryPart& b) {
    return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name);
  });
  const auto arena = static_cast<double>(memory.arena_bytes);
  std::string out = "memory of one rank, at the fullest moment\n";
  const auto line = [&](std::string_view name, double bytes) {
    out += fmt::format("  {:<18} {:>10} {:>8}\n", name, bytes_text(bytes), share_text(bytes, arena));
  };
  double used = 0;
  for (const passes::MemoryPart& p : parts) {
    line(p.name, static_cast<double>(p.bytes));
    used += static_cast<double>(p.bytes);
  }
  if (arena > used) line("gaps", arena - used);
  line("arena", arena);
  out += fmt::format("  of it {} live from step to step (weights, optimizer, inputs)\n",
                     bytes_text(static_cast<double>(memory.state_bytes)));
  const auto activations = [&](std::string_view heading, const std::vector<passes::MemoryPart>& saved) {
    if (saved.empty()) return;
    out += heading;
    int64_t all = 0;
    for (const passes::MemoryPart& p : saved) {
      out +=
          fmt::format("  {:<40} {:>10}\n", shortened(p.name, 40), bytes_text(static_cast<double>(p.bytes)));
      all += p.bytes;
    }
    out += fmt::format("  {:<40} {:>10}\n", "all", bytes_text(static_cast<double>(all)));
  };
  activations("activations that the backward pass finds\n", memory.saved);
  activations("activations that it fetches from host memory\n", memory.offloaded);
  activations("in host memory from step to step\n", memory.host_state);
  if (options.device_memory > 0) {
    const int64_t left = options.device_memory - memory.arena_bytes;
    out += fmt::format("  budget {}: {} {}\n", bytes_text(static_cast<double>(options.device_memory)),
                       bytes_text(std::abs(static_cast<double>(left))), left >= 0 ? "free" : "TOO MUCH");
  }
  return out;
}

std::string time_table(const Price& p, const hw::Spec& spec) {
  std::string out = fmt::format("predicted on {}\n", spec.name());
  const auto line = [&](std::string_view name, double seconds) {
    out += fmt::format("  {:<26} {:>10} {:>8}\n", name, seconds_text(seconds),
                       share_text(seconds, p.step_seconds));
  };
  line("compute", p.compute_seconds);
  if (p.dispatch_seconds > 0) line("  of it dispatch", p.dispatch_seconds);
  if (p.contention_seconds > 0) line("slowed by communication", p.contention_seconds);
  line(p.copy_seconds > 0 ? "waiting for transfers" : "waiting for communication", p.exposed_seconds);
  line("step", p.step_seconds);
  if (p.communication_seconds > 0) line("communication engine busy", p.communication_seconds);
  if (p.copy_seconds > 0) line("copy engine busy", p.copy_seconds);
  if (p.host_file) {
    constexpr double kRow = 1 << 22;
    const auto rate = [&](bool write) {
      const Result<hw::FileTransfer> t = spec.curves().file_transfer(write, kRow);
      return rate_text(t.ok() ? kRow / t->seconds : 0, "B/s");
    };
    out += fmt::format("  {:<26} written at {}, read at {} ({})\n", "host file", rate(true), rate(false),
                       spec.curves().host_file.front().source);
  }
  if (const passes::Pipeline& pipe = p.pipeline; pipe.stages > 1)
    out += fmt::format(
        "  {:<26} {:.1f} % of {} ticks; (s-1)/(r m + s-1) of s = {}, m = {}, r = {} is {:.1f} %\n",
        "stages idle", 100 * passes::idle_share(passes::fill_and_drain(pipe)),
        2 * (pipe.repeats * pipe.microbatches + pipe.stages - 1), pipe.stages, pipe.microbatches,
        pipe.repeats, 100 * pipe.bubble());
  if (p.tokens_per_second) out += fmt::format("  {:<26} {:.0f}\n", "tokens/s", *p.tokens_per_second);
  if (p.model_flop_rate) {
    out += fmt::format("  {:<26} {}\n", "model FLOP/s", rate_text(*p.model_flop_rate, "FLOP/s"));
  }
  if (p.mfu) out += fmt::format("  {:<26} {:.1f} %\n", "MFU", 100 * *p.mfu);
  if (std::isfinite(p.arithmetic_intensity)) {
    out += fmt::format("  {:<26} {:.1f} FLOP/byte", "arithmetic intensity", p.arithmetic_intensity);
    const std::vector<hw::Intensity> machine = hw::hardware_intensities(spec);
    if (!machine.empty()) {
      out += fmt::format(" (above {:.1f} {} is not the bound)", machine.front().flops_per_byte,
                         machine.front().name);
    }
    out += "\n";
  }
  return out;
}

std::string node_table(const Price& p, const ReportOptions& options) {
  std::vector<const NodePrice*> nodes;
  for (const NodePrice& n : p.nodes)
    if (n.total_seconds > 0) nodes.push_back(&n);
  std::sort(nodes.begin(), nodes.end(), [](const NodePrice* a, const NodePrice* b) {
    return std::tie(b->total_seconds, a->id, a->path) < std::tie(a->total_seconds, b->id, b->path);
  });
  if (static_cast<int64_t>(nodes.size()) > options.top)
    nodes.resize(static_cast<size_t>(std::max<int64_t>(0, options.top)));
  std::string out = fmt::format("{:>5} {:<18} {:<40} {:<7} {:>6} {:>9} {:>9} {:>7}  {}\n", "id", "kind",
                                "path", "role", "runs", "one", "all", "of step", "bound");
  for (const NodePrice* n : nodes) {
    out += fmt::format(
        "{:>5} {:<18} {:<40} {:<7} {:>6} {:>9} {:>9} {:>7}  {}\n", n->id >= 0 ? fmt::format("{}", n->id) : "",
        n->kind, shortened(n->path, 40), ir::role_name(n->role), n->count, seconds_text(n->seconds),
        seconds_text(n->total_seconds), share_text(n->total_seconds, p.step_seconds),
        n->exposed_seconds > 0
            ? fmt::format("{}, waited for {}", hw::bound_name(n->bound), seconds_text(n->exposed_seconds))
            : std::string(hw::bound_name(n->bound)));
  }
  return out;
}

nlohmann::ordered_json report_json(const Price& price, const passes::MemoryPlan& memory, const hw::Spec& spec,
                                   const ReportOptions& options) {
  nlohmann::ordered_json json;
  json["memory"] = {{"state_bytes", memory.state_bytes},
                    {"arena_bytes", memory.arena_bytes},
                    {"parts", nlohmann::ordered_json::array()}};
  for (const passes::MemoryPart& p : memory.parts)
    json["memory"]["parts"].push_back({{"name", p.name}, {"bytes", p.bytes}});
  json["memory"]["host_bytes"] = memory.host_bytes;
  for (const auto& [key, parts] :
       {std::pair("saved", &memory.saved), std::pair("offloaded", &memory.offloaded),
        std::pair("host_state", &memory.host_state)}) {
    json["memory"][key] = nlohmann::ordered_json::array();
    for (const passes::MemoryPart& p : *parts)
      json["memory"][key].push_back({{"name", p.name}, {"bytes", p.bytes}});
  }
  if (options.device_memory > 0) {
    json["memory"]["budget_bytes"] = options.device_memory;
    json["memory"]["fits"] = memory.arena_bytes <= options.device_memory;
  }
  json["time"] = time_json(price);
  json["nodes"] = nlohmann::ordered_json::array();
  for (const NodePrice& n : price.nodes) json["nodes"].push_back(node_json(n));
  json["spec"] = spec_json(spec);
  return json;
}

}  // namespace lignum::plan
