#include "passes/memory.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ops/op.h"
#include "passes/offload.h"
#include "passes/packing.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Role;
using ir::Value;

// The distance of a stack's rows.
int64_t row_bytes(const ir::Type& row) { return row.host ? aligned(row.bytes(), kHostAlign) : row.bytes(); }

// A copy between the memories.
bool transfers(const Graph& g, const Node& n) {
  return n.types[0].async && n.inputs.size() == 1 && g.type(n.inputs[0]).host != n.types[0].host;
}

// A compound loss makes the head's gradient in the forward pass: a result that is named as a weight is.
bool gradient_with_the_loss(const Graph& g, Value v) {
  const ir::Type& t = g.type(v);
  if (g.node(v).tag.path != "loss" || t.names.empty()) return false;
  return std::any_of(g.params().begin(), g.params().end(), [&](int32_t p) {
    const ir::Type& param = g.node(p).types[0];
    return dtype_is_float(param.dtype) && param.names == t.names;
  });
}

std::string part_of(const Graph& g, Value v, bool in_body) {
  const Node& n = g.node(v);
  if (n.kind == "scan") {
    const auto carry = ir::scan_of(n).carry;
    if (v.index < carry) return "temporaries";
    return n.tag.role == Role::forward ? "activations" : "gradients";
  }
  if (n.tag.role == Role::wgrad || gradient_with_the_loss(g, v)) return "gradients";
  if (n.tag.path == "decoder/logits_dense" || n.tag.path == "loss") return "logits";
  if (n.inputs.size() == 1 && g.type(n.inputs[0]).host) return "fetched";
  for (const ir::Type& t : n.types)
    if (t.async) return n.tag.role == Role::dgrad ? "gradients" : "gathered weights";
  if (n.kind == "convert" && g.node(n.inputs[0]).kind == "param") return "cast weights";
  return in_body || n.tag.role != Role::forward ? "temporaries" : "activations";
}

// What an activation is called: its remat name, else its module path and kind.
std::string saved_name(const Graph& g, Value v) {
  const Node& n = g.node(v);
  if (n.kind != "scan") return n.tag.name.empty() ? n.tag.path + " " + n.kind : n.tag.name;
  const ir::Output& row = n.body->outputs()[static_cast<size_t>(v.index)];
  return row.name.empty() ? saved_name(*n.body, view_root(*n.body, row.value)) : row.name;
}

struct Live {
  Allocation allocation;
  Value value;         // the root that it holds; invalid for workspaces and frames
  int32_t node = -1;   // workspaces and frames: the node
  int64_t copies = 1;  // buffers used in turn
};

// Bytes, or offsets, in the two memories.
struct Sizes {
  int64_t device = 0, host = 0;
  int64_t of(bool in_host) const { return in_host ? host : device; }
};

// One graph's buffers. measure() finds what lives when and packs it; lay_out() then gives absolute places,
// once the frame's own base and the places of its params (and of the rows that its stacked outputs fill) are
// known.
class Frame {
 public:
  // carries: of the loop that this is the body of; -1 for the outermost graph. over: outputs whose rows are
  // those of a sliced param (a cache that the loop updates).
  Frame(const Scheduled& s, const MemoryOptions& options, int depth, int64_t carries,
        std::map<int64_t, int64_t> over = {})
      : s_(s), g_(*s.graph), options_(options), depth_(depth), carries_(carries), over_(std::move(over)) {
    for (int32_t i = 0; i < end(); ++i) slot_[s_.order[static_cast<size_t>(i)].node] = i;
    find_last_uses();
    merge_in_place();
    find_stacked();
    make_allocations();
    for (const bool host : {false, true}) {
      std::vector<Allocation*> all;
      for (Live& l : live_)
        if (l.allocation.host == host) all.push_back(&l.allocation);
      (host ? size_.host : size_.device) = pack(all);
    }
    find_parts();
  }

  Sizes size() const { return size_; }
  const std::vector<MemoryPart>& parts() const { return parts_; }
  // Every allocation of this frame and of those inside it, at its absolute place.
  void collect(Sizes base, int32_t& frames, std::vector<Allocation>& out) const {
    const int32_t mine = frames++;
    for (const Live& l : live_) {
      out.push_back(l.allocation);
      out.back().base += base.of(l.allocation.host);
      out.back().frame = mine;
      const auto body = bodies_.find(l.node);
      if (body != bodies_.end() && !l.allocation.host)
        body->second.collect(frame_base(base, l.node), frames, out);
    }
  }

