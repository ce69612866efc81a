#include "config/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "config/hf_gpt2.h"

namespace lignum::config {
namespace {

constexpr int64_t kMaxWidth = 1 << 24;
constexpr int64_t kMaxCount = kMaxLayers;  // of heads too
constexpr double kMaxParameters = 1e15;
constexpr double kMaxScaling = 1e6;  // of the rotary embedding

ModelConfig dense(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim,
                  int64_t mlp, int64_t vocab) {
  ModelConfig m;
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.kv_heads = kv_heads;
  m.head_dim = head_dim;
  m.mlp = mlp;
  m.vocab_size = vocab;
  return m;
}

ModelConfig llama2(ModelConfig m) {
  m.max_position = 4096;
  m.bos_token_id = 1;
  m.eos_token_ids = {2};
  return m;
}

// The published checkpoints' rotary scaling (their config.json), which MaxText's presets of these names leave
// out.
ModelConfig llama31(ModelConfig m) {
  m.rope.type = RopeType::llama3;
  m.rope.theta = 500000;
  m.rope.factor = 8;
  m.rope.low_freq_factor = 1;
  m.rope.high_freq_factor = 4;
  m.rope.original_max_position = 8192;
  m.max_position = 131072;
  m.bos_token_id = 128000;
  m.eos_token_ids = {128001};
  return m;
}

ModelConfig tied(ModelConfig m) {
  m.tie_embeddings = true;
  return m;
}

ModelConfig mistral(ModelConfig m) {
  m.family = "mistral";
  m.window = 4096;
  m.sliding.assign(static_cast<size_t>(m.layers), true);
  m.max_position = 32768;
  m.bos_token_id = 1;
  m.eos_token_ids = {2};
  return m;
}

ModelConfig qwen3(ModelConfig m) {
  m.family = "qwen3";
  m.qk_norm = true;
  m.norm_eps = 1e-6;
  m.rope.theta = 1e6;
  m.max_position = 40960;
  m.bos_token_id = 151643;
  m.eos_token_ids = {151645};
  return m;
}

// One full layer after period - 1 sliding ones; scale: query_pre_attn_scalar of the published checkpoints.
ModelConfig gemma(ModelConfig m, std::string family, int64_t period, int64_t window, double scale) {
  m.family = std::move(family);
  m.tie_embeddings = m.post_norms = m.norm_plus_one = m.scaled_embeddings = true;
  m.activation = Activation::gelu_tanh;
  m.norm_eps = 1e-6;
  m.query_pre_attn_scalar = scale;
  m.window = window;
  for (int64_t i = 0; i < m.layers; ++i) m.sliding.push_back((i + 1) % period != 0);
  m.max_position = 8192;
  m.bos_token_id = 2;
  m.eos_token_ids = {1};
  return m;
}

ModelConfig gemma2(ModelConfig m, double scale) {
  m = gemma(std::move(m), "gemma2", 2, 4096, scale);
  m.attention_softcap = 50;
  m.logit_softcap = 30;
  return m;
}

ModelConfig gemma3(ModelConfig m, double scale) {
  m = gemma(std::move(m), "gemma3", 6, 1024, scale);
  m.qk_norm = true;
  m.max_position = 131072;
  m.rope.theta = 1e6;
  m.rope.type = RopeType::linear;
  m.rope.factor = 8;
  m.local_rope = RopeConfig();
  return m;
}

ModelConfig gpt2(ModelConfig m) {
  m.family = "gpt2";
  m.gated_mlp = false;
  m.norm = Norm::layer;
  m.learnt_positions = m.attention_bias = m.mlp_bias = m.tie_embeddings = true;
  m.activation = Activation::gelu_tanh;
  m.max_position = 1024;
  m.bos_token_id = 50256;
  m.eos_token_ids = {50256};
  return m;
}

struct Preset {
  std::string_view name;
  ModelConfig model;
};

// Shapes: MaxText's configs/models (its gemma2 counts pairs of layers); gpt2, which MaxText lacks, under
// Hugging Face's names. lignum-tiny and lignum-10m take bytes.
const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = {
      {"llama2-7b", llama2(dense(32, 4096, 32, 32, 128, 11008, 32000))},
      {"llama2-70b", llama2(dense(80, 8192, 64, 8, 128, 28672, 32000))},
      {"llama3.1-8b", llama31(dense(32, 4096, 32, 8, 128, 14336, 128256))},
      {"llama3.1-70b", llama31(dense(80, 8192, 64, 8, 128, 28672, 128256))},
      {"llama3.1-405b", llama31(dense(126, 16384, 128, 8, 128, 53248, 128256))},
      {"mistral-7b", mistral(dense(32, 4096, 32, 8, 128, 14336, 32000))},
      {"qwen3-0.6b", tied(qwen3(dense(28, 1024, 16, 8, 128, 3072, 151936)))},
      {"qwen3-1.7b", tied(qwen3(dense(28, 2048, 16, 8, 128, 6144, 151936)))},
      {"qwen3-4b", tied(qwen3(dense(36, 2560, 32, 8, 128, 9728, 151936)))},
      {"qwen3-8b", qwen3(dense(36, 4096, 32, 8, 128, 12288, 151936))},
      {"qwen3-14b", qwen3(dense(40, 5120, 40, 8, 128, 17408, 151936))},
      {"qwen3-32b", qwen3(dense(64, 5120, 64, 8, 128, 25600, 151936))},
      {"gemma2-2b", gemma2(dense(26, 2304, 8, 4, 256, 9216, 256128), 256)},
      {"gemma2-9b", gemma2(dense(42, 3584, 16, 8, 256, 14336, 256128), 256)},
      {"gemma2-27b", gemma2(dense(46, 4608, 32, 16, 128, 36864, 256128), 144)},
      {"gemma3-4b", gemma3(dense(34, 2560, 8, 4, 256, 10240, 262144), 256)},
      {"gemma3-12b", gemma3(dense(48, 3840, 16, 8, 256, 15360, 262144), 256)},
      {"gemma3-27b", gemma3(dense(62, 5376, 32, 16, 128, 21504, 262144), 168)},
      {"gpt2", gpt2(dense(12, 768, 12, 12, 64, 3072, 50257))},
      {"gpt2-medium", gpt2(dense(24, 1024, 16, 16, 64, 4096, 50257))},
      {"gpt2-large", gpt2(dense(36, 1280, 20, 20, 64, 5120, 50257))},
      {"gpt2-xl", gpt2(dense(48, 1600, 25, 25, 64, 6400, 50257))},
      {"lignum-tiny", tied(dense(4, 64, 4, 2, 16, 176, 256))},
      {"lignum-10m", tied(dense(8, 320, 5, 5, 64, 864, 256))},
      {"lignum-61m", tied(dense(12, 576, 9, 3, 64, 1536, 32000))},
  };
  return kPresets;
}

// The keys that describe a model, and where each goes.
using Setter = void (*)(const Config&, ModelConfig&);
struct ShapeKey {
  std::string_view key;
  Setter set;
};
constexpr std::array<ShapeKey, 10> kShapeKeys = {{
    {"base_emb_dim", [](const Config& c, ModelConfig& m) { m.hidden = c.integer("base_emb_dim"); }},
    {"base_num_query_heads",
     [](const Config& c, ModelConfig& m) { m.heads = c.integer("base_num_query_heads"); }},
    {"base_num_kv_heads",
     [](const Config& c, ModelConfig& m) { m.kv_heads = c.integer("base_num_kv_heads"); }},
    {"head_dim", [](const Config& c, ModelConfig& m) { m.head_dim = c.integer("head_dim"); }},
    {"base_mlp_dim", [](const Config& c, ModelConfig& m) { m.mlp = c.integer("base_mlp_dim"); }},
    {"base_num_decoder_layers",
     [](const Config& c, ModelConfig& m) { m.layers = c.integer("base_num_decoder_layers"); }},
    {"vocab_size", [](const Config& c, ModelConfig& m) { m.vocab_size = c.integer("vocab_size"); }},
    {"normalization_layer_epsilon",
     [](const Config& c, ModelConfig& m) { m.norm_eps = c.real("normalization_layer_epsilon"); }},
    {"rope_max_timescale",
     [](const Config& c, ModelConfig& m) { m.rope.theta = c.real("rope_max_timescale"); }},
    {"logits_via_embedding",
     [](const Config& c, ModelConfig& m) { m.tie_embeddings = c.boolean("logits_via_embedding"); }},
}};

Status validate_rope(const RopeConfig& rope, int64_t head_dim, const std::string& what) {
  const auto refuse = [&](std::string_view field, double value, std::string_view allowed) {
    return user_error("{}: rope {}={} must be {}", what, field, value, allowed);
  };
  const auto within = [](double x, double low, double high) { return x >= low && x <= high; };
  if (!within(rope.theta, 1.000001, 1e15)) return refuse("rope_theta", rope.theta, "above 1");
  if (rope.type == RopeType::standard) return {};
  if (!within(rope.factor, 1, 1e6)) return refuse("factor", rope.factor, "in 1..1000000");
  if (rope.type == RopeType::linear || rope.type == RopeType::dynamic) return {};
  if (rope.original_max_position < 1 || rope.original_max_position > int64_t{1} << 40) {
    return user_error("{}: rope original_max_position_embeddings={} must be positive", what,
                      rope.original_max_position);
  }
  if (rope.type == RopeType::longrope) {
    if (rope.original_max_position < 2) return refuse("original_max_position_embeddings", 1, "above 1");
    if (rope.attention_factor && !within(*rope.attention_factor, 0, 1e6))
      return refuse("attention_factor", *rope.attention_factor, "in 0..1000000");
    for (const auto& [field, factors] :
         {std::pair("short_factor", &rope.short_factor), std::pair("long_factor", &rope.long_factor)}) {
      if (static_cast<int64_t>(factors->size()) != head_dim / 2)
        return user_error("{}: rope {} has {} numbers; head_dim={} needs {}", what, field, factors->size(),
                          head_dim, head_dim / 2);
      for (const double f : *factors)
        if (!within(f, 1e-6, 1e6)) return refuse(field, f, "in 1e-6..1000000");
    }
    return {};
  }
  if (rope.type == RopeType::llama3) {
    if (!within(rope.low_freq_factor, 1e-6, 1e6))
      return refuse("low_freq_factor", rope.low_freq_factor, "positive");
    if (!(rope.high_freq_factor > rope.low_freq_factor && rope.high_freq_factor <= 1e6)) {
      return refuse("high_freq_factor", rope.high_freq_factor, "above low_freq_factor");
    }
    return {};
  }
  if (!within(rope.beta_slow, 1e-6, 1e6)) return refuse("beta_slow", rope.beta_slow, "positive");
  if (!within(rope.beta_fast, rope.beta_slow, 1e6))
    return refuse("beta_fast", rope.beta_fast, "at least beta_slow");
  for (const auto& [field, value] :
       {std::pair("attention_factor", rope.attention_factor), std::pair("mscale", rope.mscale),
        std::pair("mscale_all_dim", rope.mscale_all_dim)}) {
    if (value && !within(*value, 0, 1e6)) return refuse(field, *value, "in 0..1000000");
  }
  return {};
}

double parameter_count(const ModelConfig& m) {
  const auto d = [](int64_t x) { return static_cast<double>(x); };
  const double attention = d(m.hidden) * d(m.head_dim) * (2 * d(m.heads) + 2 * d(m.kv_heads));
  const double positions = m.learnt_positions ? d(m.max_position) : 0;
  return d(m.layers) * (attention + 3 * d(m.hidden) * d(m.mlp)) +
         (2 * d(m.vocab_size) + positions) * d(m.hidden);
}

}  // namespace

