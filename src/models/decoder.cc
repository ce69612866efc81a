#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "models/table.h"
#include "ops/op.h"
#include "ops/quantize/quantised.h"

namespace lignum::models {
namespace {

using config::ModelConfig;
using ir::Value;
using ops::Builder;

using Weights = std::map<std::string, Value>;

// What the layers are told of the tokens. Generation: start and count of each row; its layers keep keys and
// values.
struct Text {
  Value positions;
  int64_t length = 0;  // of the whole text, which some models' rotary frequencies depend on
  Value start, count;
  std::optional<Value> segments;
  std::optional<Value> rounding_keys;
};
struct Cache {
  Value key, value;
};

// A parameter as the graph's operand: matrices and biases in the activations' dtype; a norm that adds one
// adds it to the f32 master.
Value operand(Builder& b, const Row& row, Value parameter, DType dtype) {
  if (!row.adds_one) return b.convert(parameter, dtype);
  return b.elementwise("add", {parameter, b.constant(DType::f32, b.type(parameter).dims, 1.0)});
}

Value normed(Builder& b, const ModelConfig& m, Value x, Value scale, Value bias) {
  const ops::Attrs attrs = {{"epsilon", m.norm_eps}};
  if (m.norm == config::Norm::layer) return b.add_all("layer_norm", {x, scale, bias}, attrs)[0];
  return b.add_all("rms_norm", {x, scale}, attrs)[0];
}

// One decoder layer: x -> x.
class Layer {
 public:
  Layer(Builder& b, const ModelConfig& m, int64_t number, const Weights& weights)
      : b_(b), m_(m), number_(number), w_(weights) {}

  // With a cache its rows are written, and attention reads all of it.
  Value operator()(Value x, const Text& text, Cache* cache) {
    const auto& dims = b_.type(x).dims;
    const int64_t rows = dims[0], seq = dims[1], d = m_.head_dim;
    Value h = norm("pre_self_attention_layer_norm", x, "ln1");
    const Value q = head(h, text, {rows, seq, m_.heads, d}, "query", "q");
    const Value k = head(h, text, {rows, seq, m_.kv_heads, d}, "key", "k");
    Value v = linear("self_attention/value", h, "v", "value_proj");
    v = b_.reshape(v, {rows, seq, m_.kv_heads, d});
    const Value attended = attend(q, k, v, text, cache);
    at("self_attention/out");
    Value o = b_.reshape(attended, {rows, seq, m_.heads * d});
    o = linear("self_attention/out", o, "o", "out_proj");
    if (m_.post_norms) o = norm("post_self_attention_norm", o, "post1");
    at("residual");
    x = b_.elementwise("add", {x, o});
    h = norm(m_.post_norms ? "pre_ffw_norm" : "post_self_attention_layer_norm", x, "ln2");
    Value y = linear("mlp/wo", m_.gated_mlp ? gated(h) : ungated(h), "down", "mlpwo");
    if (m_.post_norms) y = norm("post_ffw_norm", y, "post2");
    at("residual");
    return b_.elementwise("add", {x, y});
  }

