#include "train/profile.h"

#include <algorithm>
#include <map>

#include "ops/op.h"

namespace lignum::train {
namespace {

size_t ids_of(const passes::Scheduled& step) {
  size_t ids = 0;
  for (const passes::Slot& slot : step.order) ids = std::max(ids, static_cast<size_t>(slot.id + 1));
  for (const auto& [node, body] : step.bodies) ids = std::max(ids, ids_of(body));
  return ids;
}

std::string work_text(ops::Work work) {
  return work == ops::Work::matmul ? "matmul" : work == ops::Work::attention ? "attention" : "other";
}

}  // namespace

Profile::Profile(const passes::Scheduled& step)
    : step_(step), trace_(0, exec::event_count(step)), sums_(ids_of(step)) {}

void Profile::add(double step_seconds) {
  for (const exec::Event& e : trace_.events()) {
    Sum& sum = sums_[static_cast<size_t>(e.id)];
    sum.ns += e.time.end_ns - e.time.start_ns;
    ++sum.runs;
  }
  ++steps_;
  seconds_ += step_seconds;
}

void Profile::add_ops(const passes::Scheduled& step, int64_t times,
                      std::vector<report::OpRecord>& out) const {
  for (const passes::Slot& slot : step.order) {
    const ir::Node& node = step.graph->node(slot.node);
    if (const auto body = step.bodies.find(slot.node); body != step.bodies.end()) {
      add_ops(body->second, times * ir::scan_of(node).trip, out);
      continue;
    }
    report::OpRecord& op = out.emplace_back();
    op.id = slot.id;
    op.kind = node.kind;
    op.path = node.tag.path;
    op.role = ir::role_name(node.tag.role);
    op.communication = slot.engine != passes::Engine::compute;
    op.runs = times;
    op.work = work_text(ops::Work::none);
    if (node.kind != "await") {
      const ops::NodeSite site(*step.graph, node);
      const ops::Cost cost = ops::get_op(node.kind).cost(site.site);
      op.work = work_text(cost.work);
      op.flops = cost.flops;
      op.bytes = cost.work == ops::Work::collective ? cost.wire : cost.read + cost.write;
    }
    const Sum& sum = sums_[static_cast<size_t>(slot.id)];
    if (sum.runs > 0)
      op.measured_seconds = 1e-9 * static_cast<double>(sum.ns) / static_cast<double>(sum.runs);
  }
}

std::vector<report::OpRecord> Profile::ops(const plan::Price* price) const {
  std::vector<report::OpRecord> out;
  add_ops(step_, 1, out);
  if (price == nullptr) return out;
  std::map<int64_t, const plan::NodePrice*> prices;
  for (const plan::NodePrice& n : price->nodes)
    if (n.id >= 0) prices[n.id] = &n;
  for (report::OpRecord& op : out)
    if (const auto it = prices.find(op.id); it != prices.end()) op.predicted_seconds = it->second->seconds;
  for (const plan::NodePrice& n : price->nodes) {
    if (n.id >= 0) continue;
    report::OpRecord& copy = out.emplace_back();
    copy.kind = n.kind;
    copy.path = n.path;
    copy.role = ir::role_name(n.role);
    copy.work = work_text(ops::Work::copy);
    copy.runs = n.count;
    copy.bytes = n.bytes;
    copy.predicted_seconds = n.seconds;
  }
  return out;
}

}  // namespace lignum::train
