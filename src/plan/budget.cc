#include "plan/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "plan/price.h"
#include "plan/report.h"

namespace lignum::plan {
namespace {

constexpr size_t kShown = 5;  // changes in the table

// One other value of one lever.
struct Variant {
  std::string keys;
  std::function<void(ProgramOptions&)> apply;
};
using Lever = std::vector<Variant>;

Lever remat_lever(const ProgramOptions& o) {
  Lever lever;
  const auto add = [&](std::string_view name) {
    passes::RematPolicy policy = *passes::remat_policy(name);
    if (policy == o.remat) return;
    lever.push_back({fmt::format("remat_policy={}", name), [policy = std::move(policy)](ProgramOptions& p) {
                       p.remat = policy;
                       p.custom_remat = false;
                     }});
  };
  for (const std::string_view name : passes::device_policies()) add(name);
  for (const std::string_view name : {"minimal_offloaded", "qkv_proj_offloaded"}) add(name);
  return lever;
}

// Fewer rows at a time, as many tokens a step.
Lever accumulation_lever(const ProgramOptions& o) {
  Lever lever;
  const int64_t rows = o.shape.batch * o.mesh.row_sharers() / o.mesh.ranks();
  for (int64_t parts = 2; parts <= rows; ++parts) {
    if (rows % parts != 0) continue;
    const int64_t batch = o.shape.batch / parts;
    lever.push_back({fmt::format("per_device_batch_size={} gradient_accumulation_steps={}",
                                 static_cast<double>(batch) / static_cast<double>(o.mesh.ranks()),
                                 o.accumulation * parts),
                     [parts](ProgramOptions& p) {
                       p.shape.batch /= parts;
                       p.accumulation *= parts;
                     }});
  }
  return lever;
}

Lever tiling_lever(const ProgramOptions& o) {
  constexpr int64_t kLeastTokens = 64;  // of a tile: a smaller one wastes the matmul
  Lever lever;
  if (o.model.logit_softcap > 0) return lever;
  const int64_t tokens = o.shape.batch * o.shape.sequence / o.mesh.ranks();
  const auto tile = [&](int64_t tiling) {
    const int64_t t = models::loss_tile(tokens, tiling);
    return t == 0 ? tokens : t;
  };
  int64_t smallest = tile(o.vocab_tiling);
  for (const int64_t tiling : {0, 4, 8, 16, 32, 64, 128}) {
    if (tile(tiling) >= smallest || tile(tiling) < kLeastTokens) continue;
    smallest = tile(tiling);
    lever.push_back({fmt::format("num_vocab_tiling={}", tiling),
                     [tiling](ProgramOptions& p) { p.vocab_tiling = tiling; }});
  }
  return lever;
}

Lever prefetch_lever(const ProgramOptions& o) {
  if (o.schedule.prefetch_distance == 0 || o.mesh.ranks() == 1) return {};
  return {{"prefetch_distance=0", [](ProgramOptions& p) { p.schedule.prefetch_distance = 0; }}};
}

Lever optimizer_lever(const ProgramOptions& o) {
  if (o.outputs != Outputs::state || o.optimizer.offloaded || o.optimizer.moments().empty()) return {};
  return {{"optimizer_memory_host_offload=true", [](ProgramOptions& p) { p.optimizer.offloaded = true; }}};
}

Lever parameter_lever(const ProgramOptions& o) {
  if (o.host_parameters) return {};
  return {{"parameter_memory_host_offload=true", [](ProgramOptions& p) { p.host_parameters = true; }}};
}

Change planned(std::string keys, const ProgramOptions& options, const Program& program,
               const Machine& machine) {
  Change c;
  c.keys = std::move(keys);
  c.arena_bytes = program.memory.arena_bytes;
  c.host_bytes = program.memory.host_bytes;
  const models::Shape& shape = options.shape;
  c.computed_flops = recomputed_flops(program.scheduled) +
                     static_cast<double>(options.accumulation) *
                         models::training_flops(options.model, shape.batch, shape.sequence) /
                         static_cast<double>(options.mesh.ranks());
  if (machine.spec == nullptr) return c;
  if (const Result<Price> p = price(program, options, *machine.spec, machine.topology); p.ok())
    c.step_seconds = p->step_seconds;
  return c;
}

auto cost(const Change& c) {
  return std::tuple(c.step_seconds.value_or(0), c.computed_flops, c.host_bytes, c.arena_bytes);
}

}  // namespace

Changes find_changes(const ProgramOptions& options, const Program& program, const Machine& machine) {
  Changes changes;
  changes.now = planned("", options, program, machine);
  std::vector<Lever> levers = {remat_lever(options),    tiling_lever(options),    accumulation_lever(options),
                               prefetch_lever(options), optimizer_lever(options), parameter_lever(options)};
  using Chosen = std::vector<const Variant*>;
  // Bytes of the plan with these, which is kept if it fits; nothing where there is no such plan.
  const auto attempt = [&](const Chosen& variants) -> std::optional<int64_t> {
    ProgramOptions other = options;
    other.dump = nullptr;
    std::string keys;
    for (const Variant* v : variants) {
      v->apply(other);
      keys += (keys.empty() ? "" : " ") + v->keys;
    }
    const Result<Program> made = make_program(other);
    if (!made.ok()) return std::nullopt;
    const int64_t bytes = made->memory.arena_bytes;
    if (bytes <= machine.device_memory) {
      changes.fitting.push_back(planned(std::move(keys), other, *made, machine));
    } else if (bytes < (changes.least ? changes.least->arena_bytes : changes.now.arena_bytes)) {
      changes.least = planned(std::move(keys), other, *made, machine);
    }
    return bytes;
  };
  Chosen together;  // of each lever what saves most
  for (const Lever& lever : levers) {
    int64_t least = changes.now.arena_bytes;
    const Variant* best = nullptr;
    for (const Variant& v : lever) {
      const std::optional<int64_t> bytes = attempt({&v});
      if (!bytes || *bytes >= least) continue;
      least = *bytes;
      best = &v;
    }
    if (best != nullptr) together.push_back(best);
  }
  // Where all together do not fit, two are not tried.
  if (changes.fitting.empty() && together.size() > 1 && attempt(together) && !changes.fitting.empty()) {
    const Change all = changes.fitting[0];
    changes.fitting.clear();
    for (size_t i = 0; i < levers.size(); ++i)
      for (size_t j = i + 1; j < levers.size(); ++j)
        for (const Variant& v : levers[i])
          for (const Variant& w : levers[j]) attempt({&v, &w});
    if (changes.fitting.empty()) changes.fitting.push_back(all);
  }
  std::stable_sort(changes.fitting.begin(), changes.fitting.end(),
                   [](const Change& a, const Change& b) { return cost(a) < cost(b); });
  return changes;
}

std::string changes_table(const Changes& changes, const Machine& machine) {
  std::string out;
  const auto line = [&](const Change& c) {
    const auto more = [](double other, double now) { return 100 * (other / now - 1); };
    const std::string price =
        c.step_seconds && changes.now.step_seconds
            ? fmt::format("{:>9} a step ({:+.1f} %)", seconds_text(*c.step_seconds),
                          more(*c.step_seconds, *changes.now.step_seconds))
            : fmt::format("{:+.1f} % of FLOPs", more(c.computed_flops, changes.now.computed_flops));
    const std::string host =
        c.host_bytes > 0 ? fmt::format(", {} of host memory", bytes_text(static_cast<double>(c.host_bytes)))
                         : "";
    out += fmt::format("  {:<60} {:>10}  {}{}\n", c.keys, bytes_text(static_cast<double>(c.arena_bytes)),
                       price, host);
  };
  if (!changes.fitting.empty()) {
    out += "what fits, the fastest first\n";
    for (size_t i = 0; i < std::min(kShown, changes.fitting.size()); ++i) line(changes.fitting[i]);
    if (machine.spec == nullptr)
      out += "  (`lignum calibrate` measures this machine, for predictions in seconds)\n";
  } else if (changes.least && changes.least->arena_bytes < changes.now.arena_bytes) {
    out += "no other plan fits; the least that one needs\n";
    line(*changes.least);
  } else {
    out += "no other plan needs less\n";
  }
  return out;
}

Status check_budget(const ProgramOptions& options, const Program& program, const Machine& machine) {
  const int64_t needed = program.memory.arena_bytes, budget = machine.device_memory;
  if (budget <= 0 || needed <= budget) return {};
  const auto text = [](int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  ReportOptions report;
  report.device_memory = budget;
  return user_error(
      "device_memory={}: the step needs {} a rank, {} more than there are\n{}{}or raise device_memory, or "
      "share the weights between more ranks (ici_fsdp_parallelism)",
      budget, text(needed), text(needed - budget), memory_table(program.memory, report),
      changes_table(find_changes(options, program, machine), machine));
}

}  // namespace lignum::plan
