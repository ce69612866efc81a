#include <algorithm>
#include <cmath>

#include "models/model.h"
#include "ops/op.h"

namespace lignum::models {
namespace {

using config::ModelConfig;
using ir::Value;
using ops::Builder;

enum class Slot { embed, norm, head, layer };
struct Row {
  Parameter parameter;
  Slot slot;
  std::string key;  // short name inside the builder
};

std::vector<Row> table(const ModelConfig& m) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, e = m.hidden, n = m.layers;
  std::vector<Row> rows;
  const auto layer = [&](std::string key, const std::string& file, std::vector<int64_t> dims,
                         std::vector<std::string> names, Parameter::Init init) {
    dims.insert(dims.begin(), n);
    names.insert(names.begin(), "layers");
    rows.push_back({{"model.layers.{}." + file, std::move(dims), std::move(names), true, init},
                    Slot::layer,
                    std::move(key)});
  };
  using Init = Parameter::Init;
  rows.push_back({{"model.embed_tokens.weight", {m.vocab_size, e}, {"vocab", "embed"}, false, Init::normal},
                  Slot::embed,
                  "embed"});
  layer("ln1", "input_layernorm.weight", {e}, {"norm"}, Init::ones);
  layer("q", "self_attn.q_proj.weight", {q, e}, {"q_heads", "embed"}, Init::normal);
  layer("k", "self_attn.k_proj.weight", {kv, e}, {"kv_heads", "embed"}, Init::normal);
  layer("v", "self_attn.v_proj.weight", {kv, e}, {"kv_heads", "embed"}, Init::normal);
  layer("o", "self_attn.o_proj.weight", {e, q}, {"embed", "q_heads"}, Init::normal);
  if (m.attention_bias) {
    layer("qb", "self_attn.q_proj.bias", {q}, {"q_heads"}, Init::zeros);
    layer("kb", "self_attn.k_proj.bias", {kv}, {"kv_heads"}, Init::zeros);
    layer("vb", "self_attn.v_proj.bias", {kv}, {"kv_heads"}, Init::zeros);
    layer("ob", "self_attn.o_proj.bias", {e}, {"norm"}, Init::zeros);
  }
  layer("ln2", "post_attention_layernorm.weight", {e}, {"norm"}, Init::ones);
  layer("gate", "mlp.gate_proj.weight", {m.mlp, e}, {"mlp", "embed"}, Init::normal);
  layer("up", "mlp.up_proj.weight", {m.mlp, e}, {"mlp", "embed"}, Init::normal);
  layer("down", "mlp.down_proj.weight", {e, m.mlp}, {"embed", "mlp"}, Init::normal);
  if (m.mlp_bias) {
    layer("gateb", "mlp.gate_proj.bias", {m.mlp}, {"mlp"}, Init::zeros);
    layer("upb", "mlp.up_proj.bias", {m.mlp}, {"mlp"}, Init::zeros);
    layer("downb", "mlp.down_proj.bias", {e}, {"norm"}, Init::zeros);
  }
  rows.push_back({{"model.norm.weight", {e}, {"norm"}, false, Init::ones}, Slot::norm, "norm"});
  if (!m.tie_embeddings)
    rows.push_back(
        {{"lm_head.weight", {m.vocab_size, e}, {"vocab", "embed"}, false, Init::normal}, Slot::head, "head"});
  return rows;
}

// One decoder layer: x -> x, with the layer's weights by key, already of the activations' dtype.
class Layer {
 public:
  Layer(Builder& b, const ModelConfig& m, const std::map<std::string, Value>& weights)
      : b_(b), m_(m), w_(weights) {}

  Value operator()(Value x, Value positions) {
    const auto& dims = b_.type(x).dims;
    const int64_t rows = dims[0], seq = dims[1], d = m_.head_dim;
    Value h = norm("pre_self_attention_layer_norm", x, "ln1");
    Value q = rope(linear("self_attention/query", h, "q"), positions, {rows, seq, m_.heads, d}, "query");
    Value k = rope(linear("self_attention/key", h, "k"), positions, {rows, seq, m_.kv_heads, d}, "key");
    Value v = linear("self_attention/value", h, "v", "value_proj");
    v = b_.reshape(v, {rows, seq, m_.kv_heads, d});
    at("self_attention/attention_op", "context");
    const auto attended = b_.add_all("attention", {q, k, v},
                                     {{"scale", 1.0 / std::sqrt(static_cast<double>(d))}, {"causal", true}});
    at("self_attention/out");
    Value o = b_.reshape(attended[0], {rows, seq, m_.heads * d});
    o = linear("self_attention/out", o, "o", "out_proj");
    at("residual");
    x = b_.elementwise("add", {x, o});
    h = norm("post_self_attention_layer_norm", x, "ln2");
    const Value gate = linear("mlp/wi_0", h, "gate", "mlpwi_0");
    const Value up = linear("mlp/wi_1", h, "up", "mlpwi_1");
    at("mlp/activation");
    Value y = b_.add("glu", {gate, up}, {{"activation", std::string("silu")}});
    y = linear("mlp/wo", y, "down", "mlpwo");
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
    return b_.add_all("rms_norm", {x, w_.at(scale)}, {{"epsilon", m_.norm_eps}})[0];
  }
  // The remat name sits on the last node: with a bias, on the sum.
  Value linear(const std::string& module, Value x, const std::string& weight, const std::string& name = "") {
    const auto bias = w_.find(weight + "b");
    at(module, bias == w_.end() ? name : "");
    Value y = b_.matmul(x, w_.at(weight), {2}, {1});
    if (bias == w_.end()) return y;
    at(module, name);
    return b_.add("add_bias", {y, bias->second});
  }
  Value rope(Value x, Value positions, std::vector<int64_t> dims, const std::string& which) {
    at("self_attention/" + which);
    x = b_.reshape(x, std::move(dims));
    at("self_attention/" + which, which + "_proj");
    return b_.add("rope", {x, positions},
                  {{"inv_freq", config::rope_inv_freq(m_)},
                   {"scaling", config::rope_attention_scaling(m_)},
                   {"inverse", false}});
  }

