#include "ops/attention/tiles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "ops/emit.h"

namespace lignum::ops {

Values attention_of(Builder& b, const QueryRows& r, const Attrs& attrs) {
  Arith m(b);
  const Type q = b.type(r.q);
  const Value scores = attention_scores(b, r, attrs);
  const Dims dims = b.type(scores).dims;
  const Value largest = m.max_last(scores);
  Value e = m.exp(m.sub(scores, m.over_row(largest, dims)));
  if (r.may_see_nothing()) e = m.select(is_seen(b, scores), e, m.like(e, 0));
  Value sum = m.sum_last(e), sees = {};
  if (r.may_see_nothing()) {  // its sum is then 0
    sees = m.compare("gt", sum, m.like(sum, 0));
    sum = m.select(sees, sum, m.like(sum, 1));
  }
  const Value p = m.div(e, m.over_row(sum, dims));
  const Value out = b.transpose(m.matmul(p, r.v, {4}, {1}, {0, 1}, {0, 2}), {0, 2, 1, 3, 4});
  Value lse = m.add(largest, m.log(sum));
  if (sees.valid()) lse = m.select(sees, lse, m.like(lse, -std::numeric_limits<double>::infinity()));
  lse = b.transpose(lse, {0, 1, 3, 2});
  return {b.convert(b.reshape(out, q.dims), q.dtype), b.reshape(lse, {q.dims[0], q.dims[2], q.dims[1]})};
}

Values gradients_of(Builder& b, const GradientRows& g, const Attrs& attrs) {
  Arith m(b);
  const QueryRows& r = g.rows;
  const Type q = b.type(r.q);
  const int64_t batch = q.dims[0], queries = q.dims[1], heads = q.dims[2], kv_heads = b.type(r.k).dims[2];
  const Value dout = grouped(b, g.dout, kv_heads);
  const Value scores = attention_scores(b, r, attrs);  // [B, Hkv, t, G, keys]
  const Dims dims = b.type(scores).dims;
  const Value lse = b.transpose(b.reshape(g.lse, {batch, kv_heads, heads / kv_heads, queries}), {0, 1, 3, 2});
  Value p = m.exp(m.sub(scores, m.over_row(lse, dims)));
  if (r.may_see_nothing()) p = m.select(is_seen(b, scores), p, m.like(p, 0));  // lse may be -inf
  const Value dp = m.matmul(dout, r.v, {4}, {3}, {0, 2}, {0, 2});
  const Value delta =
      b.transpose(m.sum_last(m.mul(m.f32(dout), m.f32(grouped(b, g.out, kv_heads)))), {0, 2, 1, 3});
  Value ds = m.mul(m.mul(p, m.sub(dp, m.over_row(delta, dims))), attrs.get<double>("scale"));
  if (const double cap = attrs.get_or<double>("softcap", 0.0); cap > 0) {
    // Where a key is masked p is 0, and its score, far below the cap, must not make that a NaN.
    const Value y = m.mul(b.elementwise("max", {scores, m.like(scores, -cap)}), 1 / cap);
    ds = m.mul(ds, m.sub(1.0, m.mul(y, y)));
  }
  const Value dq = b.transpose(m.matmul(ds, r.k, {4}, {1}, {0, 1}, {0, 2}), {0, 2, 1, 3, 4});
  const Value dk =
      b.transpose(m.matmul(ds, grouped(b, r.q, kv_heads), {2, 3}, {1, 3}, {0, 1}, {0, 2}), {0, 2, 1, 3});
  const Value dv = b.transpose(m.matmul(p, dout, {2, 3}, {1, 3}, {0, 1}, {0, 2}), {0, 2, 1, 3});
  return {b.convert(b.reshape(dq, q.dims), q.dtype), dk, dv};
}

namespace {

// Consecutive tiles of queries, and the keys that one of them may see.
struct Range {
  int64_t first, last, tile;  // queries
  int64_t first_key, last_key;
  int64_t tiles() const { return (last - first) / tile; }
};

// Queries of a tile: kQueryTile, fewer where its scores would be more than kTileBytes.
int64_t query_tile(const kernels::Attention& a) {
  int64_t tile = kQueryTile;
  while (tile > kLeastTile && 4 * a.batch * a.heads * tile * a.keys > kTileBytes) tile /= 2;
  return tile;
}

// Where the tokens stand elsewhere than at their numbers, any query may see any key.
std::vector<Range> ranges_of(const kernels::Attention& a, bool placed) {
  const bool causal = a.causal && !placed;
  const int64_t size = query_tile(a), tiles = a.queries / size,
                pieces = causal ? std::min(kRanges, tiles) : 1;
  std::vector<Range> out;
  const auto add = [&](int64_t first, int64_t last, int64_t tile) {
    const int64_t oldest = a.window > 0 && !placed ? std::max<int64_t>(0, first - a.window + 1) : 0;
    out.push_back({first, last, tile, oldest, causal ? last : a.keys});
  };
  for (int64_t i = 0; i < pieces; ++i) add(tiles * i / pieces * size, tiles * (i + 1) / pieces * size, size);
  if (const int64_t whole = tiles * size; whole < a.queries) add(whole, a.queries, a.queries - whole);
  return out;
}

Type with_dim(Type t, size_t dim, int64_t size) {
  t.dims[dim] = size;
  return t;
}

std::string joined(Emitter& out, const std::vector<std::string>& parts, const Types& types, size_t dim,
                   const Type& whole) {
  if (parts.size() == 1) return parts[0];
  const std::string result = out.fresh();
  out.line(fmt::format("{} = stablehlo.concatenate {}, dim = {} : {} -> {}", result, fmt::join(parts, ", "),
                       dim, mlir_types(types), mlir_type(whole)));
  return result;
}

// v, keys first_key on of `whole`, with zeros for the others.
std::string padded(Emitter& out, const std::string& v, const Type& whole, const Range& r) {
  if (r.last_key - r.first_key == whole.dims[1]) return v;
  const std::string zero = out.fresh(), result = out.fresh();
  out.line(fmt::format("{} = stablehlo.constant dense<0.0> : tensor<f32>", zero));
  out.line(fmt::format(
      "{} = stablehlo.pad {}, {}, low = [0, {}, 0, 0], high = [0, {}, 0, 0], interior = [0, 0, 0, 0] "
      ": ({}, tensor<f32>) -> {}",
      result, v, zero, r.first_key, whole.dims[1] - r.last_key,
      mlir_type(with_dim(whole, 1, r.last_key - r.first_key)), mlir_type(whole)));
  return result;
}

// A value that is printed already.
struct Printed {
  std::string name;
  Type type;
};

// A loop over the tiles of a range: first what it sums up, then what it walks, then what each tile sees
// whole, then its results in the same order.
class Loop {
 public:
  Loop(const EmitCall& call, const Range& range)
      : call_(call), range_(range), build_(graph_), body_(std::make_shared<ir::Graph>()), inner_(*body_) {}