 private:
  void at(const std::string& module, std::string name = "") {
    b_.tag.path = "decoder/layers/" + module;
    b_.tag.name = std::move(name);
  }
  Value norm(const std::string& module, Value x, const std::string& scale) {
    at(module);
    const auto bias = w_.find(scale + "b");
    return normed(b_, m_, x, w_.at(scale), bias == w_.end() ? Value{} : bias->second);
  }
  Value gated(Value h) {
    const Value gate = linear("mlp/wi_0", h, "gate", "mlpwi_0");
    const Value up = linear("mlp/wi_1", h, "up", "mlpwi_1");
    at("mlp/activation");
    return b_.add("glu", {gate, up}, activation());
  }
  Value ungated(Value h) {
    const Value up = linear("mlp/wi", h, "up", "mlpwi");
    at("mlp/activation");
    return b_.add("activation", {up}, activation());
  }
  ops::Attrs activation() const {
    return {{"activation", std::string(m_.activation == config::Activation::silu ? "silu" : "gelu_tanh")}};
  }
  Value attend(Value q, Value k, Value v, const Text& text, Cache* cache) {
    const double dim = static_cast<double>(m_.head_dim);
    ops::Attrs attrs = {{"scale", 1.0 / std::sqrt(m_.query_pre_attn_scalar.value_or(dim))}};
    if (m_.slides(number_) && m_.window < text.length) attrs.set("window", m_.window);
    if (m_.attention_softcap > 0) attrs.set("softcap", m_.attention_softcap);
    if (cache == nullptr) {
      at("self_attention/attention_op", "context");
      attrs.set("causal", true);
      std::vector<Value> inputs = {q, k, v};
      if (text.segments) {
        inputs.insert(inputs.end(), {*text.segments, *text.segments});
        attrs.set("segmented", true);
      }
      return b_.add_all("attention", std::move(inputs), std::move(attrs))[0];
    }
    at("self_attention/cache");
    cache->key = b_.add("cache_write", {cache->key, k, text.start, text.count});
    cache->value = b_.add("cache_write", {cache->value, v, text.start, text.count});
    at("self_attention/attention_op");
    return b_.add("cached_attention", {q, cache->key, cache->value, text.start, text.count},
                  std::move(attrs));
  }
  // The remat name sits on the last node: with a bias, on the sum.
  Value linear(const std::string& module, Value x, const std::string& weight, const std::string& name = "") {
    const auto bias = w_.find(weight + "b");
    at(module, bias == w_.end() ? name : "");
    Value y = b_.matmul(x, w_.at(weight), {2}, {input_major(m_) ? 0 : 1});
    if (bias == w_.end()) return y;
    at(module, name);
    return b_.add("add_bias", {y, bias->second});
  }
  // Query or key: projected, normed where the model does, turned where it has no learnt positions. The remat
  // name sits on the last node that computes.
  Value head(Value h, const Text& text, std::vector<int64_t> dims, const std::string& which,
             const std::string& key) {
    if (m_.learnt_positions)
      return b_.reshape(linear("self_attention/" + which, h, key, which + "_proj"), std::move(dims));
    Value x = linear("self_attention/" + which, h, key);
    at("self_attention/" + which);
    x = b_.reshape(x, std::move(dims));
    if (m_.qk_norm) x = norm("self_attention/" + which + "_norm", x, key + "n");
    const config::RopeFrequencies rope =
        config::rope_frequencies(m_.rope_of(number_), m_.head_dim, m_.max_position, text.length);
    at("self_attention/" + which, which + "_proj");
    return b_.add("rope", {x, text.positions},
                  {{"inv_freq", rope.inv_freq}, {"scaling", rope.scaling}, {"inverse", false}});
  }

  Builder& b_;
  const ModelConfig& m_;
  int64_t number_;
  const Weights& w_;
};

// i32 0, 1, ... along a dim.
Value numbers(ir::Graph& g, std::vector<int64_t> dims, int64_t dim) {
  return Builder(g).add("iota", {}, {{"dtype", std::string("i32")}, {"dims", std::move(dims)}, {"dim", dim}});
}

// With that value's dims and names, by which partition shards it alike.
Value broadcast_like(Builder& b, Value v, Value like, std::vector<int64_t> where) {
  const ir::Type type = b.type(like);
  const Value made = b.broadcast(v, type.dims, std::move(where));
  if (!type.names.empty()) b.graph().set_names(made, type.names);
  return made;
}

// A product mod 2^32, as i32 has it.
double wrapped(int64_t a, int64_t b) {
  return static_cast<double>(
      static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b))));
}
constexpr int64_t kOdd[] = {0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D};  // primes; xxHash's

