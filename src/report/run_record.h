// RUN/run.json: what a run was, and what was promised and measured, beside its steps in RUN/metrics.jsonl.
// Written when the run begins and again when it ends; reports are made from the two files alone.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace lignum::report {

// One node of the schedule, or the copies that loops make (id -1), on the first rank.
struct OpRecord {
  int64_t id = -1;  // SCHEDULED id, as in traces and plans
  std::string kind, path, role;
  std::string work;             // "matmul", "attention" or "other": what bounds it, as its cost says
  bool communication = false;   // of an engine beside compute: a collective, a copy to or from host memory
  int64_t runs = 0;             // in a step
  double flops = 0, bytes = 0;  // of one run; bytes over memory if nothing stays in a cache
  std::optional<double> predicted_seconds, measured_seconds;  // of one run; measured: mean of traced steps
};

struct PartRecord {
  std::string name;
  int64_t bytes = 0;
};

// A line of the roofline plot: min(flops, intensity * bytes) per second, of one rank.
struct RoofRecord {
  std::string dtype;  // of the operands
  double flops = 0;   // FLOP/s
};

struct RunRecord {
  std::string name;     // the folder's
  std::string commit;   // of the binary
  std::string started;  // 2026-11-29T15:00:00Z
  std::string machine;  // CPU model and cores, where the machine is calibrated
  std::string mesh, isa, dtype;
  int64_t parameters = 0, ranks = 1, threads = 1, rows = 0, sequence = 0;
  std::string config;  // YAML, defaults as comments
  int64_t steps = 0;   // that the run was asked for

  std::vector<PartRecord> memory;  // planned, of a rank, at the fullest moment
  int64_t planned_bytes = 0;       // the arena
  int64_t resident_bytes = 0;      // of it, as the kernel counts; 0: not measured yet
  int64_t process_bytes = 0;

  std::optional<double> predicted_step_seconds;
  std::string no_prediction;                    // why it is absent
  std::optional<double> measured_step_seconds;  // median, by a clock round the step
  int64_t traced_steps = 0;
  double traced_step_seconds = 0;  // mean of those, by the same clock

  std::vector<RoofRecord> roofs;
  std::optional<double> memory_rate;  // byte/s
  std::vector<OpRecord> ops;
};

nlohmann::ordered_json to_json(const RunRecord&);
// `what` stands at the head of an error: the file. Every field that is there must have its type.
Result<RunRecord> parse_run_record(const std::string& text, const std::string& what);

}  // namespace lignum::report
