#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "exec/copy_engine.h"
#include "ops/op.h"

namespace lignum::exec {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;
using passes::Place;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Where the loops stand: for each depth the number of the iteration and the row that it works on.
struct Loops {
  static constexpr int kMax = 8;
  int depth = 0;
  int64_t iteration[kMax] = {};
  int64_t row[kMax] = {};
  int64_t trip[kMax] = {};
  int32_t id[kMax] = {};     // of the loop's slot
  int64_t first[kMax] = {};  // the row of all layers that row 0 of a guarded loop is

  // The layer that a node stands for (ir::Tag); -1: none.
  int64_t layer(const ir::Tag& tag) const {
    if (tag.layer_end == 0 || depth == 0) return -1;
    const int64_t step = (tag.layer_end - tag.layer_begin) / trip[depth - 1];
    return tag.layer_begin + (first[depth - 1] + row[depth - 1]) * step;
  }
};

struct Block;

// One slot, made ready: nothing is looked up or allocated when it runs.
struct Instruction {
  enum class Kind : uint8_t { op, start, await, scan } kind = Kind::op;
  const passes::Slot* slot = nullptr;
  const Node* node = nullptr;
  const ops::Op* op = nullptr;
  std::unique_ptr<ops::NodeSite> site;
  std::vector<Place> in, out;
  Place workspace, guard;  // guard: of a guarded scan
  bool has_workspace = false;
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  std::vector<comm::Ticket> tickets;                // starts: one an iteration in flight
  passes::Engine engine = passes::Engine::compute;  // that runs it, or that an await waits for
  Instruction* started = nullptr;                   // awaits: whose result
  std::unique_ptr<Block> body;
};

struct Block {
  const Graph* graph = nullptr;
  ir::Scan scan;
  std::vector<Instruction> instructions;
  std::vector<passes::Copy> before, at_end;
};

}  // namespace

struct Executor::Impl final : ops::Collectives {
  ExecutorOptions options;
  Arena own;
  const Arena* arena = &own;
  std::unique_ptr<comm::CommEngine> engine;
  std::unique_ptr<CopyEngine> copies;
  struct AxisGroup {
    int index;  // of the transport's
    int64_t position;
  };
  std::map<std::string, AxisGroup, std::less<>> groups;  // by mesh axis
  std::unique_ptr<Block> top;
  Trace* trace = nullptr;
  bool checking = false;
  std::optional<NonFinite> found;
  Event* event = nullptr;  // of the collective being started
  comm::Ticket last_ticket = 0;

  static int64_t offset(const Place& place, const Loops& loops) {
    int64_t offset = place.base;
    for (const passes::Term& t : place.terms)
      offset += t.stride * (t.modulus > 0 ? loops.iteration[t.depth] % t.modulus : loops.row[t.depth]);
    return offset;
  }
  std::byte* at(const Place& place, const Loops& loops) const {
    LIGNUM_CHECK(!place.host, "host memory has no addresses");
    return arena->data() + offset(place, loops);
  }

  Status start(const ops::CollectiveCall& call) override {
    const auto group = groups.find(call.axis);
    LIGNUM_CHECK(group != groups.end() && engine, "no group of ranks for mesh axis {}", call.axis);
    comm::Collective c;
    switch (call.kind) {
      case ops::CollectiveCall::Kind::all_gather:
        c.kind = comm::Kind::all_gather;
        break;
      case ops::CollectiveCall::Kind::reduce_scatter:
        c.kind = comm::Kind::reduce_scatter;
        break;
      case ops::CollectiveCall::Kind::all_reduce:
        c.kind = comm::Kind::all_reduce;
        break;
      case ops::CollectiveCall::Kind::permute:
        c.kind = comm::Kind::permute;
        break;
    }
    c.dtype = call.dtype;
    const bool moves = c.kind == comm::Kind::all_gather || c.kind == comm::Kind::permute;
    if (!moves) c.out_dtype = call.out_dtype;
    c.maximum = call.maximum;
    c.shift = static_cast<int>(call.shift);
    c.in = call.in;
    c.out = call.out;
    c.outer = call.outer;
    c.local_rows = call.local_rows;
    c.row_elems = call.row_elements;
    c.logical_rows = call.logical_rows;
    c.group = group->second.index;
    last_ticket = engine->submit(c, event != nullptr ? &event->time : nullptr);
    return {};
  }

  int64_t position(std::string_view axis) const override {
    const auto group = groups.find(axis);
    LIGNUM_CHECK(group != groups.end(), "no group of ranks for mesh axis {}", axis);
    return group->second.position;
  }