  Builder& inner() { return inner_; }

  // A sum over the tiles, from zero: its value before this tile.
  Value sum(const Type& type) {
    inputs_.push_back(build_.constant(type.dtype, type.dims, 0));
    results_.push_back(type);
    ++scan_.carry;
    return body_->param("sum", type);
  }
  // Of v, whose dim `dim` is the queries, those of this tile.
  Value walked(const Printed& v, size_t dim) {
    const Type part = plain(v.type, dim, range_.last - range_.first);
    arguments_.push_back(emit_slice(call_.out, v.name, v.type, dim, range_.first, range_.last));
    return tile_of(graph_.param("walked", part), dim);
  }
  Value walked(size_t input, size_t dim) { return walked(printed(input), dim); }
  // Positions of the queries of this tile.
  Value positions() {
    Arith m(build_);
    return tile_of(m.add(m.iota({range_.last - range_.first}, 0), static_cast<double>(range_.first)), 0);
  }
  // Of v, whose dim `dim` is the keys, those of the range.
  Value same(const Printed& v, size_t dim) {
    const Type part = plain(v.type, dim, keys());
    arguments_.push_back(emit_slice(call_.out, v.name, v.type, dim, range_.first_key, range_.last_key));
    inputs_.push_back(graph_.param("same", part));
    ++scan_.invariant;
    return body_->param("same", part);
  }
  Value same(size_t input) { return same(printed(input), 1); }

