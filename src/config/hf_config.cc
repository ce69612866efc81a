// Hugging Face's config.json, read and written.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "config/model_config.h"

namespace lignum::config {
namespace {

using Json = nlohmann::json;

// Fields without effect on what the model computes.
constexpr std::array kHarmless = {
    "_attn_implementation", "_name_or_path", "bos_token_id",         "dtype",           "eos_token_id",
    "finetuning_task",      "id2label",      "is_llama_config",      "label2id",        "name_or_path",
    "output_attentions",    "pad_token_id",  "output_hidden_states", "problem_type",    "return_dict",
    "task_specific_params", "torch_dtype",   "transformers_version", "unsloth_version", "use_cache",
    "use_return_dict"};

// An object whose fields are read one by one; the first error is kept, and fields that nobody read are found.
class Fields {
 public:
  Fields(const Json& object, std::string what) : object_(object), what_(std::move(what)) {}

  const Status& status() const { return status_; }
  const std::string& what() const { return what_; }
  // A field that is null counts as absent.
  bool has(const char* name) const { return object_.contains(name) && !object_.at(name).is_null(); }
  const Json& get(const char* name) {
    read_.insert(name);
    return object_.at(name);
  }

  int64_t integer(const char* name, std::optional<int64_t> fallback) {
    if (!present(name, fallback.has_value())) return fallback.value_or(0);
    const Json& value = get(name);
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return refuse(name, "a 64-bit integer"), 0;
    }
    if (!value.is_number_integer()) return refuse(name, "an integer"), 0;
    return value.get<int64_t>();
  }
  double real(const char* name, std::optional<double> fallback) {
    if (!present(name, fallback.has_value())) return fallback.value_or(0);
    const Json& value = get(name);
    if (!value.is_number()) return refuse(name, "a number"), 0;
    return value.get<double>();
  }
  std::optional<double> optional_real(const char* name) {
    if (!has(name)) return {};
    return real(name, {});
  }
  bool boolean(const char* name, bool fallback) {
    if (!present(name, true)) return fallback;
    if (!get(name).is_boolean()) return refuse(name, "true or false"), fallback;
    return get(name).get<bool>();
  }
  // A field that Lignum takes with one value only.
  void only(const char* name, const Json& value) {
    if (present(name, true) && get(name) != value)
      refuse(name, value.dump() + "; nothing else is implemented");
  }
  void refuse(const char* name, const std::string& expected) {
    fail(user_error("{}: {}={} must be {}", what_, name,
                    shown(object_.at(name).dump(-1, ' ', false, kReplace)), expected));
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Every field that is neither read, nor null, nor harmless.
  template <class Harmless>
  void refuse_unread(const Harmless& harmless) {
    for (const auto& [name, value] : object_.items()) {
      if (value.is_null() || read_.contains(name)) continue;
      if (std::find(harmless.begin(), harmless.end(), name) != harmless.end()) continue;
      fail(user_error("{}: {}={} is a feature that is not implemented", what_, shown(name),
                      shown(value.dump(-1, ' ', false, kReplace))));
    }
  }

 private:
  static constexpr auto kReplace = Json::error_handler_t::replace;

  bool present(const char* name, bool optional) {
    read_.insert(name);
    if (has(name)) return true;
    if (!optional) fail(user_error("{}: {} is missing", what_, name));
    return false;
  }

  const Json& object_;
  std::string what_;
  std::set<std::string, std::less<>> read_;
  Status status_;
};

// Of `rope_parameters` or `rope_scaling`; theta is the value where the object has none.
Result<RopeConfig> read_rope(const Json& json, const std::string& what, double theta, int64_t max_position) {
  if (!json.is_object()) return user_error("{} must be an object", what);
  Fields fields(json, what);
  RopeConfig rope;
  std::string type = "default";
  for (const char* name : {"type", "rope_type"}) {  // `type` is the old word
    if (!fields.has(name)) continue;
    if (!fields.get(name).is_string()) return user_error("{}: {} must be a text", what, name);
    type = fields.get(name).get<std::string>();
  }
  if (fields.has("type") && fields.has("rope_type") && fields.get("type") != fields.get("rope_type")) {
    return user_error("{}: type={} and rope_type={} differ", what, fields.get("type").dump(),
                      fields.get("rope_type").dump());
  }
  const std::array types = {RopeType::standard, RopeType::linear, RopeType::llama3, RopeType::yarn};
  const auto* known =
      std::find_if(types.begin(), types.end(), [&](RopeType t) { return rope_type_name(t) == type; });
  if (known == types.end()) {
    return user_error("{}: rope_type='{}' is not implemented; default, linear, llama3 and yarn are", what,
                      shown(type));
  }
  rope.type = *known;
  rope.theta = fields.real("rope_theta", theta);
  fields.only("partial_rotary_factor", 1.0);
  if (rope.type != RopeType::standard) rope.factor = fields.real("factor", {});
  if (rope.type == RopeType::llama3 || rope.type == RopeType::yarn) {
    rope.original_max_position = fields.integer("original_max_position_embeddings", max_position);
  }
  if (rope.type == RopeType::llama3) {
    rope.low_freq_factor = fields.real("low_freq_factor", {});
    rope.high_freq_factor = fields.real("high_freq_factor", {});
  }
  if (rope.type == RopeType::yarn) {
    rope.beta_fast = fields.real("beta_fast", 32.0);
    rope.beta_slow = fields.real("beta_slow", 1.0);
    rope.attention_factor = fields.optional_real("attention_factor");
    rope.mscale = fields.optional_real("mscale");
    rope.mscale_all_dim = fields.optional_real("mscale_all_dim");
    rope.truncate = fields.boolean("truncate", true);
  }
  fields.refuse_unread(std::array<const char*, 0>{});
  LIGNUM_RETURN_IF_ERROR(fields.status());
  return rope;
}

// Both forms, and that they agree where a file has both.
Result<RopeConfig> read_both_ropes(Fields& fields, int64_t max_position) {
  const double theta = fields.real("rope_theta", RopeConfig().theta);
  const auto read = [&](const char* name) {
    return read_rope(fields.get(name), fmt::format("{}: {}", fields.what(), name), theta, max_position);
  };
  RopeConfig rope;
  rope.theta = theta;
  const bool has_new = fields.has("rope_parameters"), has_old = fields.has("rope_scaling");
  if (has_new) {
    LIGNUM_ASSIGN_OR_RETURN(rope, read("rope_parameters"));
    if (fields.has("rope_theta") && rope.theta != theta) {
      return user_error("{}: rope_theta={} and rope_parameters' rope_theta={} differ", fields.what(), theta,
                        rope.theta);
    }
  }
  if (has_old) {
    LIGNUM_ASSIGN_OR_RETURN(RopeConfig old, read("rope_scaling"));
    if (has_new && !fields.has("rope_theta")) old.theta = rope.theta;
    if (has_new && !(old == rope)) {
      return user_error("{}: rope_scaling and rope_parameters describe different embeddings; remove one",
                        fields.what());
    }
    rope = old;
  }
  return rope;
}

void check_family(Fields& fields) {
  if (!fields.has("model_type") && !fields.has("architectures")) {
    fields.fail(user_error("{}: neither model_type nor architectures says what the model is", fields.what()));
  }
  fields.only("model_type", "llama");
  fields.only("architectures", Json::array({"LlamaForCausalLM"}));
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

nlohmann::ordered_json rope_json(const RopeConfig& rope) {
  nlohmann::ordered_json json;
  json["rope_type"] = rope_type_name(rope.type);
  json["rope_theta"] = rope.theta;
  if (rope.type != RopeType::standard) json["factor"] = rope.factor;
  if (rope.original_max_position > 0) json["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.type == RopeType::llama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::yarn) {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
    if (rope.mscale) json["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) json["mscale_all_dim"] = *rope.mscale_all_dim;
    json["truncate"] = rope.truncate;
  }
  return json;
}

}  // namespace

Result<ModelConfig> model_from_hf_json(std::string_view text, const std::string& what) {
  LIGNUM_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  if (!json.is_object()) return user_error("{}: expected an object", what);
  Fields fields(json, what);
  check_family(fields);
  LIGNUM_RETURN_IF_ERROR(fields.status());  // another family's fields would only confuse

  // Where a field may be absent, the value is that of transformers' LlamaConfig.
  ModelConfig m;
  m.vocab_size = fields.integer("vocab_size", {});
  m.hidden = fields.integer("hidden_size", {});
  m.layers = fields.integer("num_hidden_layers", {});
  m.heads = fields.integer("num_attention_heads", {});
  m.mlp = fields.integer("intermediate_size", {});
  LIGNUM_RETURN_IF_ERROR(fields.status());
  m.kv_heads = fields.integer("num_key_value_heads", m.heads);
  if (!fields.has("head_dim") && (m.heads < 1 || m.hidden % m.heads != 0)) {
    return user_error(
        "{}: hidden_size={} is not a multiple of num_attention_heads={}, and head_dim is not given", what,
        m.hidden, m.heads);
  }
  m.head_dim = fields.integer("head_dim", fields.has("head_dim") ? 0 : m.hidden / m.heads);
  m.norm_eps = fields.real("rms_norm_eps", 1e-6);
  m.tie_embeddings = fields.boolean("tie_word_embeddings", false);
  m.attention_bias = fields.boolean("attention_bias", false);
  m.mlp_bias = fields.boolean("mlp_bias", false);
  m.max_position = fields.integer("max_position_embeddings", 2048);
  m.initializer_range = fields.real("initializer_range", 0.02);
  m.eos_token_ids = read_token_ids(fields, "eos_token_id");
  const std::vector<int64_t> bos = read_token_ids(fields, "bos_token_id");
  if (bos.size() > 1) fields.refuse("bos_token_id", "one token's number");
  if (bos.size() == 1) m.bos_token_id = bos[0];
  LIGNUM_ASSIGN_OR_RETURN(m.rope, read_both_ropes(fields, m.max_position));
  fields.only("hidden_act", "silu");
  fields.only("attention_dropout", 0);
  fields.only("pretraining_tp", 1);
  fields.only("partial_rotary_factor", 1);
  fields.only("rope_interleaved", false);
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
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = m.family;
  json["dtype"] = dtype;
  json["torch_dtype"] = dtype;  // the word of older readers
  json["vocab_size"] = m.vocab_size;
  json["hidden_size"] = m.hidden;
  json["intermediate_size"] = m.mlp;
  json["num_hidden_layers"] = m.layers;
  json["num_attention_heads"] = m.heads;
  json["num_key_value_heads"] = m.kv_heads;
  json["head_dim"] = m.head_dim;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = m.norm_eps;
  json["attention_bias"] = m.attention_bias;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = m.mlp_bias;
  json["tie_word_embeddings"] = m.tie_embeddings;
  json["max_position_embeddings"] = m.max_position;
  json["initializer_range"] = m.initializer_range;
  json["rope_parameters"] = rope_json(m.rope);
  json["rope_theta"] = m.rope.theta;
  json["rope_scaling"] = m.rope.type == RopeType::standard ? nlohmann::ordered_json() : rope_json(m.rope);
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