  Builder& b_;
  const ModelConfig& m_;
  const std::map<std::string, Value>& w_;
};

}  // namespace

std::string Parameter::file_name(int64_t layer) const {
  const size_t at = pattern.find("{}");
  if (at == std::string::npos) return pattern;
  return pattern.substr(0, at) + std::to_string(layer) + pattern.substr(at + 2);
}

std::vector<Parameter> parameters(const ModelConfig& model) {
  std::vector<Parameter> out;
  for (Row& row : table(model)) out.push_back(std::move(row.parameter));
  return out;
}

ir::Graph forward(const ModelConfig& m, const Shape& shape, Head head) {
  const std::vector<Row> rows = table(m);
  ir::Graph g;
  g.name = m.family;
  Builder b(g);
  std::map<std::string, Value> top;
  std::vector<std::string> layer_keys;
  std::vector<Value> stacked;
  for (const Row& row : rows) {
    const Value v = g.param(row.parameter.pattern, {DType::f32, row.parameter.dims, row.parameter.names});
    if (row.slot == Slot::layer) {
      layer_keys.push_back(row.key);
      stacked.push_back(v);
    } else {
      top[row.key] = v;
    }
  }
  const auto batch_param = [&](const char* name) {
    return g.param(name,
                   {DType::i32, {shape.batch, shape.sequence}, {"activation_batch", "activation_length"}});
  };
  const Value ids = batch_param("input_ids"), labels = batch_param("labels"),
              positions = batch_param("positions");

  b.tag.path = "token_embedder";
  const Value table_operand = b.convert(top.at("embed"), shape.dtype);
  Value x = b.add("embed", {table_operand, ids});

  // The layers: one body, its weights sliced from the stacks.
  auto body = std::make_shared<ir::Graph>();
  body->name = "layer";
  Builder inner(*body);
  inner.tag.layer_end = static_cast<int32_t>(m.layers);
  const Value carry = body->param("x", g.type(x));
  std::map<std::string, Value> weights;
  for (size_t i = 0; i < stacked.size(); ++i) {
    ir::Type t = g.type(stacked[i]);
    t.dims.erase(t.dims.begin());
    t.names.erase(t.names.begin());
    weights[layer_keys[i]] = body->param(layer_keys[i], std::move(t));
  }
  const Value inner_positions = body->param("positions", g.type(positions));
  for (auto& [key, value] : weights) {
    inner.tag.path = "decoder/layers/" + key;
    value = inner.convert(value, shape.dtype);
  }
  body->output("x", Layer(inner, m, weights)(carry, inner_positions));

  ir::Node scan;
  scan.kind = "scan";
  scan.inputs = {x};
  scan.inputs.insert(scan.inputs.end(), stacked.begin(), stacked.end());
  scan.inputs.push_back(positions);
  scan.types = {g.type(x)};
  scan.tag.path = "decoder/layers";
  scan.tag.layer_end = static_cast<int32_t>(m.layers);
  scan.attrs = ir::scan_attrs({m.layers, false, 1, static_cast<int64_t>(stacked.size()), 1, 0});
  scan.body = std::move(body);
  x = {g.add(std::move(scan)), 0};

  b.tag.path = "decoder/decoder_norm";
  x = b.add_all("rms_norm", {x, b.convert(top.at("norm"), shape.dtype)}, {{"epsilon", m.norm_eps}})[0];
  b.tag.path = "decoder/logits_dense";
  const Value head_operand = m.tie_embeddings ? table_operand : b.convert(top.at("head"), shape.dtype);
  const bool whole = head == Head::logits || shape.loss_tile == 0;
  const Value logits = whole ? b.matmul(x, head_operand, {2}, {1}) : Value{};
  b.tag.path = "loss";
  const auto loss = whole ? b.add_all("cross_entropy", {logits, labels})
                          : b.add_all("linear_cross_entropy", {x, head_operand, labels},
                                      {{"tile", shape.loss_tile}, {"gradients", head == Head::gradients}});
  g.output("loss_sum", loss[0]);
  g.output("tokens", loss[1]);
  if (head == Head::logits) g.output("logits", logits);
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
  const double mlp = 3 * 2 * e * static_cast<double>(m.mlp);
  const double attention = 4 * static_cast<double>(sequence) * static_cast<double>(m.heads) * hd / 2;
  const double head = 2 * e * static_cast<double>(m.vocab_size);
  return 3 * tokens * (static_cast<double>(m.layers) * (qkvo + mlp + attention) + head);
}

}  // namespace lignum::models
