#include "plan/price.h"

#include <algorithm>
#include <map>
#include <memory>

#include "ops/op.h"
#include "plan/engines.h"
#include "plan/node_time.h"
#include "plan/reuse.h"

namespace lignum::plan {
namespace {

using ir::Node;
using passes::Scheduled;

// One slot with its duration: nothing is looked up while the step is played.
struct Timed {
  enum class Kind : uint8_t { op, start, await, scan } kind = Kind::op;
  int64_t shift = 0;
  double seconds = 0;
  size_t node = 0;                                       // of Price::nodes (not scans)
  bool gather = false;                                   // starts: of weights or activations, not a sum
  bool serial = false;                                   // starts: the next tick of a pipeline waits for it
  size_t started = 0;                                    // awaits: the start's place in the block
  Engines::Queue queue = Engines::Queue::communication;  // starts, and awaits of them
  std::vector<uint64_t> tickets;                         // starts: one an iteration
  size_t body = 0;                                       // scans: of Block::bodies
};

struct Block {
  ir::Scan scan;
  std::vector<Timed> slots;
  std::vector<size_t> before, at_end;  // copies, by their place in Price::nodes
  std::vector<std::unique_ptr<Block>> bodies;
};

class Pricer {
 public:
  Pricer(const passes::Mesh& mesh, const hw::Spec& spec, const PriceOptions& options)
      : mesh_(mesh), spec_(spec), options_(options) {
    share_.threads = options.threads;
    share_.ranks = static_cast<int>(mesh.ranks());
  }

  Result<Price> run(const Scheduled& step) {
    LIGNUM_ASSIGN_OR_RETURN(dispatch_, spec_.dispatch_seconds(options_.threads));
    price_.ranks = mesh_.ranks();
    price_.pipeline = options_.pipeline;
    const passes::Layout* layout = spec_.is_cpu() && options_.memory ? &options_.memory->layout : nullptr;
    LIGNUM_ASSIGN_OR_RETURN(const auto top, prepare(step, {}, layout));
    if (layout != nullptr) {
      LIGNUM_RETURN_IF_ERROR(add_copies(layout->at_end, top->at_end));
    }
    if (spec_.is_cpu()) {
      play_step(*top);
    } else {
      LIGNUM_RETURN_IF_ERROR(overlap_step(*top));
    }
    LIGNUM_RETURN_IF_ERROR(finish());
    return std::move(price_);
  }

 private:
  // --- durations

  Result<double> collective_seconds(const Node& node, const ops::Site& site) {
    const auto op = hw::collective_from_name(node.kind);
    if (!op)
      return internal_error("{} is on the communication engine, and hw knows no such collective", node.kind);
    // The gathered tensor, else the one before it is summed: what travels.
    const ir::Type& whole = *op == hw::Collective::all_gather ? site.out[0] : site.in[0];
    const auto bytes = static_cast<double>(whole.bytes());
    const auto& axis = node.attrs.get<std::string>("axis");
    const int64_t group = node.attrs.get<int64_t>("group");
    if (spec_.is_cpu()) {
      LIGNUM_ASSIGN_OR_RETURN(const double alone,
                              hw::collective_time(spec_, *op, bytes, static_cast<int>(group)));
      // The other groups of the axis do the same at the same time, on the cores that one group would have
      // had for itself.
      const auto cores = static_cast<double>(spec_.machine().cores);
      const auto one = static_cast<double>(group), all = static_cast<double>(mesh_.ranks());
      const double shared = alone * (all / one) * std::min(one, cores) / std::min(all, cores);
      const double slowed =
          std::max(shared, hw::link_time(options_.link, *op, bytes, static_cast<int>(group)));
      collective_seconds_ += slowed;
      collective_cpu_seconds_ += shared;
      return slowed;
    }
    if (!options_.topology) {
      return user_error("a step with collectives on {} needs a slice: compile_topology={}-8, say",
                        spec_.name(), spec_.name());
    }
    if (options_.topology->devices() != mesh_.ranks()) {
      return user_error("{} has {} devices, the mesh has {}; make them equal", options_.topology->describe(),
                        options_.topology->devices(), mesh_.ranks());
    }
    LIGNUM_ASSIGN_OR_RETURN(const hw::Group links, place_axis(mesh_, axis, *options_.topology));
    return hw::collective_time(spec_, *op, bytes, links);
  }