  // Where the frame of a loop's body lies inside this one.
  Sizes frame_base(Sizes base, int32_t node) const {
    for (const Live& l : live_)
      if (l.node == node) (l.allocation.host ? base.host : base.device) += l.allocation.base;
    return base;
  }

  Layout lay_out(Sizes base, const std::vector<Place>& params, const std::map<int64_t, Place>& rows) const {
    Layout layout;
    for (int64_t i = 0; i < static_cast<int64_t>(g_.params().size()); ++i)
      layout.places[g_.param_value(i)] = params[static_cast<size_t>(i)];
    for (const Live& l : live_) {
      Place p{base.of(l.allocation.host) + l.allocation.base, {}, l.allocation.host};
      if (l.copies > 1) p.terms.push_back({depth_ - 1, l.allocation.bytes / l.copies, l.copies});
      if (l.value.valid()) layout.places[l.value] = p;
      if (l.node >= 0 && !s_.bodies.contains(l.node)) layout.workspaces[l.node] = p;
    }
    for (const auto& [v, output] : stacked_) layout.places[v] = rows.at(output);
    for (int32_t id = 0; id < static_cast<int32_t>(g_.nodes().size()); ++id)
      for (int32_t r = 0; r < static_cast<int32_t>(g_.node(id).types.size()); ++r)
        layout.places[{id, r}] = layout.places.at(owner({id, r}));
    for (const auto& [id, body] : bodies_) lay_out_body(base, id, body, layout);
    // Rows first: a row may be the carry's old value, which the copy of the new one destroys.
    const auto outputs = static_cast<int64_t>(g_.outputs().size());
    for (int64_t o = std::max<int64_t>(carries_, 0); o < outputs; ++o) add_copy(o, rows, layout);
    for (int64_t o = 0; o < carries_; ++o) add_copy(o, rows, layout);
    return layout;
  }

 private:
  void add_copy(int64_t o, const std::map<int64_t, Place>& rows, Layout& layout) const {
    const ir::Output& out = g_.outputs()[static_cast<size_t>(o)];
    std::optional<Place> to;
    if (carries_ >= 0) {
      to = o < carries_ ? layout.places.at(g_.param_value(o)) : rows.at(o);
    } else if (out.alias >= 0) {
      to = layout.places.at(g_.param_value(out.alias));
    }
    const Place& from = layout.places.at(out.value);
    if (to && !same(from, *to)) layout.at_end.push_back({from, *to, g_.type(out.value).bytes(), out.name});
  }

  int32_t end() const { return static_cast<int32_t>(s_.order.size()); }
  Value root(Value v) const { return view_root(g_, v); }
  int64_t shift_of(int32_t node) const { return s_.order[static_cast<size_t>(slot_.at(node))].shift; }
  bool is_param(Value v) const { return g_.node(v).kind == "param"; }

  void find_last_uses() {
    const auto use = [&](Value v, int32_t at) {
      int32_t& last = last_[root(v)];
      last = std::max(last, at);
    };
    for (const auto& [id, at] : slot_) {
      for (const Value v : g_.node(id).inputs) {
        use(v, at);
        // What a collective reads stays untouched until its await.
        if (g_.node(id).kind == "await")
          for (const Value in : g_.node(v).inputs) use(in, at);
      }
    }
    for (const ir::Output& o : g_.outputs()) use(o.value, end());
  }

