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

enum class RopeType { standard, linear, dynamic, llama3, yarn, longrope };  // "default" in files
std::string_view rope_type_name(RopeType);

// Fields in Hugging Face's words; those that a type does not use keep their defaults and are not written.
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000.0;
  double factor = 1.0;                // all but standard
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_max_position = 0;  // llama3, yarn, longrope
  double beta_fast = 32.0;            // yarn, as the following
  double beta_slow = 1.0;
  std::optional<double> attention_factor;  // longrope too
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
  std::vector<double> short_factor, long_factor;  // longrope: [head_dim / 2]
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

inline constexpr int64_t kMaxLayers = 1 << 16;

enum class Activation { silu, gelu_tanh };  // of the MLP
enum class Norm { rms, layer };             // layer: with a bias

// Layers that begin a loop of their own, ascending. The mathematics is the same with any: they take no part
// in comparisons.
struct LoopBreaks {
  std::vector<int64_t> at;
  friend bool operator==(const LoopBreaks&, const LoopBreaks&) { return true; }
};

struct ModelConfig {
  std::string family = "llama";  // llama, mistral, qwen3, gemma2, gemma3, gpt2
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
  bool gated_mlp = true;        // down(act(gate) * up), else down(act(up))
  Norm norm = Norm::rms;
  bool learnt_positions = false;  // a table of max_position rows, and no rotary embedding
  Activation activation = Activation::silu;
  bool qk_norm = false;            // RMS norm over each head of q and k, before the rotary embedding
  bool post_norms = false;         // RMS norm of attention's and the MLP's results too, before they are added
  bool norm_plus_one = false;      // a norm scales by 1 + its weight
  bool scaled_embeddings = false;  // embeddings times sqrt(hidden)
  std::optional<double> query_pre_attn_scalar;  // scores times its 1/sqrt, not head_dim's
  double attention_softcap = 0;                 // scores become cap * tanh(score / cap); 0: as they are
  double logit_softcap = 0;                     // likewise the logits
  int64_t window = 0;         // positions that a sliding layer attends to, its own among them
  std::vector<bool> sliding;  // one a layer; empty where no layer slides
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of sliding layers, where it differs from the others'
  int64_t max_position = 2048;
  double initializer_range = 0.02;
  LoopBreaks loop_breaks;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  int64_t parameters() const;  // tied embeddings counted once
  bool slides(int64_t layer) const { return !sliding.empty() && sliding[static_cast<size_t>(layer)]; }
  const RopeConfig& rope_of(int64_t layer) const { return slides(layer) && local_rope ? *local_rope : rope; }
};

// config.json of LlamaForCausalLM, MistralForCausalLM, Qwen3ForCausalLM, Gemma2ForCausalLM,
// Gemma3ForCausalLM and GPT2LMHeadModel: `rope_parameters`, or `rope_scaling` (its key `type` too) with
// `rope_theta`; where a file has both they must agree. Dropout, which GPT-2's published files name, acts in
// training alone, and here no training has it. `what` stands at the head of errors.
Result<ModelConfig> model_from_hf_json(std::string_view text, const std::string& what);
Result<ModelConfig> model_from_folder(const std::string& folder);  // folder/config.json
// Written with both rope forms, so that old and new readers agree. `dtype` is Hugging Face's word of the
// weights' type.
std::string model_to_hf_json(const ModelConfig& model, std::string_view dtype = "float32");

std::vector<std::string_view> preset_names();
Result<ModelConfig> preset(std::string_view name);

// model_path, else model_name; model_name=default is the base_* keys. A shape key that is set beside
// model_path is an error; beside a preset it needs override_model_config=true, as in MaxText. Loops break
// where num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16 ask for it.
Result<ModelConfig> model_from_config(const Config& config);

// The limits above; the message names Hugging Face's field.
Status validate(const ModelConfig& model, const std::string& what);

// inv_freq [head_dim / 2]: the angle of pair i at position p is p * inv_freq[i]. Computed in float32 in the
// order of operations of transformers' modeling_rope_utils (5.x), because its results are the yardstick: the
// doubles hold float32 values. scaling is what cos and sin are multiplied by: 1 but for yarn and longrope.
// dynamic and longrope depend on the length of the text, `sequence`, beside the model's max_position.
struct RopeFrequencies {
  std::vector<double> inv_freq;
  double scaling = 1;
};
RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_position,
                                 int64_t sequence);
// Of full layers and short texts.
std::vector<double> rope_inv_freq(const ModelConfig& model);
double rope_attention_scaling(const ModelConfig& model);

}  // namespace lignum::config