  // Between device and host memory. A CPU's copy engine is one thread that reads and writes RAM, or a file on
  // a disk that all ranks share.
  Result<double> transfer_seconds(double bytes, bool to_host) {
    if (spec_.is_cpu() && options_.host_file) {
      LIGNUM_ASSIGN_OR_RETURN(const hw::FileTransfer t, spec_.curves().file_transfer(to_host, bytes));
      file_seconds_ += t.seconds;
      file_cpu_seconds_ += t.seconds * t.cpu_share;
      return t.seconds * share_.ranks;
    }
    if (spec_.is_cpu()) {
      LIGNUM_ASSIGN_OR_RETURN(const hw::Estimate e,
                              hw::stream_time(spec_, {1, share_.ranks}, {.bytes = 2 * bytes}));
      return e.seconds;
    }
    LIGNUM_ASSIGN_OR_RETURN(const double bandwidth, spec_.copy_bandwidth());
    return bytes / bandwidth;
  }

  Result<Timed> time_slot(const Scheduled& s, const passes::Slot& slot, std::span<const Traffic> traffic) {
    const Node& node = s.graph->node(slot.node);
    Timed timed;
    timed.shift = slot.shift;
    timed.node = price_.nodes.size();
    NodePrice n;
    n.id = slot.id;
    n.kind = node.kind;
    n.path = node.tag.path;
    n.role = node.tag.role;
    n.engine = slot.engine;
    if (node.kind == "await") {
      timed.kind = Timed::Kind::await;
    } else {
      const ops::NodeSite site(*s.graph, node);
      const ops::Cost cost = ops::get_op(node.kind).cost(site.site);
      if (slot.engine == passes::Engine::communication) {
        timed.kind = Timed::Kind::start;
        timed.serial =
            node.kind == "collective_permute" && node.attrs.get<std::string>("axis") == passes::kStageAxis;
        timed.gather = cost.flops <= 0 && !timed.serial;
        LIGNUM_ASSIGN_OR_RETURN(timed.seconds, collective_seconds(node, site.site));
        n.bytes = cost.wire;
        n.bound = timed.seconds > 0 ? hw::Bound::link : hw::Bound::none;
      } else if (slot.engine == passes::Engine::copy) {
        timed.kind = Timed::Kind::start;
        timed.queue = Engines::Queue::copy;
        LIGNUM_ASSIGN_OR_RETURN(timed.seconds, transfer_seconds(cost.read, node.types[0].host));
        n.bytes = cost.read;
        n.bound = timed.seconds > 0 ? hw::Bound::link : hw::Bound::none;
      } else {
        LIGNUM_ASSIGN_OR_RETURN(const hw::Estimate e,
                                node_time(spec_, share_, node.kind, site.site, cost, traffic,
                                          options_.bf16_dot, options_.fp16_sums));
        timed.seconds = e.seconds + dispatch_;
        n.bound = e.bound;
        n.bytes = cost.read + cost.write;
        if (cost.work == ops::Work::matmul || cost.work == ops::Work::attention) n.flops = cost.flops;
      }
      n.seconds = timed.seconds;
    }
    price_.nodes.push_back(std::move(n));
    return timed;
  }

  // The executor copies on the calling thread.
  Status add_copies(const std::vector<passes::Copy>& copies, std::vector<size_t>& places) {
    for (const passes::Copy& c : copies) {
      NodePrice n;
      n.kind = "copy";
      n.path = c.what;
      n.bytes = 2 * static_cast<double>(c.bytes);
      LIGNUM_ASSIGN_OR_RETURN(const hw::Estimate e,
                              hw::stream_time(spec_, {1, share_.ranks}, {.bytes = n.bytes}));
      n.seconds = e.seconds;
      n.bound = e.bound;
      places.push_back(copies_.size());
      copies_.push_back(std::move(n));
    }
    return {};
  }

  Result<std::unique_ptr<Block>> prepare(const Scheduled& s, const ir::Scan& scan,
                                         const passes::Layout* layout) {
    auto block = std::make_unique<Block>();
    block->scan = scan;
    std::map<int32_t, size_t> place;
    for (size_t i = 0; i < s.order.size(); ++i) place[s.order[i].node] = i;
    std::vector<std::vector<Traffic>> traffic(s.order.size());
    if (layout != nullptr) traffic = reuse(s, *layout, std::max<int64_t>(1, scan.trip));
    for (const passes::Slot& slot : s.order) {
      const Node& node = s.graph->node(slot.node);
      Timed timed;
      if (node.kind == "scan") {
        const passes::Layout* inner = layout != nullptr ? &layout->bodies.at(slot.node) : nullptr;
        LIGNUM_ASSIGN_OR_RETURN(auto body, prepare(s.bodies.at(slot.node), ir::scan_of(node), inner));
        if (inner != nullptr) {
          LIGNUM_RETURN_IF_ERROR(add_copies(layout->before.at(slot.node), body->before));
          LIGNUM_RETURN_IF_ERROR(add_copies(inner->at_end, body->at_end));
        }
        timed.kind = Timed::Kind::scan;
        timed.shift = slot.shift;
        timed.body = block->bodies.size();
        block->bodies.push_back(std::move(body));
      } else {
        LIGNUM_ASSIGN_OR_RETURN(timed, time_slot(s, slot, traffic[block->slots.size()]));
        if (timed.kind == Timed::Kind::await) timed.started = place.at(node.inputs[0].node);
      }
      block->slots.push_back(std::move(timed));
    }
    for (Timed& timed : block->slots) {
      if (timed.kind != Timed::Kind::await) continue;
      Timed& start = block->slots[timed.started];
      timed.queue = start.queue;
      start.tickets.resize(static_cast<size_t>(start.shift - timed.shift) + 1);
    }
    return block;
  }

