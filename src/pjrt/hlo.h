// A view of a compiled program: XLA's optimised HLO module, decoded from its protobuf bytes without a
// protobuf library. Field numbers: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto. Fields not
// named here are skipped.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace lignum::pjrt {

struct HloShape {
  std::string dtype;            // XLA's name: "bf16", "f32", "s32", "f8e4m3fn", "tuple", "token", ...
  std::vector<int64_t> dims;    // of an array
  std::vector<HloShape> tuple;  // of a tuple

  std::string to_string() const;  // "bf16[4096,512]", "(f32[8], s32[])"
};

struct HloInstruction {
  int64_t id = 0;  // unique in the module as the plug-in wrote it
  std::string name;
  std::string opcode;  // "while", "fusion", "convolution", "dot", "async-start", "all-gather-start", ...
  HloShape shape;
  std::vector<int64_t> operands;  // instruction ids
  std::vector<int64_t>
      called;  // computation ids; of a while: body, condition (body is told apart by its root's shape)
  std::string fusion_kind;
  std::string custom_call_target;
  std::string async_thread;  // "" = main; "sparsecore" for offloaded collectives
  std::map<std::string, std::string> frontend_attributes;
  std::string backend_config;               // mostly JSON
  std::optional<int64_t> estimated_cycles;  // of the compiler, for one execution; absent when it knows none
  std::optional<int64_t> parameter_number;  // of a parameter
  std::optional<int64_t> tuple_index;       // of a get-tuple-element
};

struct HloComputation {
  int64_t id = 0;
  std::string name;
  int64_t root_id = 0;
  bool is_fusion = false;
  std::string thread;                        // "" or "main"; "sparsecore" for offloaded work
  bool scheduled = false;                    // instructions stand in the order in which they are issued
  std::vector<HloInstruction> instructions;  // scheduled, else operands before users
};

// An asynchronous collective inside one scheduled computation. libtpu starts the SparseCore first
// (async-start without operands), hands over the data later (async-update), and waits (async-done): only from
// the second can bytes move.
struct AsyncCollective {
  std::string name;  // of the start
  std::string
      collective;    // "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", ...
  size_t start = 0;  // indices into HloComputation::instructions: start <= issue < done
  size_t issue = 0;  // where the operand is handed over
  size_t done = 0;
  int64_t dots_between = 0;  // dots and convolutions after issue and before done, those in fusions included
};

class HloProgram {
 public:
  // From CompiledProgram::optimized_program(). A check_failed Status on bytes that are not such a module: cut
  // short, an entry or a callee absent, computations that call each other in a ring, a schedule that is no
  // order.
  static Result<HloProgram> decode(std::string_view hlo_module_with_config);

  const std::string& name() const { return name_; }
  const std::vector<HloComputation>& computations() const { return computations_; }
  const HloComputation& entry() const { return *computation(entry_id_); }
  const HloComputation* computation(int64_t id) const;             // null when absent
  const HloComputation* computation(std::string_view name) const;  // null when absent

  // The bodies of all whiles, callers first, in the order of the entry's schedule.
  std::vector<const HloComputation*> while_bodies() const;

  // Dots and convolutions in the computation and in all that it calls (fusions, loops, async calls), each
  // counted once per call site; a loop body once whatever its trip count.
  int64_t count_dots(const HloComputation&) const;
  int64_t count_dots(const HloInstruction&) const;  // the instruction itself, or what it calls

  // How many of each kind of collective stand in the program ("all-gather", ..., and "send": to another
  // slice, or to the host), asynchronous or not; one in a loop's body once whatever its trip count.
  std::map<std::string, int64_t> count_collectives() const;

  // The collectives that are started and done in this computation, in order of their starts.
  std::vector<AsyncCollective> async_collectives(const HloComputation&) const;

  // For people and tests: a line an instruction, in schedule order, callees after the entry:
  //   while.3: (s32[], bf16[8,64]) = while(tuple.1) calls=body.2,cond.1
  //   fusion.7: bf16[64,64] = fusion(p.0, gte.4) calls=fused.7 dots=1 cycles=1234
  std::string to_text() const;

 private:
  Status check_and_count();
  std::string started_collective(const HloInstruction&) const;
  void call_order(const HloComputation&, std::vector<const HloComputation*>& order) const;

  std::string name_;
  int64_t entry_id_ = 0;
  std::vector<HloComputation> computations_;
  std::unordered_map<int64_t, size_t> index_;  // computation id -> position
  std::vector<int64_t> dots_;                  // of each computation, what count_dots returns
};

}  // namespace lignum::pjrt