  std::unique_ptr<Block> prepare(const passes::Scheduled& s, const passes::Layout& layout,
                                 const ir::Scan& scan, const std::vector<passes::Copy>& before) {
    auto block = std::make_unique<Block>();
    block->graph = s.graph.get();
    block->scan = scan;
    block->before = before;
    block->at_end = layout.at_end;
    block->instructions.resize(s.order.size());
    std::map<int32_t, Instruction*> by_node;
    for (size_t i = 0; i < s.order.size(); ++i) by_node[s.order[i].node] = &block->instructions[i];
    for (size_t i = 0; i < s.order.size(); ++i) {
      Instruction& ins = block->instructions[i];
      ins.slot = &s.order[i];
      ins.node = &s.graph->node(ins.slot->node);
      if (ins.node->kind == "scan") {
        ins.kind = Instruction::Kind::scan;
        ins.body = prepare(s.bodies.at(ins.slot->node), layout.bodies.at(ins.slot->node),
                           ir::scan_of(*ins.node), layout.before.at(ins.slot->node));
        if (ins.body->scan.guarded) ins.guard = layout.places.at(ins.node->inputs.back());
        continue;
      }
      if (ins.node->kind == "await") {
        ins.kind = Instruction::Kind::await;
        ins.started = by_node.at(ins.node->inputs[0].node);
        continue;
      }
      ins.op = &ops::get_op(ins.node->kind);
      ins.site = std::make_unique<ops::NodeSite>(*s.graph, *ins.node);
      for (const Value v : ins.node->inputs) ins.in.push_back(layout.places.at(v));
      for (int32_t r = 0; r < static_cast<int32_t>(ins.node->types.size()); ++r)
        ins.out.push_back(layout.places.at({ins.slot->node, r}));
      ins.in_pointers.resize(ins.in.size());
      ins.out_pointers.resize(ins.out.size());
      const auto workspace = layout.workspaces.find(ins.slot->node);
      ins.has_workspace = workspace != layout.workspaces.end();
      if (ins.has_workspace) ins.workspace = workspace->second;
      ins.engine = ins.slot->engine;
      if (ins.engine != passes::Engine::compute) ins.kind = Instruction::Kind::start;
    }
    for (Instruction& ins : block->instructions) {
      if (ins.kind != Instruction::Kind::await) continue;
      ins.engine = ins.started->engine;
      ins.started->tickets.resize(static_cast<size_t>(ins.started->slot->shift - ins.slot->shift) + 1);
    }
    return block;
  }

  static Status context(const Status& status, const Block& block, const Instruction& ins,
                        const Loops& loops) {
    const std::string layer = loops.depth > 0 && block.graph != nullptr
                                  ? fmt::format(", iteration {}", loops.row[loops.depth - 1])
                                  : "";
    return status.with_context(fmt::format("{} ({}{})", ins.node->kind, ins.node->tag.path, layer));
  }

  static comm::Ticket& ticket(Instruction& start, const Loops& loops) {
    const auto i = static_cast<size_t>(loops.depth > 0 ? loops.iteration[loops.depth - 1] : 0);
    return start.tickets[i % start.tickets.size()];
  }

  void start_copy(const Block& block, Instruction& ins, const Loops& loops) {
    event = trace != nullptr ? trace->next() : nullptr;
    if (event != nullptr) fill(*event, block, ins, loops);
    const bool to_host = ins.out[0].host;
    ticket(ins, loops) =
        copies->submit({to_host, at(to_host ? ins.in[0] : ins.out[0], loops),
                        offset(to_host ? ins.out[0] : ins.in[0], loops), ins.node->types[0].bytes()},
                       event != nullptr ? &event->time : nullptr);
  }

  Status run_op(const Block& block, Instruction& ins, const Loops& loops) {
    for (size_t i = 0; i < ins.in.size(); ++i) ins.in_pointers[i] = at(ins.in[i], loops);
    for (size_t i = 0; i < ins.out.size(); ++i) ins.out_pointers[i] = at(ins.out[i], loops);
    void* workspace = ins.has_workspace ? at(ins.workspace, loops) : nullptr;
    event = trace != nullptr ? trace->next() : nullptr;
    if (event != nullptr) fill(*event, block, ins, loops);
    const bool is_start = ins.kind == Instruction::Kind::start;
    const int64_t begin = event != nullptr && !is_start ? now_ns() : 0;
    const Status status = ins.op->cpu({ins.site->site, ins.in_pointers, ins.out_pointers, workspace,
                                       *options.parallel, options.choice, engine ? this : nullptr});
    if (!status.ok()) return context(status, block, ins, loops);
    if (is_start) {
      ticket(ins, loops) = last_ticket;
    } else {
      if (event != nullptr) event->time = {begin, now_ns()};
      if (checking && !found) check(block, ins, loops);
    }
    return {};
  }