  // Results that may be written over an input which nobody reads later: AdamW over the state, a sum over its
  // carry, an element-wise result over a temporary, a loop's carry over its first value, what a loop stacks
  // over the rows that it updates.
  void merge_in_place() {
    for (const Slot& slot : s_.order) {
      const Node& n = g_.node(slot.node);
      if (n.kind == "await" || slot.shift > 0) continue;
      if (transfers(g_, n)) {
        if (n.types[0].host) merge_offloaded(slot.node);
        continue;
      }
      std::vector<std::pair<int, int>> pairs;
      if (n.kind == "scan") {
        const auto carry = static_cast<int>(ir::scan_of(n).carry);
        for (int i = 0; i < carry; ++i) pairs.emplace_back(i, i);
        for (int i = carry; i < static_cast<int>(n.types.size()); ++i)
          if (const int param = updated_param(*n.body, ir::scan_of(n), i); param >= 0)
            pairs.emplace_back(i, param);
      } else {
        const ops::NodeSite site(g_, n);
        pairs = ops::get_op(n.kind).buffers(site.site).in_place;
      }
      std::set<Value> used;
      for (const auto& [r, i] : pairs) {
        const Value result{slot.node, r}, input = root(n.inputs[static_cast<size_t>(i)]);
        if (merged_.contains(result) || used.contains(input) ||
            g_.type(result).bytes() != g_.type(input).bytes())
          continue;
        if (last_.at(input) != slot_.at(slot.node) || times_read(n, input) > 1) continue;
        if (is_param(input) ? !replaces(result, input) : gives_output(result)) continue;
        merged_[result] = input;
        used.insert(input);
      }
    }
  }
  // What is offloaded into the place that it was fetched from.
  void merge_offloaded(int32_t node) {
    const Value result{node, 0};
    for (size_t o = 0; o < g_.outputs().size(); ++o) {
      if (root(g_.outputs()[o].value) != result) continue;
      const auto over = over_.find(static_cast<int64_t>(o));
      const int64_t p = carries_ < 0 ? g_.outputs()[o].alias : over == over_.end() ? -1 : over->second;
      if (p < 0) continue;
      const Value param = g_.param_value(p);
      const auto last = last_.find(param);
      if (g_.type(param).host && g_.type(param).bytes() == g_.type(result).bytes() &&
          (last == last_.end() || last->second < slot_.at(node)) && replaces(result, param))
        merged_[result] = param;
    }
  }
  // The sliced param of a body that output o is an update of, op by op in place, or fetched and offloaded
  // again; -1: none, or its old row is an output too.
  static int updated_param(const Graph& body, const ir::Scan& scan, int o) {
    const auto find = [&](const auto& self, Value v) -> int {
      v = view_root(body, v);
      const Node& n = body.node(v);
      if (n.kind == "param") {
        const auto p = std::find(body.params().begin(), body.params().end(), v.node) - body.params().begin();
        return p >= scan.carry && p < scan.carry + scan.sliced ? static_cast<int>(p) : -1;
      }
      if (n.kind == "scan" || n.kind == "await") return -1;
      if (transfers(body, n)) return self(self, n.inputs[0]);
      const ops::NodeSite site(body, n);
      for (const auto& [r, i] : ops::get_op(n.kind).buffers(site.site).in_place) {
        if (r != v.index) continue;
        if (const int p = self(self, n.inputs[static_cast<size_t>(i)]); p >= 0) return p;
      }
      return -1;
    };
    const int p = find(find, body.outputs()[static_cast<size_t>(o)].value);
    for (const ir::Output& other : body.outputs())
      if (p >= 0 && view_root(body, other.value) == body.param_value(p)) return -1;
    return p;
  }
  int times_read(const Node& n, Value input) const {
    int times = 0;
    for (const Value v : n.inputs) times += root(v) == input;
    return times;
  }
  // Outputs of a body have places of their own (a row, the carry): they are not made over temporaries.
  bool gives_output(Value v) const {
    return carries_ >= 0 && std::any_of(g_.outputs().begin(), g_.outputs().end(),
                                        [&](const ir::Output& o) { return root(o.value) == v; });
  }
  // Result is the one output that takes the param's place: a donated param at the top, a carry or an updated
  // row in a body.
  bool replaces(Value result, Value param) const {
    const auto p = std::find(g_.params().begin(), g_.params().end(), param.node) - g_.params().begin();
    int here = 0, elsewhere = 0;
    for (size_t o = 0; o < g_.outputs().size(); ++o) {
      if (root(g_.outputs()[o].value) != result) continue;
      const auto updated = over_.find(static_cast<int64_t>(o));
      const bool match = carries_ < 0             ? g_.outputs()[o].alias == p
                         : updated != over_.end() ? updated->second == p
                                                  : static_cast<int64_t>(o) == p && p < carries_;
      ++(match ? here : elsewhere);
    }
    return here == 1 && elsewhere == 0;
  }