// The keys of rows for random rounding: sums of a row's ids, each times a number of its place, mod 2^32. They
// know nothing of where the row is, so a row is rounded alike on any mesh and in any micro-step.
Value row_keys(Builder& b, Value ids) {
  b.tag.path = ops::kRoundingKeys;
  const std::vector<int64_t> dims = b.type(ids).dims, row = {dims[1]};
  const auto number = [&](int64_t v) { return b.constant(DType::i32, row, wrapped(v, 1)); };
  const auto mul = [&](Value x, Value y) { return b.elementwise("mul", {x, y}); };
  const auto add = [&](Value x, Value y) { return b.elementwise("add", {x, y}); };
  const Value odd = add(mul(numbers(b.graph(), row, 0), number(2 * kOdd[0])), number(kOdd[1]));
  const Value of_place = mul(odd, mul(odd, odd));
  const Value sums = b.reduce("sum", mul(ids, broadcast_like(b, of_place, ids, {1})), {1});
  return add(sums, b.constant(DType::i32, {dims[0]}, 1));
}

// Those of a layer, number trip * period + first.
void layer_keys(Builder& b, Value keys, Value trip, int64_t period, int64_t first) {
  b.tag.path = ops::kRoundingKeys;
  b.tag.name.clear();
  const Value step = b.elementwise("mul", {trip, b.constant(DType::i32, {}, wrapped(period, kOdd[2]))});
  const Value layer = b.elementwise("add", {step, b.constant(DType::i32, {}, wrapped(first + 1, kOdd[2]))});
  b.elementwise("add", {keys, broadcast_like(b, layer, keys, {})});
}

using Stacks = std::vector<std::pair<const Row*, Value>>;

// A range as a loop: one body, its weights sliced from the stacks; so are its layers' caches, which become
// what the loop has made of them.
Value layers(ir::Graph& g, const ModelConfig& m, const LayerRange& range, const Stacks& stacks, Value x,
             const Text& text, DType dtype, std::vector<Cache>* caches = nullptr) {
  auto body = std::make_shared<ir::Graph>();
  body->name = "layer";
  Builder b(*body);
  Value carry = body->param("x", g.type(x));
  ir::Node scan;
  scan.kind = "scan";
  scan.inputs = {x};
  scan.types = {g.type(x)};
  ir::Scan shape{range.trip, false, 1, 0, 0, 0};
  const auto slice = [&](const std::string& name, int64_t member, Value stack) {
    ir::Type t = g.type(stack);
    t.dims.erase(t.dims.begin());
    if (!t.names.empty()) t.names.erase(t.names.begin());
    scan.inputs.push_back(stack);
    ++shape.sliced;
    return body->param(range.period == 1 ? name : fmt::format("{}.{}", member, name), std::move(t));
  };
  const auto whole = [&](const std::string& name, Value v) {
    scan.inputs.push_back(v);
    ++shape.invariant;
    return body->param(name, g.type(v));
  };
  std::vector<Weights> weights(static_cast<size_t>(range.period));
  std::vector<std::pair<const Row*, Value>> slices;
  for (const auto& [row, stack] : stacks) slices.emplace_back(row, slice(row->key, row->member, stack));
  std::vector<Cache> inner_caches;
  for (int64_t member = 0; caches != nullptr && member < range.period; ++member) {
    const Cache& c = (*caches)[static_cast<size_t>(member)];
    const Value key = slice("cache.key", member, c.key);
    inner_caches.push_back({key, slice("cache.value", member, c.value)});
  }
  std::optional<Value> trip;
  if (text.rounding_keys) trip = slice("trip", 0, numbers(g, {range.trip}, 0));
  Text inner_text{whole("positions", text.positions), text.length, {}, {}, {}, {}};
  if (text.segments) inner_text.segments = whole("segments", *text.segments);
  if (trip) inner_text.rounding_keys = whole("rounding_keys", *text.rounding_keys);
  if (caches != nullptr) {
    inner_text.start = whole("start", text.start);
    inner_text.count = whole("count", text.count);
  }
  const auto at_member = [&](int64_t member) {
    b.tag.layer_begin = static_cast<int32_t>(range.first + member);
    b.tag.layer_end = static_cast<int32_t>(range.first + member + range.period * range.trip);
  };
  for (const auto& [row, value] : slices) {
    at_member(row->member);
    b.tag.path = "decoder/layers/" + row->key;
    weights[static_cast<size_t>(row->member)][row->key] = operand(b, *row, value, dtype);
  }
  for (int64_t member = 0; member < range.period; ++member) {
    const auto i = static_cast<size_t>(member);
    at_member(member);
    if (trip) layer_keys(b, *inner_text.rounding_keys, *trip, range.period, range.first + member);
    carry = Layer(b, m, range.first + member, weights[i])(carry, inner_text,
                                                          caches != nullptr ? &inner_caches[i] : nullptr);
  }
  body->output("x", carry);
  for (size_t i = 0; i < inner_caches.size(); ++i) {
    for (const auto& [name, value, stack] :
         {std::tuple("cache.key", inner_caches[i].key, (*caches)[i].key),
          std::tuple("cache.value", inner_caches[i].value, (*caches)[i].value)}) {
      body->output(range.period == 1 ? name : fmt::format("{}.{}", i, name), value);
      scan.types.push_back(g.type(stack));
      ++shape.stacked;
    }
  }
  scan.tag.path = "decoder/layers";
  scan.tag.layer_begin = static_cast<int32_t>(range.first);
  scan.tag.layer_end = static_cast<int32_t>(range.first + range.period * range.trip);
  scan.attrs = ir::scan_attrs(shape);
  scan.body = std::move(body);
  const int32_t id = g.add(std::move(scan));
  for (int32_t i = 0; caches != nullptr && i < static_cast<int32_t>(caches->size()); ++i)
    (*caches)[static_cast<size_t>(i)] = {{id, 1 + 2 * i}, {id, 2 + 2 * i}};
  return {id, 0};
}

