#include "config/hf_gpt2.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "config/hf_fields.h"

namespace lignum::config {

void read_gpt2(Fields& fields, ModelConfig& m) {
  m.gated_mlp = false;
  m.norm = Norm::layer;
  m.learnt_positions = m.attention_bias = m.mlp_bias = true;
  m.activation = Activation::gelu_tanh;
  m.vocab_size = fields.integer("vocab_size", 50257);
  m.hidden = fields.integer("n_embd", 768);
  m.layers = fields.integer("n_layer", 12);
  m.heads = m.kv_heads = fields.integer("n_head", 12);
  if (!fields.status().ok()) return;
  if (m.heads < 1 || m.hidden < 1 || m.hidden % m.heads != 0)
    return fields.fail(
        user_error("{}: n_embd={} is not a multiple of n_head={}", fields.what(), m.hidden, m.heads));
  m.head_dim = m.hidden / m.heads;
  m.mlp = fields.integer("n_inner", 4 * m.hidden);
  m.max_position = fields.integer("n_positions", 1024);
  fields.only("n_ctx", m.max_position);  // beside it in early files
  m.norm_eps = fields.real("layer_norm_epsilon", 1e-5);
  m.tie_embeddings = fields.boolean("tie_word_embeddings", true);
  m.initializer_range = fields.real("initializer_range", 0.02);
  if (fields.has("activation_function") && fields.get("activation_function") != "gelu_new")
    fields.only("activation_function", "gelu_pytorch_tanh");  // the same function
  for (const char* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    const double p = fields.real(name, 0);
    if (!(p >= 0 && p < 1)) fields.refuse(name, "at least 0 and less than 1");
  }
  fields.only("scale_attn_weights", true);
  fields.only("scale_attn_by_inverse_layer_idx", false);
  fields.only("reorder_and_upcast_attn", false);
  fields.only("add_cross_attention", false);
  // Of a head that chooses among texts, which the language model lacks.
  for (const char* name : {"summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                           "summary_type", "summary_use_proj"})
    if (fields.has(name)) fields.get(name);
}

void write_gpt2(const ModelConfig& m, nlohmann::ordered_json& json) {
  json["n_embd"] = m.hidden;
  json["n_inner"] = m.mlp;
  json["n_layer"] = m.layers;
  json["n_head"] = m.heads;
  json["n_positions"] = m.max_position;
  json["n_ctx"] = m.max_position;
  json["layer_norm_epsilon"] = m.norm_eps;
  json["activation_function"] = "gelu_new";
  for (const char* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json[name] = 0.0;
}

std::string_view hf_field(const ModelConfig& m, std::string_view common) {
  if (m.family != "gpt2") return common;
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"hidden_size", "n_embd"},
      {"num_hidden_layers", "n_layer"},
      {"num_attention_heads", "n_head"},
      {"num_key_value_heads", "n_head"},
      {"intermediate_size", "n_inner"},
      {"max_position_embeddings", "n_positions"},
      {"rms_norm_eps", "layer_norm_epsilon"}};
  for (const auto& [word, own] : kWords)
    if (word == common) return own;
  return common;
}

}  // namespace lignum::config