  Value owner(Value v) const {
    v = root(v);
    for (auto it = merged_.find(v); it != merged_.end(); it = merged_.find(v)) v = root(it->second);
    return v;
  }

  // A stacked result that a node of this body makes is made in its row; not where that row is still a
  // param's.
  void find_stacked() {
    if (carries_ < 0) return;
    for (auto o = carries_; o < static_cast<int64_t>(g_.outputs().size()); ++o) {
      const Value v = root(g_.outputs()[static_cast<size_t>(o)].value);
      const bool shares =
          merged_.contains(v) ||
          std::any_of(merged_.begin(), merged_.end(), [&](const auto& m) { return owner(m.first) == v; });
      const bool carry = g_.node(v).kind == "scan" && v.index < ir::scan_of(g_.node(v)).carry;
      if (over_.contains(o) || is_param(v) || carry || shares || stacked_.contains(v) || shift_of(v.node) > 0)
        continue;
      stacked_[v] = o;
    }
  }

  void make_allocations() {
    // The uses of all values that share a buffer, and those that a copy to host memory reads until the next
    // iteration.
    std::map<Value, std::pair<int32_t, int32_t>> range;
    std::map<Value, int64_t> lag;
    for (const Slot& slot : s_.order)
      if (slot.shift < 0) lag[owner(g_.node(g_.node(slot.node).inputs[0]).inputs[0])] = -slot.shift;
    for (const auto& [id, at] : slot_) {
      const Node& n = g_.node(id);
      for (int32_t r = 0; n.kind != "await" && r < static_cast<int32_t>(n.types.size()); ++r) {
        const Value v{id, r};
        if (root(v) != v) continue;
        const auto last = last_.find(v);
        const int32_t until = last == last_.end() ? at : std::max(at, last->second);
        const auto [it, fresh] = range.emplace(owner(v), std::pair{at, until});
        if (!fresh) it->second = {std::min(it->second.first, at), std::max(it->second.second, until)};
      }
    }
    for (const auto& [v, span] : range) {
      if (is_param(v) || stacked_.contains(v)) continue;
      Live l;
      l.value = v;
      l.allocation.part = part_of(g_, v, depth_ > 0);
      l.allocation.what = g_.node(v).tag.path + " " + g_.node(v).kind;
      if (l.allocation.part == "activations") l.allocation.saved = saved_name(g_, v);
      l.allocation.host = g_.type(v).host;
      l.allocation.bytes = l.allocation.host ? host_bytes(v) : aligned(g_.type(v).bytes());
      l.allocation.first = span.first;
      l.allocation.last = span.second;
      // Fetched ahead, updated in place and offloaded: at once those that come, the one in use, one that
      // goes.
      if (const int64_t apart = std::max<int64_t>(shift_of(v.node), 0) + lag[v]; apart > 0) {
        l.copies = apart + 1;
        l.allocation.bytes *= l.copies;
        l.allocation.first = 0;
        l.allocation.last = end();
      }
      if (l.copies == 1 && options_.share_rows) find_rows(v, l.allocation);
      live_.push_back(std::move(l));
    }
    for (const auto& [id, at] : slot_) {
      const Node& n = g_.node(id);
      Live l;
      l.node = id;
      l.allocation.what = n.tag.path + " " + n.kind;
      l.allocation.first = l.allocation.last = at;
      if (n.kind == "scan") {
        const int64_t carry = ir::scan_of(n).carry;
        std::map<int64_t, int64_t> over;
        for (auto o = carry; o < static_cast<int64_t>(n.types.size()); ++o) {
          const auto merged = merged_.find({id, static_cast<int32_t>(o)});
          if (merged == merged_.end()) continue;
          for (int64_t i = carry; i < static_cast<int64_t>(n.inputs.size()); ++i)
            if (root(n.inputs[static_cast<size_t>(i)]) == merged->second) over[o] = i;
        }
        const Frame& body =
            bodies_.emplace(id, Frame(s_.bodies.at(id), options_, depth_ + 1, carry, std::move(over)))
                .first->second;
        l.allocation.part = "temporaries";
        l.allocation.bytes = aligned(body.size().device);
        if (body.size().host > 0) {
          Live host = l;
          host.allocation.host = true;
          host.allocation.bytes = aligned(body.size().host, kHostAlign);
          live_.push_back(std::move(host));
        }
      } else if (n.kind != "await") {
        const ops::NodeSite site(g_, n);
        l.allocation.part = "workspace";
        l.allocation.bytes = aligned(ops::get_op(n.kind).workspace(site.site, options_.threads));
      }
      if (l.allocation.bytes > 0) live_.push_back(std::move(l));
    }
  }

