// Hugging Face's config.json, read and written.
#include <array>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "config/hf_fields.h"
#include "config/hf_gpt2.h"
#include "config/hf_rope.h"
#include "config/model_config.h"

namespace lignum::config {
namespace {

using Json = nlohmann::json;

// Fields without effect on what the model computes.
constexpr std::array kHarmless = {"_attn_implementation",
                                  "cache_implementation",
                                  "_name_or_path",
                                  "bos_token_id",
                                  "dtype",
                                  "eos_token_id",
                                  "finetuning_task",
                                  "id2label",
                                  "is_llama_config",
                                  "label2id",
                                  "name_or_path",
                                  "output_attentions",
                                  "pad_token_id",
                                  "output_hidden_states",
                                  "problem_type",
                                  "return_dict",
                                  "task_specific_params",
                                  "torch_dtype",
                                  "transformers_version",
                                  "unsloth_version",
                                  "use_cache",
                                  "use_return_dict"};

// A family's words, and the values of fields that its file leaves out: those of transformers' configuration
// classes (5.x).
struct Family {
  std::string_view name, model_type, architecture;
  int64_t kv_heads;  // 0: as many as heads
  int64_t head_dim;  // 0: hidden / heads
  int64_t max_position;
  bool tied;
  std::optional<int64_t> window;
  RopeDefaults rope;
};

constexpr int64_t kMistralWindow = 4096;

const std::array<Family, 6>& families() {
  static const std::array<Family, 6> kFamilies = {{
      {"llama", "llama", "LlamaForCausalLM", 0, 0, 2048, false, {}, {}},
      {"mistral", "mistral", "MistralForCausalLM", 8, 0, 131072, false, kMistralWindow, {}},
      {"qwen3", "qwen3", "Qwen3ForCausalLM", 32, 128, 32768, false, 4096, {}},
      {"gemma2", "gemma2", "Gemma2ForCausalLM", 4, 256, 8192, true, 4096, {}},
      {"gemma3", "gemma3_text", "Gemma3ForCausalLM", 4, 256, 131072, true, 4096, {1e6, 1e4}},
      {"gpt2", "gpt2", "GPT2LMHeadModel", 0, 0, 1024, true, {}, {}},
  }};
  return kFamilies;
}

const Family& family_of(const ModelConfig& m) {
  for (const Family& f : families())
    if (f.name == m.family) return f;
  LIGNUM_CHECK(false, "family {}", m.family);
  return families()[0];
}

// By model_type and architectures, which must agree.
Result<const Family*> read_family(Fields& fields) {
  if (!fields.has("model_type") && !fields.has("architectures")) {
    return user_error("{}: neither model_type nor architectures says what the model is", fields.what());
  }
  const Family* family = nullptr;
  std::string known;
  for (const Family& f : families()) {
    known += (known.empty() ? "" : ", ") + Json(f.model_type).dump();
    if (fields.has("model_type") ? fields.get("model_type") == f.model_type
                                 : fields.get("architectures") == Json::array({f.architecture}))
      family = &f;
  }
  if (family == nullptr) {
    const char* field = fields.has("model_type") ? "model_type" : "architectures";
    fields.refuse(field, fields.has("model_type") ? "one of " + known : "those of one of " + known);
    return fields.status();
  }
  fields.only("architectures", Json::array({family->architecture}));
  LIGNUM_RETURN_IF_ERROR(fields.status());
  return family;
}

std::string_view activation_name(Activation a) {
  return a == Activation::silu ? "silu" : "gelu_pytorch_tanh";
}

// Which layers slide: `layer_types`, or what a family has in its place.
std::vector<bool> read_sliding(Fields& fields, const Family& family, const ModelConfig& m) {
  std::vector<bool> sliding;
  if (family.name == "llama") return {};
  if (m.layers < 1 || m.layers > kMaxLayers) {
    fields.refuse("num_hidden_layers", fmt::format("in 1..{}", kMaxLayers));
    return {};
  }
  const auto layers = static_cast<size_t>(m.layers);
  if (family.name == "mistral") {
    if (m.window > 0) sliding.assign(layers, true);
    return sliding;
  }
  const bool used = family.name != "qwen3" || fields.boolean("use_sliding_window", false);
  const int64_t first = family.name == "qwen3" ? fields.integer("max_window_layers", 28) : 0;
  // One full layer after period - 1 sliding ones.
  int64_t period = family.name == "gemma2" ? 2 : 6;
  for (const char* name : {"_sliding_window_pattern", "sliding_window_pattern"})
    if (family.name == "gemma3" && fields.has(name)) period = fields.integer(name, period);
  if (period < 1) {
    fields.refuse(fields.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern",
                  "positive");
    return {};
  }
  for (int64_t i = 0; i < m.layers; ++i)
    sliding.push_back(used && (family.name == "qwen3" ? i >= first : (i + 1) % period != 0));
  if (fields.has("layer_types")) {
    const Json& types = fields.get("layer_types");
    const auto bad = [&] {
      fields.refuse("layer_types",
                    fmt::format("a list of num_hidden_layers={} words, each \"full_attention\" or "
                                "\"sliding_attention\"",
                                m.layers));
      return std::vector<bool>();
    };
    if (!types.is_array() || types.size() != layers) return bad();
    for (size_t i = 0; i < layers; ++i) {
      if (types[i] != "full_attention" && types[i] != "sliding_attention") return bad();
      sliding[i] = types[i] == "sliding_attention";
    }
  }
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) sliding.clear();
  return sliding;
}

void read_gemma(Fields& fields, const Family& family, ModelConfig& m) {
  const bool second = family.name == "gemma2";
  m.post_norms = m.norm_plus_one = m.scaled_embeddings = true;
  m.qk_norm = !second;
  m.query_pre_attn_scalar = fields.real("query_pre_attn_scalar", 256);
  m.attention_softcap = fields.nullable_real("attn_logit_softcapping", second ? 50.0 : 0.0).value_or(0);
  m.logit_softcap = fields.nullable_real("final_logit_softcapping", second ? 30.0 : 0.0).value_or(0);
  m.activation = Activation::gelu_tanh;
  fields.only("hidden_activation", "gelu_pytorch_tanh");
  fields.only("hidden_act", "gelu_pytorch_tanh");  // beside it in early files
  fields.only("use_bidirectional_attention", false);
}

std::vector<int64_t> read_token_ids(Fields& fields, const char* name) {
  std::vector<int64_t> ids;
  if (!fields.has(name)) return ids;
  const Json& value = fields.get(name);
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > 0x1p31) {
      fields.refuse(name, "a token's number, or a list of them");
      return {};
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

nlohmann::ordered_json cap_json(double cap) {
  return cap > 0 ? nlohmann::ordered_json(cap) : nlohmann::ordered_json();
}

void write_sliding(const Family& family, const ModelConfig& m, nlohmann::ordered_json& json) {
  if (!family.window) return;
  json["sliding_window"] = m.window > 0 ? nlohmann::ordered_json(m.window) : nlohmann::ordered_json();
  if (family.name == "mistral") return;  // every layer slides, or none
  if (family.name == "qwen3") json["use_sliding_window"] = m.window > 0;
  json["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < m.layers; ++i)
    json["layer_types"].push_back(m.slides(i) ? "sliding_attention" : "full_attention");
}

}  // namespace

namespace {

void read_llama_like(Fields& fields, const Family& family, ModelConfig& m) {
  m.vocab_size = fields.integer("vocab_size", {});
  m.hidden = fields.integer("hidden_size", {});
  m.layers = fields.integer("num_hidden_layers", {});
  m.heads = fields.integer("num_attention_heads", {});
  m.mlp = fields.integer("intermediate_size", {});
  if (!fields.status().ok()) return;
  m.kv_heads = fields.integer("num_key_value_heads", family.kv_heads > 0 ? family.kv_heads : m.heads);
  if (fields.has("head_dim") || family.head_dim > 0) {
    m.head_dim = fields.integer("head_dim", family.head_dim);
  } else {
    if (m.heads < 1 || m.hidden % m.heads != 0) {
      return fields.fail(user_error(
          "{}: hidden_size={} is not a multiple of num_attention_heads={}, and head_dim is not given",
          fields.what(), m.hidden, m.heads));
    }
    m.head_dim = m.hidden / m.heads;
    fields.integer("head_dim", m.head_dim);
  }
  m.norm_eps = fields.real("rms_norm_eps", 1e-6);
  m.tie_embeddings = fields.boolean("tie_word_embeddings", family.tied);
  m.attention_bias = fields.boolean("attention_bias", false);
  if (family.name == "llama") m.mlp_bias = fields.boolean("mlp_bias", false);
  if (family.name == "qwen3") m.qk_norm = true;
  m.max_position = fields.integer("max_position_embeddings", family.max_position);
  m.initializer_range = fields.real("initializer_range", 0.02);
  if (family.name.starts_with("gemma")) {
    read_gemma(fields, family, m);
  } else {
    fields.only("hidden_act", "silu");
  }
  if (family.window) m.window = fields.nullable_integer("sliding_window", family.window).value_or(0);
  m.sliding = read_sliding(fields, family, m);
  if (m.sliding.empty()) m.window = 0;  // without effect
  Result<Ropes> ropes = read_ropes(fields, family.rope, m.max_position);
  if (!ropes.ok()) return fields.fail(ropes.status());
  m.rope = std::move(ropes->full);
  m.local_rope = std::move(ropes->local);
  fields.only("attention_dropout", 0);
  fields.only("pretraining_tp", 1);
  fields.only("partial_rotary_factor", 1);
  fields.only("rope_interleaved", false);
}

void write_llama_like(const Family& family, const ModelConfig& m, nlohmann::ordered_json& json) {
  json["hidden_size"] = m.hidden;
  json["intermediate_size"] = m.mlp;
  json["num_hidden_layers"] = m.layers;
  json["num_attention_heads"] = m.heads;
  json["num_key_value_heads"] = m.kv_heads;
  json["head_dim"] = m.head_dim;
  json["rms_norm_eps"] = m.norm_eps;
  json["attention_dropout"] = 0.0;
  if (family.name != "mistral") json["attention_bias"] = m.attention_bias;
  if (family.name == "llama") json["mlp_bias"] = m.mlp_bias;
  json["max_position_embeddings"] = m.max_position;
  json[family.name.starts_with("gemma") ? "hidden_activation" : "hidden_act"] = activation_name(m.activation);
  write_sliding(family, m, json);
  if (family.name.starts_with("gemma")) {
    json["query_pre_attn_scalar"] = *m.query_pre_attn_scalar;
    json["attn_logit_softcapping"] = cap_json(m.attention_softcap);
    json["final_logit_softcapping"] = cap_json(m.logit_softcap);
  }
  write_ropes(m, json);
}

}  // namespace

Result<ModelConfig> model_from_hf_json(std::string_view text, const std::string& what) {
  LIGNUM_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  if (!json.is_object()) return user_error("{}: expected an object", what);
  Fields fields(json, what);
  LIGNUM_ASSIGN_OR_RETURN(const Family* const family,
                          read_family(fields));  // another one's fields would confuse

  ModelConfig m;
  m.family = family->name;
  if (family->name == "gpt2") {
    read_gpt2(fields, m);
  } else {
    read_llama_like(fields, *family, m);
  }
  m.eos_token_ids = read_token_ids(fields, "eos_token_id");
  const std::vector<int64_t> bos = read_token_ids(fields, "bos_token_id");
  if (bos.size() > 1) fields.refuse("bos_token_id", "one token's number");
  if (bos.size() == 1) m.bos_token_id = bos[0];
  fields.only("is_encoder_decoder", false);
  fields.refuse_unread(kHarmless);
  LIGNUM_RETURN_IF_ERROR(fields.status());
  LIGNUM_RETURN_IF_ERROR(validate(m, what));
  return m;
}

Result<ModelConfig> model_from_folder(const std::string& folder) {
  const std::string path = join_path(folder, "config.json");
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, read_text(path, uint64_t{1} << 20));
  return model_from_hf_json(text, path);
}

std::string model_to_hf_json(const ModelConfig& m, std::string_view dtype) {
  nlohmann::ordered_json json;
  const Family& family = family_of(m);
  json["architectures"] = {family.architecture};
  json["model_type"] = family.model_type;
  json["dtype"] = dtype;
  json["torch_dtype"] = dtype;  // the word of older readers
  json["vocab_size"] = m.vocab_size;
  if (family.name == "gpt2") {
    write_gpt2(m, json);
  } else {
    write_llama_like(family, m, json);
  }
  json["tie_word_embeddings"] = m.tie_embeddings;
  json["initializer_range"] = m.initializer_range;
  json["bos_token_id"] = m.bos_token_id ? nlohmann::ordered_json(*m.bos_token_id) : nlohmann::ordered_json();
  if (m.eos_token_ids.size() == 1) {
    json["eos_token_id"] = m.eos_token_ids[0];
  } else {
    json["eos_token_id"] =
        m.eos_token_ids.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(m.eos_token_ids);
  }
  return json.dump(2) + "\n";
}

}  // namespace lignum::config