// The graph's params for the parameters. A norm that adds one keeps its f32 (operand()).
struct Params {
  std::vector<Row> rows;
  std::vector<LayerRange> ranges;
  std::vector<Stacks> stacks;  // by range
  std::map<std::string, Value> top;
  std::map<std::string, const Row*> top_rows;

  Params(ir::Graph& g, const ModelConfig& m, DType dtype)
      : rows(table(m)), ranges(layer_ranges(m)), stacks(ranges.size()) {
    for (const Row& row : rows) {
      const Value v = g.param(row.parameter.pattern,
                              {row.adds_one ? DType::f32 : dtype, row.parameter.dims, row.parameter.names});
      if (row.slot == Slot::layer) {
        stacks[row.range].emplace_back(&row, v);
      } else {
        top[row.key] = v;
        top_rows[row.key] = &row;
      }
    }
  }
  Params(const Params&) = delete;
};

Value times(Builder& b, Value v, double c) {
  const ir::Type t = b.type(v);
  return b.elementwise("mul", {v, b.constant(t.dtype, t.dims, c)});
}

// table: the operand that the head may share. Learnt positions are rows of a table of their own.
Value embedding(Builder& b, const ModelConfig& m, const Params& params, Value table, Value ids,
                Value positions, DType dtype) {
  b.tag.path = "token_embedder";
  const Value x = b.add("embed", {table, ids});
  if (m.scaled_embeddings) return times(b, x, std::sqrt(static_cast<double>(m.hidden)));
  if (!m.learnt_positions) return x;
  b.tag.path = "position_embedder";
  const Value places = b.add("embed", {b.convert(params.top.at("position"), dtype), positions});
  return b.elementwise("add", {x, places});
}

Value last_norm(Builder& b, const ModelConfig& m, const Params& params, Value x, DType dtype) {
  b.tag.path = "decoder/decoder_norm";
  const Value scale = operand(b, *params.top_rows.at("norm"), params.top.at("norm"), dtype);
  const auto bias = params.top.find("normb");
  return normed(b, m, x, scale, bias == params.top.end() ? Value{} : b.convert(bias->second, dtype));
}

Value soft_cap(Builder& b, const ModelConfig& m, Value logits) {
  if (m.logit_softcap <= 0) return logits;
  return times(b, b.elementwise("tanh", {times(b, logits, 1 / m.logit_softcap)}), m.logit_softcap);
}

}  // namespace

