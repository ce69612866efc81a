#include "passes/tick_loop.h"

#include <numeric>

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Scan;
using ir::Type;
using ir::Value;
using ops::Builder;
using Dims = std::vector<int64_t>;

Dims split(const Dims& dims, int64_t first) {
  Dims out = dims;
  LIGNUM_CHECK(!dims.empty() && dims[0] % first == 0, "{} parts of a first dim", first);
  out[0] /= first;
  out.insert(out.begin(), first);
  return out;
}
Dims merged(const Dims& dims) {
  Dims out(dims.begin() + 1, dims.end());
  out[0] *= dims[0];
  return out;
}
Type row_of(Type stack) {
  stack.dims.erase(stack.dims.begin());
  if (!stack.names.empty()) stack.names.erase(stack.names.begin());
  return stack;
}

// The body of a guarded loop over a part of the layers, `part` trips of `whole`: the layers that a node
// stands for are those of the first part.
std::shared_ptr<const Graph> of_a_part(const Graph& body, int64_t part, int64_t whole) {
  Graph out = ir::rewrite(body, [&](Graph& to, int32_t, const Node& node, std::span<const Value> inputs) {
    Node n = node;
    n.inputs.assign(inputs.begin(), inputs.end());
    const int64_t layers = node.tag.layer_end - node.tag.layer_begin;
    n.tag.layer_end = node.tag.layer_begin + static_cast<int32_t>(layers * part / whole);
    return to.results(to.add(std::move(n)));
  });
  out.param("part", {DType::i32, {}, {}});
  return std::make_shared<const Graph>(std::move(out));
}

class TickLoopBuilder {
 public:
  TickLoopBuilder(Builder& b, const StageLoop& loop, const Pipeline& pipeline)
      : b_(b),
        loop_(loop),
        pipeline_(pipeline),
        layers_(ir::scan_of(loop.scan)),
        forward_(!layers_.reversed),
        table_(tick_loop(pipeline, forward_ ? TickWork::Kind::forward : TickWork::Kind::backward)),
        trip_(layers_.trip / (pipeline.stages * pipeline.repeats)),
        body_(std::make_shared<Graph>()),
        inner_(*body_) {
    body_->name = loop.body->name + "_ticks";
    body_->stage = ir::Stage::local;
    inner_.origin = b.origin;
    b_.tag = loop.scan.tag;
    b_.tag.name.clear();
    b_.tag.path += "/pipeline";
    b_.tag.layer_begin = b_.tag.layer_end = 0;
    inner_.tag = b_.tag;
  }

  std::vector<Value> run() {
    stage_ = b_.add("axis_index", {}, {{"axis", std::string(kStageAxis)}, {"group", pipeline_.stages}});
    make_params();
    feed_layers();
    const std::vector<Value> made = run_layers();
    finish_tick(made);
    return results();
  }

 private:
  // This stage's column of a table, one number a row.
  Value column(const TickLoop::Rows& rows) {
    std::vector<double> values;
    for (size_t stage = 0; stage < static_cast<size_t>(pipeline_.stages); ++stage)
      for (const auto& row : rows) values.push_back(static_cast<double>(row[stage]));
    const Value all = b_.add("constant", {},
                             {{"dtype", std::string("i32")},
                              {"dims", Dims{pipeline_.stages, static_cast<int64_t>(rows.size())}},
                              {"values", std::move(values)}});
    return b_.add("take_row", {all, stage_});
  }
  Value number(const std::vector<int64_t>& row) { return b_.reshape(column({row}), {}); }

  // Zeros of a buffer of their own.
  Value zeros(const Type& type, const std::string& what) {
    const std::string path = std::exchange(b_.tag.path, b_.tag.path + "/" + what);
    const Value v = b_.constant(type.dtype, type.dims, 0.0);
    b_.tag.path = path;
    return v;
  }

  Value param(std::string name, Value outer, bool sliced) {
    inputs_.push_back(outer);
    const Type& t = b_.type(outer);
    return body_->param(std::move(name), sliced ? row_of(t) : t);
  }