  // A stack in host memory has rows of whole blocks.
  int64_t host_bytes(Value v) const {
    const Node& n = g_.node(v);
    const int64_t rows = n.kind == "scan" && v.index >= ir::scan_of(n).carry ? ir::scan_of(n).trip : 1;
    return rows * aligned(g_.type(v).bytes() / rows, kHostAlign);
  }

  // Whether v, alone in its buffer, is a stack that a loop writes row by row, or one that a loop reads so.
  void find_rows(Value v, Allocation& a) const {
    if (std::any_of(merged_.begin(), merged_.end(), [&](const auto& m) { return owner(m.first) == v; }))
      return;
    const auto life = [&](int32_t loop) {
      const ir::Scan s = ir::scan_of(g_.node(loop));
      const int64_t bytes = a.host ? a.bytes : g_.type(v).bytes();
      return RowLife{loop, s.trip, bytes / std::max<int64_t>(1, s.trip), s.reversed};
    };
    if (g_.node(v).kind == "scan" && v.index >= ir::scan_of(g_.node(v)).carry) a.written = life(v.node);
    if (a.last >= end()) return;
    const int32_t reader = s_.order[static_cast<size_t>(a.last)].node;
    const Node& n = g_.node(reader);
    if (n.kind != "scan") return;
    const ir::Scan s = ir::scan_of(n);
    for (int64_t i = 0; i < static_cast<int64_t>(n.inputs.size()); ++i)
      if (root(n.inputs[static_cast<size_t>(i)]) == v && (i < s.carry || i >= s.carry + s.sliced)) return;
    if (times_read(n, v) > 0) a.read = life(reader);
  }

  // What is in use at the fullest slot, by part; a loop counts as its own fullest moment.
  void find_parts() {
    int64_t most = -1;
    for (int32_t at = 0; at <= end(); ++at) {
      std::map<std::string, int64_t> by;
      int64_t sum = 0;
      for (const Live& l : live_) {
        if (l.allocation.host || l.allocation.first > at || at > l.allocation.last) continue;
        // A stack in the place of those that its loop has read counts for what is beside them.
        int64_t bytes = l.allocation.bytes;
        for (const Live& other : live_)
          if (l.allocation.written.loop >= 0 && other.allocation.read.loop == l.allocation.written.loop &&
              slot_.at(l.allocation.written.loop) == at)
            bytes -= shared_bytes(l.allocation, other.allocation);
        sum += bytes;
        const auto body = bodies_.find(l.node);
        if (body == bodies_.end()) {
          by[l.allocation.part] += bytes;
        } else {
          for (const MemoryPart& p : body->second.parts()) by[p.name] += p.bytes;
        }
      }
      if (sum <= most) continue;
      most = sum;
      parts_.clear();
      for (const auto& [name, bytes] : by) parts_.push_back({name, bytes});
    }
  }

  static bool same(const Place& a, const Place& b) {
    const auto equal = [](const Term& x, const Term& y) {
      return x.depth == y.depth && x.stride == y.stride && x.modulus == y.modulus;
    };
    return a.base == b.base && a.host == b.host &&
           std::equal(a.terms.begin(), a.terms.end(), b.terms.begin(), b.terms.end(), equal);
  }