ir::Graph forward(const ModelConfig& m, const Shape& shape, Head head) {
  ir::Graph g;
  g.name = m.family;
  Builder b(g);
  const Params params(g, m, DType::f32);
  const auto batch_param = [&](const char* name, const char* length) {
    return g.param(name, {DType::i32, {shape.batch, shape.sequence}, {"activation_batch", length}});
  };
  // What attention reads it reads of all tokens.
  constexpr const char *kTokens = "activation_length", *kAttended = "activation_attn_length";
  const Value ids = batch_param("input_ids", kTokens), labels = batch_param("labels", kTokens),
              positions = batch_param("positions", m.learnt_positions ? kTokens : kAttended);

  b.tag.path = "token_embedder";
  const Value table_operand = b.convert(params.top.at("embed"), shape.dtype);
  Value x = embedding(b, m, params, table_operand, ids, positions, shape.dtype);
  Text text{positions, shape.sequence, {}, {}, {}, {}};
  if (shape.rounding_keys) text.rounding_keys = row_keys(b, ids);
  if (shape.segmented) text.segments = batch_param("segments", kAttended);
  for (size_t r = 0; r < params.ranges.size(); ++r)
    x = layers(g, m, params.ranges[r], params.stacks[r], x, text, shape.dtype);

  x = last_norm(b, m, params, x, shape.dtype);
  b.tag.path = "decoder/logits_dense";
  const Value head_operand = m.tie_embeddings ? table_operand : b.convert(params.top.at("head"), shape.dtype);
  const bool whole = head == Head::logits || shape.loss_tile == 0 || m.logit_softcap > 0;
  const Value logits = whole ? soft_cap(b, m, b.matmul(x, head_operand, {2}, {1})) : Value{};
  b.tag.path = "loss";
  ir::Attrs attrs;
  const bool has_z = shape.z_loss > 0 && head != Head::loss;
  if (has_z) attrs.set("z_loss", shape.z_loss);
  if (!whole) {
    attrs.set("tile", shape.loss_tile);
    attrs.set("gradients", head == Head::gradients);
  }
  const auto loss = whole ? b.add_all("cross_entropy", {logits, labels}, attrs)
                          : b.add_all("linear_cross_entropy", {x, head_operand, labels}, attrs);
  g.output("loss_sum", loss[0]);
  g.output("tokens", loss[1]);
  if (has_z) g.output("z_loss_sum", loss.back());
  if (head == Head::logits) g.output("logits", logits);
  return g;
}