int64_t ModelConfig::parameters() const {
  const int64_t norm_size = (norm == Norm::layer ? 2 : 1) * hidden;
  const int64_t matrices = gated_mlp ? 3 : 2;  // of the MLP
  int64_t block = hidden * head_dim * (2 * heads + 2 * kv_heads) + matrices * hidden * mlp + 2 * norm_size;
  if (attention_bias) block += head_dim * (heads + 2 * kv_heads) + hidden;
  if (mlp_bias) block += (matrices - 1) * mlp + hidden;
  if (qk_norm) block += 2 * head_dim;
  if (post_norms) block += 2 * hidden;
  return layers * block + (tie_embeddings ? 1 : 2) * vocab_size * hidden +
         (learnt_positions ? max_position * hidden : 0) + norm_size;
}

Status validate(const ModelConfig& m, const std::string& what) {
  struct Bound {
    std::string_view field;
    int64_t value, max;
  };
  for (const Bound& b :
       {Bound{"vocab_size", m.vocab_size, kMaxWidth}, Bound{"hidden_size", m.hidden, kMaxWidth},
        Bound{"num_hidden_layers", m.layers, kMaxCount}, Bound{"num_attention_heads", m.heads, kMaxCount},
        Bound{"num_key_value_heads", m.kv_heads, kMaxCount}, Bound{"head_dim", m.head_dim, kMaxCount},
        Bound{"intermediate_size", m.mlp, kMaxWidth},
        Bound{"max_position_embeddings", m.max_position, int64_t{1} << 40}}) {
    if (b.value < 1 || b.value > b.max) {
      return user_error("{}: {}={} must be in 1..{}", what, hf_field(m, b.field), b.value, b.max);
    }
  }
  if (m.head_dim % 2 != 0 && !m.learnt_positions) {
    return user_error("{}: head_dim={} must be even: the rotary embedding turns pairs", what, m.head_dim);
  }
  if (m.heads % m.kv_heads != 0) {
    return user_error("{}: num_attention_heads={} must be a multiple of num_key_value_heads={}", what,
                      m.heads, m.kv_heads);
  }
  if (!(m.norm_eps >= 0 && m.norm_eps < 1)) {
    return user_error("{}: {}={} must be at least 0 and less than 1", what, hf_field(m, "rms_norm_eps"),
                      m.norm_eps);
  }
  if (!(m.initializer_range >= 0 && m.initializer_range <= 1)) {
    return user_error("{}: initializer_range={} must be in 0..1", what, m.initializer_range);
  }
  if (parameter_count(m) > kMaxParameters) {
    return user_error("{}: {:.3g} parameters, more than {:.0e}", what, parameter_count(m), kMaxParameters);
  }
  for (const auto& [field, cap] : {std::pair("attn_logit_softcapping", m.attention_softcap),
                                   std::pair("final_logit_softcapping", m.logit_softcap)})
    if (!(cap >= 0 && cap <= 1e6)) return user_error("{}: {}={} must be in 0..1000000", what, field, cap);
  if (m.query_pre_attn_scalar && !(*m.query_pre_attn_scalar >= 1e-6 && *m.query_pre_attn_scalar <= 1e9))
    return user_error("{}: query_pre_attn_scalar={} must be positive", what, *m.query_pre_attn_scalar);
  if (!m.sliding.empty() && static_cast<int64_t>(m.sliding.size()) != m.layers)
    return user_error("{}: num_hidden_layers={} differs from the {} layer types", what, m.layers,
                      m.sliding.size());
  if (!m.sliding.empty() && (m.window < 1 || m.window > kMaxWidth * kMaxCount))
    return user_error("{}: sliding_window={} must be positive: layers slide", what, m.window);
  LIGNUM_RETURN_IF_ERROR(validate_rope(m.rope, m.head_dim, what));
  if (m.local_rope)
    LIGNUM_RETURN_IF_ERROR(validate_rope(*m.local_rope, m.head_dim, what + ": sliding layers"));
  if (const double scaling = rope_attention_scaling(m); !(scaling >= 0 && scaling < kMaxScaling)) {
    return user_error(
        "{}: the rotary embedding is scaled by {} (attention_factor, or mscale over mscale_all_dim), which "
        "must be "
        "at least 0 and less than {:.0e}",
        what, scaling, kMaxScaling);
  }
  return {};
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& p : presets()) names.push_back(p.name);
  return names;
}

