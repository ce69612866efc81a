// What a model is: a Hugging Face config.json, a preset or the base_* keys, read into one description. Only
// features that Lignum has are taken; any other field of a config.json that could change the mathematics is
// refused by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/config.h"

namespace lignum::config {

enum class RopeType { standard, linear, llama3, yarn };  // "default" in files
std::string_view rope_type_name(RopeType);

// Fields in Hugging Face's words; those that a type does not use keep their defaults and are not written.
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000.0;
  double factor = 1.0;                // linear, llama3, yarn
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_max_position = 0;  // llama3, yarn
  double beta_fast = 32.0;            // yarn, as the following
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  std::string family = "llama";
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // even; need not be hidden / heads
  int64_t mlp = 0;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  bool attention_bias = false;  // of q, k, v and o
  bool mlp_bias = false;        // of gate, up and down
  RopeConfig rope;
  int64_t max_position = 2048;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  int64_t parameters() const;  // tied embeddings counted once
};

// LlamaForCausalLM's config.json: `rope_parameters`, or `rope_scaling` (its key `type` too) with
// `rope_theta`; where a file has both they must agree. `what` stands at the head of errors.
Result<ModelConfig> model_from_hf_json(std::string_view text, const std::string& what);
Result<ModelConfig> model_from_folder(const std::string& folder);  // folder/config.json
// Written with both rope forms, so that old and new readers agree. `dtype` is Hugging Face's word of the
// weights' type.
std::string model_to_hf_json(const ModelConfig& model, std::string_view dtype = "float32");

std::vector<std::string_view> preset_names();
Result<ModelConfig> preset(std::string_view name);

// model_path, else model_name; model_name=default is the base_* keys. A shape key that is set beside
// model_path is an error; beside a preset it needs override_model_config=true, as in MaxText.
Result<ModelConfig> model_from_config(const Config& config);

// The limits above; the message names Hugging Face's field.
Status validate(const ModelConfig& model, const std::string& what);

// [head_dim / 2]: angle of pair i at position p is p * inv_freq[i]. Computed in float32 in the order of
// operations of transformers' modeling_rope_utils (5.x), because its results are the yardstick: the doubles
// hold float32 values.
std::vector<double> rope_inv_freq(const ModelConfig& model);
// What cos and sin are multiplied by: 1 but for yarn.
double rope_attention_scaling(const ModelConfig& model);

}  // namespace lignum::config
