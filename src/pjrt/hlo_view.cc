// What is read off a decoded program: dots, loops, asynchronous collectives, text.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <unordered_set>

#include "pjrt/hlo.h"

namespace lignum::pjrt {
namespace {

constexpr std::array<std::string_view, 6> kCollectives = {
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all", "collective-permute"};

// A bound for counts, far above any program's: malformed input may nest calls so that they double at each
// level.
constexpr int64_t kManyDots = int64_t{1} << 40;

bool is_dot(const HloInstruction& instruction) {
  return instruction.opcode == "dot" || instruction.opcode == "convolution" ||
         instruction.opcode == "ragged-dot";
}

bool is_collective(std::string_view opcode) {
  return std::find(kCollectives.begin(), kCollectives.end(), opcode) != kCollectives.end();
}

// "" when the text does not end so.
std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : std::string_view();
}

}  // namespace

// Callees are counted before their callers, by a depth-first walk that keeps its own stack.
Status HloProgram::check_and_count() {
  enum class Mark : uint8_t { fresh, open, closed };
  struct Frame {
    size_t computation;
    size_t instruction = 0;
    size_t call = 0;
  };
  dots_.assign(computations_.size(), 0);
  std::vector<Mark> marks(computations_.size(), Mark::fresh);
  for (size_t root = 0; root < computations_.size(); ++root) {
    if (marks[root] != Mark::fresh) continue;
    std::vector<Frame> stack{{root}};
    marks[root] = Mark::open;
    while (!stack.empty()) {
      Frame& frame = stack.back();
      const HloComputation& computation = computations_[frame.computation];
      if (frame.instruction == computation.instructions.size()) {
        int64_t& dots = dots_[frame.computation];
        for (const HloInstruction& i : computation.instructions)
          dots = std::min(kManyDots, dots + count_dots(i));
        marks[frame.computation] = Mark::closed;
        stack.pop_back();
        continue;
      }
      const HloInstruction& instruction = computation.instructions[frame.instruction];
      if (frame.call == instruction.called.size()) {
        ++frame.instruction;
        frame.call = 0;
        continue;
      }
      const auto callee = index_.find(instruction.called[frame.call++]);
      if (callee == index_.end()) {
        return check_failed("HLO instruction {}: it calls a computation that is absent", instruction.name);
      }
      Mark& mark = marks[callee->second];
      if (mark == Mark::open)
        return check_failed("HLO instruction {}: it calls its own caller", instruction.name);
      if (mark == Mark::fresh) {
        mark = Mark::open;
        stack.push_back({callee->second});
      }
    }
  }
  return {};
}

int64_t HloProgram::count_dots(const HloComputation& computation) const {
  return dots_[index_.at(computation.id)];
}

int64_t HloProgram::count_dots(const HloInstruction& instruction) const {
  int64_t dots = is_dot(instruction) ? 1 : 0;
  for (int64_t id : instruction.called) dots = std::min(kManyDots, dots + dots_[index_.at(id)]);
  return dots;
}

// Pre-order from the computation, each once.
void HloProgram::call_order(const HloComputation& computation,
                            std::vector<const HloComputation*>& order) const {
  std::unordered_set<int64_t> seen;
  std::vector<const HloComputation*> stack{&computation};
  while (!stack.empty()) {
    const HloComputation* c = stack.back();
    stack.pop_back();
    if (!seen.insert(c->id).second) continue;
    order.push_back(c);
    for (const HloInstruction& i : std::views::reverse(c->instructions))
      for (const int64_t id : std::views::reverse(i.called)) stack.push_back(this->computation(id));
  }
}

std::vector<const HloComputation*> HloProgram::while_bodies() const {
  std::vector<const HloComputation*> order;
  call_order(entry(), order);
  std::vector<const HloComputation*> bodies;
  for (const HloComputation* c : order) {
    for (const HloInstruction& i : c->instructions) {
      if (i.opcode == "while" && !i.called.empty()) bodies.push_back(computation(i.called.front()));
    }
  }
  return bodies;
}

// The collective of an "all-gather-start", or of what an "async-start" calls; "" for any other instruction.
std::string HloProgram::started_collective(const HloInstruction& instruction) const {
  const std::string_view plain = without_suffix(instruction.opcode, "-start");
  if (is_collective(plain)) return std::string(plain);
  if (plain != "async") return "";
  for (int64_t id : instruction.called) {
    std::vector<const HloComputation*> order;
    call_order(*computation(id), order);
    for (const HloComputation* c : order) {
      for (const HloInstruction& i : c->instructions) {
        if (is_collective(i.opcode)) return i.opcode;
      }
    }
  }
  return "";
}

std::map<std::string, int64_t> HloProgram::count_collectives() const {
  std::vector<const HloComputation*> order;
  call_order(entry(), order);
  std::map<std::string, int64_t> counts;
  for (const HloComputation* c : order) {
    for (const HloInstruction& i : c->instructions) {
      // What an async-start calls stands in a computation of its own.
      const std::string_view started = without_suffix(i.opcode, "-start");
      const std::string_view kind = started.empty() ? std::string_view(i.opcode) : started;
      if (is_collective(kind) || kind == "send") ++counts[std::string(kind)];
    }
  }
  return counts;
}

std::vector<AsyncCollective> HloProgram::async_collectives(const HloComputation& computation) const {
  const std::vector<HloInstruction>& instructions = computation.instructions;
  std::unordered_map<int64_t, size_t> position;
  for (size_t i = 0; i < instructions.size(); ++i) position.emplace(instructions[i].id, i);

  std::vector<AsyncCollective> out;
  for (size_t done = 0; done < instructions.size(); ++done) {
    if (without_suffix(instructions[done].opcode, "-done").empty()) continue;
    // Back along first operands through the updates to the start. Operands stand before users in a schedule;
    // malformed input where they do not ends the walk.
    size_t at = done;
    std::optional<size_t> issue;
    do {
      const auto& operands = instructions[at].operands;
      const auto previous = operands.empty() ? position.end() : position.find(operands.front());
      if (previous == position.end() || previous->second >= at) break;
      at = previous->second;
      if (instructions[at].opcode == "async-update" && instructions[at].operands.size() > 1 && !issue)
        issue = at;
    } while (instructions[at].opcode == "async-update");
    const std::string collective = started_collective(instructions[at]);
    if (collective.empty()) continue;
    AsyncCollective& found = out.emplace_back();
    found.name = instructions[at].name;
    found.collective = collective;
    found.start = at;
    found.issue = issue.value_or(at);
    found.done = done;
    for (size_t i = found.issue + 1; i < done; ++i) found.dots_between += count_dots(instructions[i]);
  }
  std::sort(out.begin(), out.end(),
            [](const AsyncCollective& a, const AsyncCollective& b) { return a.start < b.start; });
  return out;
}

std::string HloProgram::to_text() const {
  std::vector<const HloComputation*> order;
  call_order(entry(), order);
  std::string out = fmt::format("module {}\n", name_);
  for (const HloComputation* c : order) {
    std::unordered_map<int64_t, std::string_view> names;
    for (const HloInstruction& i : c->instructions) names.emplace(i.id, i.name);
    out += fmt::format("\n{}{}{}{}:\n", c == order.front() ? "entry " : "", c->name,
                       c->scheduled ? "" : " (not scheduled)",
                       c->thread.empty() || c->thread == "main" ? "" : " on " + c->thread);
    for (const HloInstruction& i : c->instructions) {
      std::vector<std::string_view> operands;
      for (int64_t id : i.operands) {
        const auto it = names.find(id);
        operands.push_back(it == names.end() ? "?" : it->second);
      }
      out += fmt::format("  {}{}: {} = {}({})", i.id == c->root_id ? "root " : "", i.name,
                         i.shape.to_string(), i.opcode, fmt::join(operands, ", "));
      if (i.parameter_number) out += fmt::format(" number={}", *i.parameter_number);
      if (i.tuple_index) out += fmt::format(" index={}", *i.tuple_index);
      if (!i.custom_call_target.empty()) out += " target=" + i.custom_call_target;
      if (!i.called.empty()) {
        std::vector<std::string_view> callees;
        for (int64_t id : i.called) callees.push_back(computation(id)->name);
        out += fmt::format(" calls={}", fmt::join(callees, ","));
      }
      if (!i.async_thread.empty() && i.async_thread != "main") out += " thread=" + i.async_thread;
      if (const int64_t dots = count_dots(i); dots > 0) out += fmt::format(" dots={}", dots);
      if (i.estimated_cycles) out += fmt::format(" cycles={}", *i.estimated_cycles);
      out += '\n';
    }
  }
  return out;
}

}  // namespace lignum::pjrt