  // The params of the body in their order, and what they stand for outside.
  void make_params() {
    const Graph& layers = *loop_.body;
    for (int64_t i = 0; i < layers_.carry; ++i) {
      const Type& t = layers.type(layers.param_value(i));
      mail_.push_back(param("mail " + layers.param_name(i), zeros(t, "mail"), false));
    }
    for (int64_t i = 0; i < layers_.carry; ++i) {
      const Value all = loop_.inputs[static_cast<size_t>(i)];
      feeds_.push_back(param("feed " + layers.param_name(i),
                             b_.reshape(all, split(b_.type(all).dims, pipeline_.microbatches)), false));
    }
    for (int64_t r = layers_.carry; r < layers_.carry + layers_.stacked; ++r) {
      if (!loop_.summed[static_cast<size_t>(r)]) continue;
      const ir::Output& o = layers.outputs()[static_cast<size_t>(r)];
      Type t = layers.type(o.value);
      t.dims.insert(t.dims.begin(), {pipeline_.repeats, trip_});
      sums_.push_back(param("sum " + o.name, zeros(t, o.name), false));
    }
    shape_.carry = static_cast<int64_t>(inputs_.size());
    arrives_ = param("arrives", column(table_.arrives), true);
    reads_ = param("reads", column(table_.reads), true);
    microbatch_ = param("microbatch", column(table_.microbatches), true);
    repeat_ = param("repeat", column(table_.repeats), true);
    TickLoop::Rows parts = table_.repeats;
    for (auto& row : parts)
      for (size_t stage = 0; stage < row.size(); ++stage)
        if (row[stage] >= 0) row[stage] = row[stage] * pipeline_.stages + static_cast<int64_t>(stage);
    part_ = param("part", column(parts), true);
    const auto count = static_cast<int64_t>(loop_.inputs.size());
    given_.resize(loop_.inputs.size());
    for (int64_t i = layers_.carry; i < count; ++i)
      if (loop_.ticked[static_cast<size_t>(i)])
        given_[static_cast<size_t>(i)] =
            param(layers.param_name(i), loop_.inputs[static_cast<size_t>(i)], true);
    shape_.sliced = static_cast<int64_t>(inputs_.size()) - shape_.carry;
    for (int64_t i = layers_.carry; i < count; ++i) {
      const auto k = static_cast<size_t>(i);
      if (loop_.ticked[k]) continue;
      Value outer = loop_.inputs[k];
      if (loop_.batched[k]) outer = b_.reshape(outer, split(b_.type(outer).dims, pipeline_.microbatches));
      if (const int64_t parts = parts_of(i); parts > 1)
        outer = b_.reshape(outer, split(b_.type(outer).dims, parts));
      given_[k] = param(layers.param_name(i), outer, false);
    }
    shape_.invariant = static_cast<int64_t>(inputs_.size()) - shape_.carry - shape_.sliced;
  }

  // What has arrived goes to its slot, and the tick's work is taken from its own.
  void feed_layers() {
    for (size_t i = 0; i < mail_.size(); ++i) {
      feeds_[i] = inner_.add("put_row", {feeds_[i], mail_[i], arrives_});
      given_[i] = inner_.add("take_row", {feeds_[i], reads_});
    }
    for (size_t i = mail_.size(); i < given_.size(); ++i) {
      if (loop_.batched[i]) given_[i] = inner_.add("take_row", {given_[i], microbatch_});
      if (parts_of(static_cast<int64_t>(i)) > 1)
        given_[i] = inner_.add("take_row", {given_[i], loop_.whole[i] ? part_ : repeat_});
    }
  }

  std::vector<Value> run_layers() {
    Node scan = loop_.scan;
    Scan shape = layers_;
    shape.trip = trip_;
    // A tick without work: nothing is sent that is read, and what is summed or kept is not.
    shape.guarded = true;
    ++shape.invariant;
    scan.attrs = ir::scan_attrs(shape);
    scan.inputs = given_;
    scan.inputs.push_back(part_);
    scan.body = of_a_part(*loop_.body, trip_, layers_.trip);
    const int64_t layers = scan.tag.layer_end - scan.tag.layer_begin;
    scan.tag.layer_end = scan.tag.layer_begin + static_cast<int32_t>(layers * trip_ / layers_.trip);
    scan.types.clear();
    for (size_t r = 0; r < loop_.body->outputs().size(); ++r) {
      Type t = loop_.body->type(loop_.body->outputs()[r].value);
      if (static_cast<int64_t>(r) >= layers_.carry) {
        t.dims.insert(t.dims.begin(), trip_);
        if (!t.names.empty()) t.names.insert(t.names.begin(), "layers");
      }
      scan.types.push_back(std::move(t));
    }
    return body_->results(body_->add(std::move(scan)));
  }