  void lay_out_body(Sizes base, int32_t id, const Frame& body, Layout& layout) const {
    const Node& n = g_.node(id);
    const ir::Scan scan = ir::scan_of(n);
    const Graph& inner = *n.body;
    const auto row_of = [&](Place p, const ir::Type& row) {
      p.terms.push_back({depth_, row_bytes(row), 0});
      return p;
    };
    std::vector<Place> params;
    std::vector<Copy>& before = layout.before[id];
    for (int64_t i = 0; i < static_cast<int64_t>(n.inputs.size()); ++i) {
      const Place& outer = layout.places.at(n.inputs[static_cast<size_t>(i)]);
      if (i < scan.carry) {
        // The carry lives where the scan's result does; its first value is copied there.
        const Place& own = layout.places.at({id, static_cast<int32_t>(i)});
        if (!same(outer, own))
          before.push_back({outer, own, n.types[static_cast<size_t>(i)].bytes(), inner.param_name(i)});
        params.push_back(own);
      } else {
        params.push_back(i < scan.carry + scan.sliced ? row_of(outer, inner.type(inner.param_value(i)))
                                                      : outer);
      }
    }
    std::map<int64_t, Place> rows;
    for (int64_t o = scan.carry; o < scan.carry + scan.stacked; ++o)
      rows[o] = row_of(layout.places.at({id, static_cast<int32_t>(o)}),
                       inner.type(inner.outputs()[static_cast<size_t>(o)].value));
    layout.bodies[id] = body.lay_out(frame_base(base, id), params, rows);
  }

  const Scheduled& s_;
  const Graph& g_;
  MemoryOptions options_;
  int depth_;
  int64_t carries_;
  std::map<int64_t, int64_t> over_;   // output -> the sliced param in whose row it is made
  std::map<int32_t, int32_t> slot_;   // node -> place in the order
  std::map<Value, int32_t> last_;     // root -> the last slot that reads it; end() for outputs
  std::map<Value, Value> merged_;     // result -> the value whose buffer it takes
  std::map<Value, int64_t> stacked_;  // made in the row of this output
  std::map<int32_t, Frame> bodies_;
  std::vector<Live> live_;
  Sizes size_;
  std::vector<MemoryPart> parts_;
};

std::string state_part(const std::string& param, DType dtype) {
  if (param.starts_with("adam_") || param.starts_with("sgd_")) return "optimizer";
  if (param.starts_with("cache:")) return "cache";
  return dtype_is_float(dtype) && param.find('.') != std::string::npos ? "weights" : "inputs";
}

}  // namespace

HostRows host_rows(const ir::Type& param) {
  const int64_t rows = is_stack(param) ? param.dims[0] : 1;
  const int64_t bytes = param.bytes() / std::max<int64_t>(1, rows);
  return {rows, bytes, aligned(bytes, kHostAlign)};
}

MemoryPlan plan_memory(const Scheduled& step, const MemoryOptions& options) {
  const Graph& g = *step.graph;
  MemoryPlan plan;
  std::vector<Place> params;
  std::map<std::string, int64_t> state, host_state;
  for (int64_t i = 0; i < static_cast<int64_t>(g.params().size()); ++i) {
    const ir::Type& t = g.type(g.param_value(i));
    if (t.host) {
      const HostRows rows = host_rows(t);
      params.push_back({plan.host_state_bytes, {}, true});
      plan.host_state_bytes += rows.rows * rows.stride;
      host_state[state_part(g.param_name(i), t.dtype)] += rows.rows * rows.stride;
      continue;
    }
    params.push_back({plan.state_bytes, {}});
    plan.state_bytes += aligned(t.bytes());
    state[state_part(g.param_name(i), t.dtype)] += aligned(t.bytes());
  }
  const Frame frame(step, options, 0, -1);
  const Sizes base{plan.state_bytes, plan.host_state_bytes};
  plan.layout = frame.lay_out(base, params, {});
  plan.arena_bytes = base.device + frame.size().device;
  plan.host_bytes = base.host + frame.size().host;
  for (const auto& [name, bytes] : state) plan.parts.push_back({name, bytes});
  for (const auto& [name, bytes] : host_state) plan.host_state.push_back({name, bytes});
  for (const MemoryPart& p : frame.parts()) plan.parts.push_back(p);
  int32_t frames = 0;
  frame.collect(base, frames, plan.allocations);
  for (const bool host : {false, true}) {
    std::map<std::string, int64_t> saved;
    for (const Allocation& a : plan.allocations)
      if (a.host == host && !a.saved.empty()) saved[a.saved] += a.bytes;
    std::vector<MemoryPart>& parts = host ? plan.offloaded : plan.saved;
    for (const auto& [name, bytes] : saved) parts.push_back({name, bytes});
    std::stable_sort(parts.begin(), parts.end(),
                     [](const MemoryPart& a, const MemoryPart& b) { return a.bytes > b.bytes; });
  }
  return plan;
}

}  // namespace lignum::passes