  static void fill(Event& e, const Block& block, const Instruction& ins, const Loops& loops) {
    e = {};
    e.id = ins.slot->id;
    e.node = ins.slot->node;
    e.graph = block.graph;
    e.engine = ins.slot->engine;
    if (loops.depth > 0) {
      e.iteration = loops.iteration[loops.depth - 1];
      e.row = loops.row[loops.depth - 1];
    }
    if (loops.depth > 1) e.outer = loops.iteration[loops.depth - 2];
  }

  void check(const Block&, const Instruction& ins, const Loops& loops) {
    for (size_t r = 0; r < ins.out.size(); ++r) {
      const ir::Type& t = ins.node->types[r];
      if (!dtype_is_float(t.dtype)) continue;
      for (int64_t i = 0; i < t.elements(); ++i) {
        const double v = load_as_double(t.dtype, ins.out_pointers[r], i);
        if (std::isfinite(v)) continue;
        found = NonFinite{ins.slot->id,
                          ins.node->kind,
                          ins.node->tag.path,
                          ins.node->tag.role,
                          loops.layer(ins.node->tag),
                          v,
                          {}};
        static_assert(2 * Loops::kMax < std::tuple_size_v<decltype(found->when)>);
        found->when.fill(-1);
        auto at = found->when.begin();
        for (int d = 0; d < loops.depth; ++d) {
          *at++ = loops.id[d];
          *at++ = loops.iteration[d];
        }
        *at = ins.slot->id;
        return;
      }
    }
  }

  void copy(const std::vector<passes::Copy>& copies, const Loops& loops) const {
    for (const passes::Copy& c : copies)
      std::memcpy(at(c.to, loops), at(c.from, loops), static_cast<size_t>(c.bytes));
  }

  Status run_slot(const Block& block, Instruction& ins, Loops& loops) {
    switch (ins.kind) {
      case Instruction::Kind::scan:
        return run_scan(ins, loops);
      case Instruction::Kind::await: {
        event = trace != nullptr ? trace->next() : nullptr;
        const int64_t begin = event != nullptr ? now_ns() : 0;
        const comm::Ticket started = ticket(*ins.started, loops);
        const Status status =
            ins.engine == passes::Engine::copy ? copies->wait(started) : engine->wait(started);
        if (!status.ok()) return context(status, block, ins, loops);
        if (event != nullptr) {
          fill(*event, block, ins, loops);
          event->time = {begin, now_ns()};
        }
        return {};
      }
      default:
        if (ins.engine != passes::Engine::copy) return run_op(block, ins, loops);
        start_copy(block, ins, loops);
        return {};
    }
  }

  Status run_scan(Instruction& ins, Loops& loops) {
    Block& block = *ins.body;
    copy(block.before, loops);
    int32_t part = 0;
    if (block.scan.guarded) std::memcpy(&part, at(ins.guard, loops), sizeof part);
    if (part < 0) return {};
    LIGNUM_CHECK(loops.depth < Loops::kMax, "loops {} deep", loops.depth);
    const int d = loops.depth++;
    const int64_t trip = block.scan.trip;
    loops.trip[d] = trip;
    loops.first[d] = part * trip;
    loops.id[d] = ins.slot->id;
    const auto set = [&](int64_t i) {
      loops.iteration[d] = i;
      loops.row[d] = block.scan.reversed ? trip - 1 - i : i;
    };
    for (int64_t ahead = 0; ahead < trip; ++ahead) {
      bool any = false;
      for (Instruction& ins : block.instructions) {
        if (ins.slot->shift <= ahead) continue;
        any = true;
        set(ahead);
        LIGNUM_RETURN_IF_ERROR(run_slot(block, ins, loops));
      }
      if (!any) break;
    }
    int64_t late = 0;
    for (const Instruction& ins : block.instructions) late = std::max(late, -ins.slot->shift);
    for (int64_t i = 0; i < trip + late; ++i) {
      for (Instruction& ins : block.instructions) {
        const int64_t j = i + ins.slot->shift;
        if (j < 0 || j >= trip) continue;
        set(j);
        LIGNUM_RETURN_IF_ERROR(run_slot(block, ins, loops));
      }
      if (i >= trip) continue;
      set(i);
      copy(block.at_end, loops);
    }
    --loops.depth;
    return {};
  }

  Status copy_row(int64_t param, int64_t row, bool to_host, std::byte* bytes) const {
    const Value v = top->graph->param_value(param);
    const passes::HostRows rows = passes::host_rows(top->graph->type(v));
    const Place& place = options.plan->layout.places.at(v);
    LIGNUM_CHECK(place.host && row < rows.rows, "row {} of {} in host memory", row, rows.rows);
    copies->submit({to_host, bytes, place.base + row * rows.stride, rows.bytes});
    return copies->drain();
  }

  Status step() {
    Loops loops;
    for (Instruction& ins : top->instructions) LIGNUM_RETURN_IF_ERROR(run_slot(*top, ins, loops));
    if (engine) LIGNUM_RETURN_IF_ERROR(engine->drain());
    if (copies) LIGNUM_RETURN_IF_ERROR(copies->drain());
    copy(top->at_end, loops);
    return {};
  }
};

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::~Executor() = default;

