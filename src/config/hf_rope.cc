// The rotary embedding's fields of config.json: `rope_parameters` (transformers 5) and `rope_scaling` with
// `rope_theta` (before), for one embedding or for one of full and one of sliding layers.
#include "config/hf_rope.h"

#include <array>

namespace lignum::config {
namespace {

using Json = nlohmann::json;

// Of `rope_parameters` or `rope_scaling`; theta is the value where the object has none.
// The lengths are the model's: its longest text, and the one before the context was extended.
Result<RopeConfig> read_rope(const Json& json, const std::string& what, double theta, int64_t max_position,
                             int64_t original_position) {
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
  const std::array types = {RopeType::standard, RopeType::linear, RopeType::dynamic,
                            RopeType::llama3,   RopeType::yarn,   RopeType::longrope};
  const auto* known =
      std::find_if(types.begin(), types.end(), [&](RopeType t) { return rope_type_name(t) == type; });
  if (known == types.end()) {
    return user_error(
        "{}: rope_type='{}' is not implemented; default, linear, dynamic, llama3, yarn and longrope are",
        what, shown(type));
  }
  rope.type = *known;
  rope.theta = fields.real("rope_theta", theta);
  fields.only("partial_rotary_factor", 1.0);
  if (rope.type == RopeType::longrope) {
    rope.original_max_position = fields.integer("original_max_position_embeddings", original_position);
    // The models that have it say how far the context grew by their two lengths.
    rope.factor =
        fields.real("factor", static_cast<double>(max_position) /
                                  static_cast<double>(std::max<int64_t>(rope.original_max_position, 1)));
    rope.attention_factor = fields.optional_real("attention_factor");
    rope.short_factor = fields.reals("short_factor");
    rope.long_factor = fields.reals("long_factor");
  } else if (rope.type != RopeType::standard) {
    rope.factor = fields.real("factor", {});
  }
  if (rope.type == RopeType::llama3 || rope.type == RopeType::yarn) {
    rope.original_max_position = fields.integer("original_max_position_embeddings", original_position);
  }
  if (rope.type == RopeType::llama3) {
    for (const char* name : {"low_freq_factor", "high_freq_factor"}) {
      if (!fields.has(name))
        return user_error(
            "{}: {} is missing; llama3 needs low_freq_factor, positive, and high_freq_factor, above it", what,
            name);
    }
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

// Of layers of one kind: both forms, and that they agree where a file has both.
Result<RopeConfig> read_one(Fields& fields, double default_theta, int64_t max_position,
                            int64_t original_position) {
  const double theta = fields.real("rope_theta", default_theta);
  const auto read = [&](const char* name) {
    return read_rope(fields.get(name), fmt::format("{}: {}", fields.what(), name), theta, max_position,
                     original_position);
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

// Gemma 3's: rope_parameters by layer type, or rope_theta and rope_scaling for full layers and
// rope_local_base_freq for sliding ones.
Result<Ropes> read_pair(Fields& fields, double default_theta, double default_local_theta,
                        int64_t max_position) {
  Ropes ropes;
  const double local_theta = fields.real("rope_local_base_freq", default_local_theta);
  const bool by_type = fields.has("rope_parameters") && fields.get("rope_parameters").is_object() &&
                       (fields.get("rope_parameters").contains("full_attention") ||
                        fields.get("rope_parameters").contains("sliding_attention"));
  if (!by_type) {
    LIGNUM_ASSIGN_OR_RETURN(ropes.full, read_one(fields, default_theta, max_position, max_position));
    ropes.local = RopeConfig();
    ropes.local->theta = local_theta;
    return ropes;
  }
  const double theta = fields.real("rope_theta", default_theta);
  const std::string what = fields.what() + ": rope_parameters";
  Fields types(fields.get("rope_parameters"), what);
  const auto read = [&](const char* type, double fallback) -> Result<RopeConfig> {
    if (!types.has(type)) return user_error("{}: {} is missing", what, type);
    return read_rope(types.get(type), what + ": " + type, fallback, max_position, max_position);
  };
  LIGNUM_ASSIGN_OR_RETURN(ropes.full, read("full_attention", theta));
  LIGNUM_ASSIGN_OR_RETURN(ropes.local, read("sliding_attention", local_theta));
  types.refuse_unread(std::array<const char*, 0>{});
  LIGNUM_RETURN_IF_ERROR(types.status());
  if (fields.has("rope_theta") && theta != ropes.full.theta)
    return user_error("{}: rope_theta={} and full_attention's rope_theta={} differ", what, theta,
                      ropes.full.theta);
  if (fields.has("rope_local_base_freq") && local_theta != ropes.local->theta)
    return user_error("{}: rope_local_base_freq={} and sliding_attention's rope_theta={} differ", what,
                      local_theta, ropes.local->theta);
  if (fields.has("rope_scaling")) {
    LIGNUM_ASSIGN_OR_RETURN(const RopeConfig old,
                            read_rope(fields.get("rope_scaling"), fields.what() + ": rope_scaling",
                                      ropes.full.theta, max_position, max_position));
    if (!(old == ropes.full))
      return user_error("{}: rope_scaling and full_attention describe different embeddings; remove one",
                        what);
  }
  return ropes;
}

nlohmann::ordered_json rope_json(const RopeConfig& rope) {
  nlohmann::ordered_json json;
  json["rope_type"] = rope_type_name(rope.type);
  json["rope_theta"] = rope.theta;
  if (rope.type != RopeType::standard) json["factor"] = rope.factor;
  if (rope.type == RopeType::longrope) {
    json["short_factor"] = rope.short_factor;
    json["long_factor"] = rope.long_factor;
    if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  }
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

Result<Ropes> read_ropes(Fields& fields, const RopeDefaults& defaults, int64_t max_position) {
  if (defaults.local_theta) return read_pair(fields, defaults.theta, *defaults.local_theta, max_position);
  // Beside the object in files of before transformers 5.
  const int64_t original = fields.integer("original_max_position_embeddings", max_position);
  LIGNUM_ASSIGN_OR_RETURN(const RopeConfig rope, read_one(fields, defaults.theta, max_position, original));
  return Ropes{rope, {}};
}

void write_ropes(const ModelConfig& m, nlohmann::ordered_json& json) {
  if (m.local_rope) {
    json["rope_parameters"] = {{"full_attention", rope_json(m.rope)},
                               {"sliding_attention", rope_json(*m.local_rope)}};
    json["rope_local_base_freq"] = m.local_rope->theta;
  } else {
    json["rope_parameters"] = rope_json(m.rope);
  }
  json["rope_theta"] = m.rope.theta;
  json["rope_scaling"] = m.rope.type == RopeType::standard ? nlohmann::ordered_json() : rope_json(m.rope);
}

}  // namespace lignum::config