Result<ModelConfig> preset(std::string_view name) {
  std::string all;
  for (const Preset& p : presets()) {
    if (p.name == name) return p.model;
    all += fmt::format(", {}", p.name);
  }
  return user_error("model_name={}: no such preset{}; presets: default{}", shown(name),
                    nearest_hint(name, preset_names()), all);
}

Result<ModelConfig> model_from_config(const Config& config) {
  const std::string& path = config.text("model_path");
  const std::string& name = config.text("model_name");
  const bool from_keys = path.empty() && name == "default";
  const bool override = config.boolean("override_model_config");
  ModelConfig model;
  std::string what = fmt::format("model_name={}", name);
  if (!path.empty()) {
    what = path;
    LIGNUM_ASSIGN_OR_RETURN(model, model_from_folder(path));
  } else if (from_keys) {
    model.max_position = config.integer("max_target_length");
  } else {
    LIGNUM_ASSIGN_OR_RETURN(model, preset(name));
  }
  for (const ShapeKey& shape : kShapeKeys) {
    if (!from_keys) {
      if (!config.is_set(shape.key)) continue;
      if (!path.empty()) {
        return user_error(
            "{}={} beside model_path={}: the folder's config.json describes the model; remove the key",
            shape.key, config.value_text(shape.key), path);
      }
      if (!override) {
        return user_error("{}={} beside model_name={}: set override_model_config=true to change the preset",
                          shape.key, config.value_text(shape.key), name);
      }
    }
    shape.set(config, model);
    if (shape.key == "base_num_decoder_layers" && !model.sliding.empty()) {
      // The preset's pattern, as far as it goes.
      const std::vector<bool> pattern = model.sliding;
      model.sliding.clear();
      for (int64_t i = 0; i < std::min(model.layers, kMaxLayers); ++i)
        model.sliding.push_back(pattern[static_cast<size_t>(i) % pattern.size()]);
    }
  }
  LIGNUM_RETURN_IF_ERROR(validate(model, what));
  const int64_t first = config.integer("num_layers_at_start_in_bf16"),
                last = config.integer("num_layers_at_end_in_bf16");
  if (first + last > model.layers)
    return user_error(
        "num_layers_at_start_in_bf16={} and num_layers_at_end_in_bf16={}: {} has {} layers; lower one of "
        "them",
        first, last, what, model.layers);
  if (config.boolean("use_qwix_quantization")) {
    for (const int64_t layer : {first, model.layers - last})
      if (layer > 0 && layer < model.layers) model.loop_breaks.at.push_back(layer);
  }
  return model;
}

}  // namespace lignum::config