Result<std::unique_ptr<Executor>> Executor::create(const ExecutorOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (options.arena == nullptr) {
    LIGNUM_ASSIGN_OR_RETURN(impl->own, Arena::create(options.plan->arena_bytes, options.device_memory));
  } else {
    LIGNUM_CHECK(options.arena->bytes() >= options.plan->arena_bytes, "an arena of {} bytes for a plan of {}",
                 options.arena->bytes(), options.plan->arena_bytes);
    impl->arena = options.arena;
  }
  if (options.transport != nullptr) {
    LIGNUM_CHECK(options.mesh != nullptr && options.mesh->ranks() == options.transport->size(),
                 "mesh of {} ranks, transport of {}", options.mesh == nullptr ? 0 : options.mesh->ranks(),
                 options.transport->size());
    // In the mesh's order on every rank: a group's index then means the same axis everywhere.
    for (const passes::MeshAxis& axis : options.mesh->axes) {
      if (axis.size == 1) continue;
      for (const auto& ranks : options.mesh->groups(axis.name)) {
        const std::vector<int> group(ranks.begin(), ranks.end());
        if (std::find(group.begin(), group.end(), options.transport->rank()) == group.end()) continue;
        LIGNUM_ASSIGN_OR_RETURN(const int index, options.transport->add_group(group));
        impl->groups[axis.name] = {index, options.transport->group_rank(index)};
      }
    }
    comm::EngineOptions engine;
    engine.overlap = options.overlap;
    LIGNUM_ASSIGN_OR_RETURN(impl->engine, comm::CommEngine::create(*options.transport, engine));
  }
  if (options.plan->host_bytes > 0) {
    LIGNUM_ASSIGN_OR_RETURN(auto memory, HostMemory::create(options.host_memory, options.plan->host_bytes));
    LIGNUM_ASSIGN_OR_RETURN(impl->copies,
                            CopyEngine::create(std::move(memory), {.overlap = options.overlap}));
  }
  impl->top = impl->prepare(*options.step, options.plan->layout, {}, {});
  return std::unique_ptr<Executor>(new Executor(std::move(impl)));
}

std::byte* Executor::param(int64_t i) {
  const Graph& g = *impl_->top->graph;
  return impl_->at(impl_->options.plan->layout.places.at(g.param_value(i)), {});
}

const std::byte* Executor::output(int64_t i) const {
  const Graph& g = *impl_->top->graph;
  const ir::Output& o = g.outputs()[static_cast<size_t>(i)];
  // A donated param holds its new value after the step.
  const Value v = o.alias >= 0 ? g.param_value(o.alias) : o.value;
  return impl_->at(impl_->options.plan->layout.places.at(v), {});
}

int64_t Executor::param_index(std::string_view name) const {
  const Graph& g = *impl_->top->graph;
  for (int64_t i = 0; i < static_cast<int64_t>(g.params().size()); ++i)
    if (g.param_name(i) == name) return i;
  LIGNUM_CHECK(false, "the step has no param {}", name);
}

std::byte* Executor::param(std::string_view name) { return param(param_index(name)); }

const ir::Type& Executor::param_type(int64_t i) const {
  const Graph& g = *impl_->top->graph;
  return g.type(g.param_value(i));
}

Status Executor::read_row(int64_t param, int64_t row, std::byte* to) {
  return impl_->copy_row(param, row, false, to);
}

Status Executor::write_row(int64_t param, int64_t row, const std::byte* from) {
  return impl_->copy_row(param, row, true, const_cast<std::byte*>(from));  // only read
}

bool Executor::has_param(std::string_view name) const {
  const Graph& g = *impl_->top->graph;
  for (int64_t i = 0; i < static_cast<int64_t>(g.params().size()); ++i)
    if (g.param_name(i) == name) return true;
  return false;
}

const std::byte* Executor::output(std::string_view name) const {
  const Graph& g = *impl_->top->graph;
  for (int64_t i = 0; i < static_cast<int64_t>(g.outputs().size()); ++i)
    if (g.outputs()[static_cast<size_t>(i)].name == name) return output(i);
  LIGNUM_CHECK(false, "the step has no output {}", name);
}

Status Executor::step() { return impl_->step(); }
void Executor::set_trace(Trace* trace) { impl_->trace = trace; }
const Arena& Executor::arena() const { return *impl_->arena; }

Result<std::optional<NonFinite>> Executor::find_non_finite() {
  impl_->checking = true;
  impl_->found.reset();
  const Status status = impl_->step();
  impl_->checking = false;
  if (!status.ok()) return status;
  return impl_->found;
}

}  // namespace lignum::exec