ir::Graph generation_step(const ModelConfig& m, const GenerationShape& shape) {
  const int64_t rows = shape.rows, tokens = shape.tokens;
  ir::Graph g;
  g.name = m.family + "_generation";
  Builder b(g);
  const Params params(g, m, shape.dtype);
  const auto first_cache = static_cast<int32_t>(g.params().size());
  std::vector<std::vector<Cache>> caches;
  for (const LayerRange& range : params.ranges) {
    caches.emplace_back();
    for (int64_t member = 0; member < range.period; ++member) {
      const std::string layer =
          params.ranges.size() == 1 && range.period == 1 ? "" : fmt::format(".{}", range.first + member);
      const ir::Type type{shape.dtype,
                          {range.trip, rows, shape.capacity, m.kv_heads, m.head_dim},
                          {"layers", "activation_batch", "cache_sequence", "kv_heads", "head_dim"}};
      const Value key = g.param("cache:key" + layer, type);
      caches.back().push_back({key, g.param("cache:value" + layer, type)});
    }
  }
  const Value ids =
      g.param("input_ids", {DType::i32, {rows, tokens}, {"activation_batch", "activation_length"}});
  const ir::Type per_row{DType::i32, {rows}, {"activation_batch"}};
  const Value start = g.param("start", per_row), count = g.param("count", per_row);

  b.tag.path = "positions";
  const auto indices = [&](std::vector<int64_t> dims, int64_t dim) {
    return b.add("iota", {}, {{"dtype", std::string("i32")}, {"dims", std::move(dims)}, {"dim", dim}});
  };
  const std::vector<int64_t> grid = {rows, tokens};
  Value positions = b.elementwise("add", {b.broadcast(start, grid, {0}), indices(grid, 1)});
  if (m.learnt_positions) {  // padding may stand past the last one
    const auto last = static_cast<double>(m.max_position - 1);
    positions = b.elementwise("min", {positions, b.constant(DType::i32, grid, last)});
  }

  Value x = embedding(b, m, params, params.top.at("embed"), ids, positions, shape.dtype);
  const Text text{positions, shape.capacity, start, count, {}, {}};
  for (size_t r = 0; r < params.ranges.size(); ++r)
    x = layers(g, m, params.ranges[r], params.stacks[r], x, text, shape.dtype, &caches[r]);

  // The last token of each row, or its first where the row has none: row r's is number count - 1 of its
  // `tokens`.
  b.tag.path = "decoder/last_token";
  const auto number = [&](int64_t v) { return b.constant(DType::i32, {rows}, static_cast<double>(v)); };
  const Value in_row = b.elementwise("max", {b.elementwise("sub", {count, number(1)}), number(0)});
  const Value last =
      b.elementwise("add", {b.elementwise("mul", {indices({rows}, 0), number(tokens)}), in_row});
  x = b.add("embed", {b.reshape(x, {rows * tokens, m.hidden}), last});
  x = last_norm(b, m, params, x, shape.dtype);
  b.tag.path = "decoder/logits_dense";
  const std::vector<int64_t> none;
  const Value logits = b.add("matmul", {x, params.top.at(m.tie_embeddings ? "embed" : "head")},
                             {{"contract_a", std::vector<int64_t>{1}},
                              {"contract_b", std::vector<int64_t>{1}},
                              {"batch_a", none},
                              {"batch_b", none},
                              {"dtype", std::string("f32")}});
  g.output("logits", soft_cap(b, m, logits));
  int32_t param = first_cache;
  for (const auto& range : caches) {
    for (const Cache& c : range) {
      for (const Value v : {c.key, c.value}) {
        g.output(g.param_name(param), v, param);
        ++param;
      }
    }
  }
  return g;
}

int64_t loss_tile(int64_t tokens, int64_t tiles) {
  constexpr int64_t kMostTiles = 8, kLeastTokens = 256, kUnit = 8;  // unit: the op's, of its sum of losses
  if (tiles == 1) return 0;
  const int64_t even = (tokens + (tiles == 0 ? kMostTiles : tiles) - 1) / (tiles == 0 ? kMostTiles : tiles);
  return (std::max(even, tiles == 0 ? kLeastTokens : 1) + kUnit - 1) / kUnit * kUnit;
}

double training_flops(const ModelConfig& m, int64_t rows, int64_t sequence) {
  const double tokens = static_cast<double>(rows) * static_cast<double>(sequence);
  const double e = static_cast<double>(m.hidden), hd = static_cast<double>(m.head_dim);
  const double qkvo = 2 * e * (2 * static_cast<double>(m.heads) + 2 * static_cast<double>(m.kv_heads)) * hd;
  const double mlp = (m.gated_mlp ? 3 : 2) * 2 * e * static_cast<double>(m.mlp);
  const double head = 2 * e * static_cast<double>(m.vocab_size);
  // Keys that a query sees, on average. A sliding layer's are fewer: counted as if they were all, a long
  // sequence would come out as more FLOPs than the machine has.
  const auto keys = [sequence](int64_t window) {
    const double s = static_cast<double>(sequence), w = std::min(static_cast<double>(window), s);
    return w - w * w / (2 * s);
  };
  double all_keys = 0;
  for (int64_t layer = 0; layer < m.layers; ++layer) all_keys += keys(m.slides(layer) ? m.window : sequence);
  const double attention = 4 * all_keys * static_cast<double>(m.heads) * hd;
  return 3 * tokens * (static_cast<double>(m.layers) * (qkvo + mlp) + attention + head);
}

}  // namespace lignum::models