  // --- a CPU rank: as exec runs it (exec/executor.cc)

  void play_copies(const std::vector<size_t>& places) {
    for (const size_t place : places) {
      ++copies_[place].count;
      engines_->compute(copies_[place].seconds);
    }
  }

  void play_slot(Block& block, Timed& timed, int64_t iteration) {
    if (timed.kind == Timed::Kind::scan) return play_scan(*block.bodies[timed.body]);
    ++price_.nodes[timed.node].count;
    switch (timed.kind) {
      case Timed::Kind::start:
        timed.tickets[static_cast<size_t>(iteration) % timed.tickets.size()] =
            engines_->submit(timed.seconds, timed.queue);
        break;
      case Timed::Kind::await: {
        const Timed& start = block.slots[timed.started];
        const double before = engines_->exposed_seconds();
        engines_->wait(start.tickets[static_cast<size_t>(iteration) % start.tickets.size()], timed.queue);
        price_.nodes[start.node].exposed_seconds += engines_->exposed_seconds() - before;
        break;
      }
      default:
        engines_->compute(timed.seconds);
    }
  }

  void play_scan(Block& block) {
    play_copies(block.before);
    const int64_t trip = block.scan.trip;
    for (int64_t ahead = 0; ahead < trip; ++ahead) {
      bool any = false;
      for (Timed& timed : block.slots) {
        if (timed.shift <= ahead) continue;
        any = true;
        play_slot(block, timed, ahead);
      }
      if (!any) break;
    }
    int64_t late = 0;
    for (const Timed& timed : block.slots) late = std::max(late, -timed.shift);
    for (int64_t i = 0; i < trip + late; ++i) {
      for (Timed& timed : block.slots)
        if (const int64_t j = i + timed.shift; j >= 0 && j < trip) play_slot(block, timed, j);
      if (i < trip) play_copies(block.at_end);
    }
  }

  void play_step(Block& top) {
    const auto shared = [&](double busy) {
      return Engines::shared_cores(spec_.machine().cores, share_.ranks, share_.threads, busy);
    };
    const double copy = file_seconds_ > 0 ? file_cpu_seconds_ / file_seconds_ : 1;
    const double talk = collective_seconds_ > 0 ? collective_cpu_seconds_ / collective_seconds_ : 1;
    engines_ = std::make_unique<Engines>(shared(talk), shared(copy), shared(talk + copy), options_.overlap);
    for (Timed& timed : top.slots) play_slot(top, timed, 0);
    engines_->drain();
    play_copies(top.at_end);
    price_.step_seconds = engines_->now();
    price_.compute_seconds = engines_->compute_seconds();
    price_.communication_seconds = engines_->communication_seconds();
    price_.copy_seconds = engines_->copy_seconds();
    price_.host_file = file_seconds_ > 0;
    price_.exposed_seconds = engines_->exposed_seconds();
    price_.contention_seconds = engines_->contention_seconds();
  }

  // --- a TPU device: XLA's overlap, block by block

  // Seconds of one run of the block; `times`: how often it runs in the step.
  double overlap_block(const Block& block, int64_t times, double hidden_share) {
    double compute = 0, collectives = 0, serial = 0, gathers = 0, transfers = 0, inside = 0;
    for (const Timed& timed : block.slots) {
      if (timed.kind == Timed::Kind::scan) {
        const Block& body = *block.bodies[timed.body];
        const int64_t trip = body.scan.trip;
        inside += static_cast<double>(trip) * overlap_block(body, times * trip, hidden_share);
        continue;
      }
      price_.nodes[timed.node].count = times;
      if (timed.kind == Timed::Kind::op) compute += timed.seconds;
      if (timed.kind == Timed::Kind::start && timed.queue == Engines::Queue::copy) transfers += timed.seconds;
      if (timed.kind == Timed::Kind::start && timed.queue == Engines::Queue::communication) {
        (timed.serial ? serial : collectives) += timed.seconds;
        if (timed.gather) gathers += timed.seconds;
      }
    }
    price_.compute_seconds += compute * static_cast<double>(times);
    price_.communication_seconds += (collectives + serial) * static_cast<double>(times);
    price_.copy_seconds += transfers * static_cast<double>(times);
    if (gathers > 0 && times > 1 && !first_gather_) first_gather_ = gathers;
    return inside + serial + std::max({compute, hidden_share * collectives, transfers}) +
           (1 - hidden_share) * collectives;
  }

