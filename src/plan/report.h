// What a plan says: tables for people, JSON for machines. The same numbers in both.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hw/spec.h"
#include "passes/memory.h"
#include "plan/price.h"

namespace lignum::plan {

struct ReportOptions {
  int64_t top = 12;           // nodes in the table, by total time
  int64_t device_memory = 0;  // bytes a rank may use; 0: no budget, no line
};

// Memory of one rank by part at the fullest moment, what the arena takes, the activations that are saved, and
// how it stands to the budget.
std::string memory_table(const passes::MemoryPlan& memory, const ReportOptions& options = {});
// Step time by engine, tokens/s, FLOP/s, MFU, and arithmetic intensity beside the machine's.
std::string time_table(const Price& price, const hw::Spec& spec);
// The nodes that take longest: id, kind, path, role, runs, time of one and of all, share of the step, bound.
std::string node_table(const Price& price, const ReportOptions& options = {});

// {"memory": {"state_bytes", "arena_bytes", "parts": [{"name", "bytes"}], "host_bytes", "saved": [likewise],
//  "offloaded": [likewise], "budget_bytes"?, "fits"?},
//  "time": {"step_seconds", "compute_seconds", ...}, "nodes": [...], "spec": {...}}. Every node, ascending
//  id.
nlohmann::ordered_json report_json(const Price& price, const passes::MemoryPlan& memory, const hw::Spec& spec,
                                   const ReportOptions& options = {});

// 1.50 GiB, 12.3 KiB, 17 B; 1.23 s, 4.56 ms, 7.89 us.
std::string bytes_text(double bytes);
std::string seconds_text(double seconds);

}  // namespace lignum::plan