  // Sends the carries on, adds what is summed, and stacks the rest.
  void finish_tick(const std::vector<Value>& made) {
    const auto carries = static_cast<size_t>(layers_.carry);
    std::vector<Value> sent;
    for (size_t i = 0; i < carries; ++i)
      sent.push_back(inner_.add("collective_permute", {made[i]},
                                {{"axis", std::string(kStageAxis)},
                                 {"group", pipeline_.stages},
                                 {"shift", int64_t{forward_ ? 1 : -1}}}));
    std::vector<Value> sums, stacked;
    for (size_t r = carries; r < made.size(); ++r) {
      if (loop_.summed[r]) {
        sums.push_back(inner_.add("put_row", {sums_[sums.size()], made[r], repeat_}, {{"add", true}}));
      } else {
        stacked.push_back(made[r]);
        names_.push_back(loop_.body->outputs()[r].name);
      }
    }
    for (size_t i = 0; i < carries; ++i)
      body_->output(body_->param_name(static_cast<int64_t>(i)), inner_.add("await", {sent[i]}));
    for (size_t i = 0; i < carries; ++i)
      body_->output(body_->param_name(static_cast<int64_t>(carries + i)), feeds_[i]);
    for (size_t i = 0; i < sums.size(); ++i)
      body_->output(body_->param_name(static_cast<int64_t>(2 * carries + i)), sums[i]);
    for (size_t i = 0; i < stacked.size(); ++i) body_->output(names_[i], stacked[i]);
    shape_.stacked = static_cast<int64_t>(stacked.size());
  }

  std::vector<Value> results() {
    const auto ticks = static_cast<int64_t>(table_.reads.size());
    shape_.trip = ticks;
    shape_.reversed = layers_.reversed;
    Node scan;
    scan.kind = "scan";
    scan.inputs = inputs_;
    scan.attrs = ir::scan_attrs(shape_);
    scan.tag = b_.tag;
    scan.origin = b_.origin;
    for (size_t r = 0; r < body_->outputs().size(); ++r) {
      Type t = body_->type(body_->outputs()[r].value);
      if (static_cast<int64_t>(r) >= shape_.carry) {
        t.dims.insert(t.dims.begin(), ticks);
        if (!t.names.empty()) t.names.insert(t.names.begin(), "");
      }
      scan.types.push_back(std::move(t));
    }
    scan.body = body_;
    const std::vector<Value> all = b_.graph().results(b_.graph().add(std::move(scan)));
    const auto carries = static_cast<size_t>(layers_.carry);
    std::vector<Value> out;
    const Value last = number(table_.last), holds_all = number(table_.holds_all);
    for (size_t i = 0; i < carries; ++i) {
      const Value feed = b_.add("put_row", {all[carries + i], all[i], last});
      Dims one = b_.type(feed).dims;
      one.insert(one.begin(), 1);
      const Value own = b_.add("take_row", {b_.reshape(feed, one), holds_all});
      out.push_back(b_.reshape(own, merged(b_.type(own).dims)));
    }
    size_t sum = 2 * carries, stack = static_cast<size_t>(shape_.carry);
    for (size_t r = carries; r < loop_.summed.size(); ++r) {
      if (loop_.summed[r]) {
        const Value v = all[sum++];
        out.push_back(b_.reshape(v, merged(b_.type(v).dims)));
      } else {
        out.push_back(all[stack++]);
      }
    }
    return out;
  }

  // Of how many parts a tick takes one, of a stack of layers.
  int64_t parts_of(int64_t i) const {
    const auto k = static_cast<size_t>(i);
    if (i < layers_.carry || i >= layers_.carry + layers_.sliced || loop_.ticked[k]) return 1;
    return loop_.whole[k] ? pipeline_.stages * pipeline_.repeats : pipeline_.repeats;
  }

  Builder& b_;
  const StageLoop& loop_;
  const Pipeline& pipeline_;
  const Scan layers_;  // the loop over all layers
  const bool forward_;
  const TickLoop table_;
  const int64_t trip_;  // bodies that a stage runs in a tick
  std::shared_ptr<Graph> body_;
  Builder inner_;
  Scan shape_;
  Value stage_;
  std::vector<Value> inputs_;  // of the loop over ticks
  Value arrives_, reads_, microbatch_, repeat_, part_;
  std::vector<Value> mail_, feeds_, sums_;  // params of body_, then what a tick makes of them
  std::vector<Value> given_;                // inputs of the loop over layers, in body_
  std::vector<std::string> names_;          // of what is stacked
};

}  // namespace

std::vector<Value> add_tick_loop(Builder& b, const StageLoop& loop, const Pipeline& pipeline) {
  return TickLoopBuilder(b, loop, pipeline).run();
}

}  // namespace lignum::passes