  Status overlap_step(const Block& top) {
    LIGNUM_ASSIGN_OR_RETURN(const double hidden_share, spec_.collective_overlap());
    const double blocks = overlap_block(top, 1, hidden_share);
    price_.step_seconds = blocks + hidden_share * first_gather_.value_or(0);
    price_.exposed_seconds = std::max(0.0, price_.step_seconds - price_.compute_seconds);
    return {};
  }

  // --- what follows

  Status finish() {
    price_.nodes.insert(price_.nodes.end(), copies_.begin(), copies_.end());
    for (NodePrice& n : price_.nodes) {
      const auto count = static_cast<double>(n.count);
      n.total_seconds = count * n.seconds;
      if (n.engine != passes::Engine::compute || n.kind == "await") continue;
      price_.executed_flops += count * n.flops;
      price_.bytes += count * n.bytes;
      if (n.id >= 0) price_.dispatch_seconds += count * dispatch_;
    }
    std::sort(price_.nodes.begin(), price_.nodes.end(), [](const NodePrice& a, const NodePrice& b) {
      return std::pair(a.id < 0, a.id) < std::pair(b.id < 0, b.id);
    });
    price_.arithmetic_intensity = hw::arithmetic_intensity(price_.executed_flops, price_.bytes);
    price_.model_flops = options_.model_flops;
    if (price_.step_seconds <= 0) return {};
    if (options_.tokens > 0) price_.tokens_per_second = options_.tokens / price_.step_seconds;
    if (options_.model_flops <= 0) return {};
    price_.model_flop_rate = options_.model_flops / price_.step_seconds;
    const Result<double> peak = spec_.peak_matmul_flops(options_.operands);
    // A CPU's peak is the machine's, which all ranks share.
    if (peak.ok())
      price_.mfu =
          *price_.model_flop_rate / *peak / (spec_.is_cpu() ? 1.0 : static_cast<double>(mesh_.ranks()));
    return {};
  }

  const passes::Mesh& mesh_;
  const hw::Spec& spec_;
  const PriceOptions& options_;
  hw::Share share_;
  double dispatch_ = 0;
  double file_seconds_ = 0, file_cpu_seconds_ = 0;              // of one of each transfer to and from a file
  double collective_seconds_ = 0, collective_cpu_seconds_ = 0;  // of one of each collective of CPU ranks
  Price price_;
  std::vector<NodePrice> copies_;
  std::unique_ptr<Engines> engines_;
  std::optional<double> first_gather_;
};

}  // namespace

Result<hw::Group> place_axis(const passes::Mesh& mesh, std::string_view axis, const hw::Topology& topology) {
  const auto at = std::find_if(mesh.axes.begin(), mesh.axes.end(),
                               [&](const passes::MeshAxis& a) { return a.name == axis; });
  LIGNUM_CHECK(at != mesh.axes.end(), "no mesh axis {}", axis);
  return hw::mesh_group(topology, at->size / at->slices, mesh.inside(axis), static_cast<int>(at->slices));
}

Result<Price> price(const Scheduled& step, const passes::Mesh& mesh, const hw::Spec& spec,
                    const PriceOptions& options) {
  return Pricer(mesh, spec, options).run(step);
}

Result<Price> price(const Program& program, const ProgramOptions& made_with, const hw::Spec& spec,
                    const std::optional<hw::Topology>& topology) {
  PriceOptions options;
  options.threads = made_with.threads;
  options.bf16_dot = made_with.bf16_dot;
  options.fp16_sums = made_with.fp16_sums;
  options.overlap = made_with.schedule.overlap;
  options.host_file = made_with.host_file;
  options.link = made_with.link;
  options.memory = &program.memory;
  options.topology = topology;
  const models::Shape& shape = made_with.shape;
  const auto micro_steps = static_cast<double>(made_with.accumulation);
  options.model_flops = micro_steps * models::training_flops(made_with.model, shape.batch, shape.sequence);
  // The forward pass is a third of it.
  if (made_with.outputs == Outputs::loss) options.model_flops /= 3;
  options.tokens = micro_steps * static_cast<double>(shape.batch * shape.sequence);
  options.operands = shape.dtype;
  options.pipeline = made_with.pipeline;
  return price(program.scheduled, made_with.mesh, spec, options);
}

}  // namespace lignum::plan