  void next_sum(Value v) { body_->output("sum", v); }
  // A result whose dim `dim` is the queries.
  void stack(Value v, size_t dim) {
    Type t = inner_.type(v);
    t.dims.insert(t.dims.begin(), range_.tiles());
    results_.push_back(std::move(t));
    stacked_.push_back(dim);
    body_->output("stack", v);
  }
  // Prints it: the sums, then the results of all of the range's queries.
  std::vector<std::string> emit() {
    scan_.trip = range_.tiles();
    scan_.stacked = static_cast<int64_t>(stacked_.size());
    ir::Node node;
    node.kind = "scan";
    node.inputs = inputs_;
    node.types = results_;
    node.attrs = ir::scan_attrs(scan_);
    node.body = body_;
    const int32_t id = graph_.add(std::move(node));
    for (int32_t i = 0; i < static_cast<int32_t>(results_.size()); ++i)
      graph_.output("result", i < scan_.carry
                                  ? Value{id, i}
                                  : untiled({id, i}, stacked_[static_cast<size_t>(i - scan_.carry)]));
    return emit_graph(call_.out, graph_, arguments_);
  }
  int64_t keys() const { return range_.last_key - range_.first_key; }

 private:
  Printed printed(size_t input) const { return {call_.in[input], call_.site.in[input]}; }
  static Type plain(const Type& t, size_t dim, int64_t size) {
    Type out{t.dtype, t.dims, {}};
    out.dims[dim] = size;
    return out;
  }
  // A stack of tiles [n, ..., t, ...] out of v [..., n t, ...], walked by the loop.
  Value tile_of(Value v, size_t dim) {
    Type t = build_.type(v);
    t.dims[dim] = range_.tile;
    Dims cut = t.dims, order = {static_cast<int64_t>(dim)};
    cut.insert(cut.begin() + static_cast<std::ptrdiff_t>(dim), range_.tiles());
    for (size_t d = 0; d < cut.size(); ++d)
      if (d != dim) order.push_back(static_cast<int64_t>(d));
    inputs_.push_back(build_.transpose(build_.reshape(v, cut), order));
    ++scan_.sliced;
    return body_->param("tile", t);
  }
  Value untiled(Value v, size_t dim) {
    const Dims stack = build_.type(v).dims;
    Dims order, whole;
    for (size_t d = 1; d < stack.size(); ++d) {
      if (d - 1 == dim) order.push_back(0);
      order.push_back(static_cast<int64_t>(d));
      whole.push_back(d - 1 == dim ? stack[0] * stack[d] : stack[d]);
    }
    return build_.reshape(build_.transpose(v, order), whole);
  }

  const EmitCall& call_;
  Range range_;
  ir::Graph graph_;
  Builder build_;
  std::shared_ptr<ir::Graph> body_;
  Builder inner_;
  ir::Scan scan_;
  Values inputs_;  // of the scan
  Types results_;  // likewise
  std::vector<size_t> stacked_;
  std::vector<std::string> arguments_;  // the SSA names of graph_'s params
};

// Positions of the queries and of the keys, printed; none where they stand at their numbers.
struct PrintedPositions {
  std::optional<Printed> queries, keys;
};
PrintedPositions emit_positions(const EmitCall& c, const TokenInputs& inputs, const kernels::Attention& a) {
  if (!inputs.starts) return {};
  const auto print = [&](size_t input, int64_t count) {
    ir::Graph graph;
    Builder b(graph);
    graph.output("positions", positions_of(b, graph.param("starts", c.site.in[input]), count));
    return Printed{emit_graph(c.out, graph, std::vector{c.in[input]})[0], {DType::i32, {count}, {}}};
  };
  return {print(*inputs.starts, a.queries), print(*inputs.starts + 1, a.keys)};
}

// The queries of a tile and the keys of its range: q and k at input `q` and behind it.
QueryRows rows_of(Loop& loop, const Range& range, const TokenInputs& inputs, const PrintedPositions& at,
                  size_t q) {
  QueryRows r{.q = loop.walked(q, 1), .positions = {}, .first_key = range.first_key};
  r.positions = at.queries ? loop.walked(*at.queries, 0) : loop.positions();
  if (inputs.segments) r.of_query = loop.walked(*inputs.segments, 1);
  return r;
}
void add_keys(Loop& loop, const TokenInputs& inputs, const PrintedPositions& at, size_t k, QueryRows& r) {
  r.k = loop.same(k), r.v = loop.same(k + 1);
  if (at.keys) r.key_positions = loop.same(*at.keys, 0);
  if (inputs.segments) r.of_key = loop.same(*inputs.segments + 1);
}

std::vector<std::string> emit_whole(const EmitCall& c, std::string_view op) {
  return emit_graph(c.out, decomposition(get_op(op), c.site), c.in);
}

}  // namespace

std::vector<std::string> emit_attention(const EmitCall& c) {
  const kernels::Attention a = attention_shape(c.site.in[0], c.site.in[1], c.site.attrs);
  if (a.queries <= query_tile(a)) return emit_whole(c, "attention");
  const TokenInputs inputs = token_inputs(c.site.attrs, 3);
  const PrintedPositions at = emit_positions(c, inputs, a);
  std::vector<std::string> outs, sums;
  Types out_types, sum_types;
  for (const Range& range : ranges_of(a, inputs.starts.has_value())) {
    Loop loop(c, range);
    QueryRows r = rows_of(loop, range, inputs, at, 0);
    add_keys(loop, inputs, at, 1, r);
    const Values made = attention_of(loop.inner(), r, c.site.attrs);
    loop.stack(made[0], 1), loop.stack(made[1], 2);
    const std::vector<std::string> names = loop.emit();
    outs.push_back(names[0]), sums.push_back(names[1]);
    out_types.push_back(with_dim(c.site.out[0], 1, range.last - range.first));
    sum_types.push_back(with_dim(c.site.out[1], 2, range.last - range.first));
  }
  return {joined(c.out, outs, out_types, 1, c.site.out[0]), joined(c.out, sums, sum_types, 2, c.site.out[1])};
}

std::vector<std::string> emit_attention_grad(const EmitCall& c) {
  const kernels::Attention a = attention_shape(c.site.in[1], c.site.in[2], c.site.attrs);
  if (a.queries <= query_tile(a)) return emit_whole(c, "attention_grad");
  const TokenInputs inputs = token_inputs(c.site.attrs, 6);
  const PrintedPositions at = emit_positions(c, inputs, a);
  const Type of_keys{DType::f32, c.site.in[2].dims, {}};
  std::vector<std::string> dqs, of_kv[2];
  Types dq_types;
  for (const Range& range : ranges_of(a, inputs.starts.has_value())) {
    Loop loop(c, range);
    const Type part = with_dim(of_keys, 1, loop.keys());
    const Value before[] = {loop.sum(part), loop.sum(part)};
    GradientRows g;
    g.rows = rows_of(loop, range, inputs, at, 1);
    g.dout = loop.walked(0, 1), g.out = loop.walked(4, 1), g.lse = loop.walked(5, 2);
    add_keys(loop, inputs, at, 2, g.rows);
    const Values made = gradients_of(loop.inner(), g, c.site.attrs);
    for (size_t i = 0; i < 2; ++i) loop.next_sum(Arith(loop.inner()).add(before[i], made[i + 1]));
    loop.stack(made[0], 1);
    const std::vector<std::string> names = loop.emit();
    for (size_t i = 0; i < 2; ++i) of_kv[i].push_back(padded(c.out, names[i], of_keys, range));
    dqs.push_back(names[2]);
    dq_types.push_back(with_dim(c.site.out[0], 1, range.last - range.first));
  }
  std::vector<std::string> out = {joined(c.out, dqs, dq_types, 1, c.site.out[0])};
  for (const std::vector<std::string>& parts : of_kv) {
    std::string total = parts[0];
    const auto line = [&](std::string text) {
      const std::string name = c.out.fresh();
      c.out.line(fmt::format("{} = {}", name, text));
      total = name;
    };
    for (size_t i = 1; i < parts.size(); ++i)
      line(fmt::format("stablehlo.add {}, {} : {}", total, parts[i], mlir_type(of_keys)));
    if (a.dtype != DType::f32)
      line(fmt::format("stablehlo.convert {} : ({}) -> {}", total, mlir_type(of_keys),
                       mlir_type(c.site.out[1])));
    out.push_back(total);
  }
  return out;
}

}  // namespace lignum::ops
