#include "convert/gguf_model.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"

namespace lignum::convert {
namespace {

using config::ModelConfig;

constexpr std::string_view kArchitecture = "llama";

// The keys llama.* one by one; the first error is kept, and what nobody read is found.
class Keys {
 public:
  explicit Keys(const GgufReader& file) : file_(file) {}

  template <class T>
  std::optional<T> optional(std::string_view name) {
    const std::string key = fmt::format("{}.{}", kArchitecture, name);
    read_.insert(key);
    const Result<std::optional<T>> value = file_.get<T>(key);
    if (!value.ok()) fail(value.status());
    return value.ok() ? *value : std::nullopt;
  }
  template <class T>
  T required(std::string_view name) {
    const std::optional<T> value = optional<T>(name);
    if (!value) fail(user_error("{}: {}.{} is missing", file_.path(), kArchitecture, name));
    return value.value_or(T{});
  }
  template <class T>
  void only(std::string_view name, const T& allowed) {
    if (const std::optional<T> value = optional<T>(name); value && *value != allowed)
      refuse(name, fmt::format("{}", *value), fmt::format("{}", allowed));
  }
  void refuse(std::string_view name, const std::string& value, const std::string& allowed) {
    fail(user_error("{}: {}.{}={} must be {}", file_.path(), kArchitecture, name, shown(value), allowed));
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  Status done() {
    for (const auto& [key, value] : file_.values()) {
      if (key.starts_with(fmt::format("{}.", kArchitecture)) && !read_.contains(key))
        fail(user_error("{}: {} is a feature that is not implemented", file_.path(), shown(key)));
    }
    return status_;
  }

 private:
  const GgufReader& file_;
  std::set<std::string, std::less<>> read_;
  Status status_;
};

void read_rope(Keys& keys, ModelConfig& m) {
  m.rope.theta = keys.optional<double>("rope.freq_base").value_or(10000);
  keys.only<int64_t>("rope.dimension_count", m.head_dim);
  const std::string_view type = keys.optional<std::string_view>("rope.scaling.type").value_or("none");
  const double factor = keys.optional<double>("rope.scaling.factor").value_or(1);
  if (type == "linear") {
    m.rope.type = config::RopeType::linear;
    m.rope.factor = factor;
  } else if (type != "none") {
    keys.refuse("rope.scaling.type", std::string(type), "none or linear; nothing else is implemented");
  }
}

Result<std::optional<int64_t>> token_id(const GgufReader& file, std::string_view which) {
  LIGNUM_ASSIGN_OR_RETURN(const std::optional<int64_t> id,
                          file.get<int64_t>(fmt::format("tokenizer.ggml.{}_token_id", which)));
  if (id && (*id < 0 || *id > INT32_MAX))
    return user_error("{}: tokenizer.ggml.{}_token_id={} is no token", file.path(), which, *id);
  return id;
}

}  // namespace

Result<ModelConfig> model_from_gguf(const GgufReader& file) {
  LIGNUM_ASSIGN_OR_RETURN(const auto architecture, file.get<std::string_view>("general.architecture"));
  if (architecture != kArchitecture)
    return user_error("{}: general.architecture={} must be {}; nothing else is implemented", file.path(),
                      shown(architecture.value_or("(none)")), kArchitecture);
  const GgufTensor* table = file.find("token_embd.weight");
  if (table == nullptr || table->shape.size() != 2)
    return user_error("{}: no tensor token_embd.weight of two dims", file.path());
  Keys keys(file);
  ModelConfig m;
  m.vocab_size = table->shape[0];
  m.layers = keys.required<int64_t>("block_count");
  m.max_position = keys.required<int64_t>("context_length");
  m.hidden = keys.required<int64_t>("embedding_length");
  m.mlp = keys.required<int64_t>("feed_forward_length");
  m.heads = keys.required<int64_t>("attention.head_count");
  m.kv_heads = keys.optional<int64_t>("attention.head_count_kv").value_or(m.heads);
  m.norm_eps = keys.required<double>("attention.layer_norm_rms_epsilon");
  const std::optional<int64_t> head_dim = keys.optional<int64_t>("attention.key_length");
  if (!head_dim && (m.heads < 1 || m.hidden % m.heads != 0))
    keys.refuse("embedding_length", std::to_string(m.hidden),
                fmt::format("a multiple of the {} heads", m.heads));
  m.head_dim = head_dim.value_or(m.hidden / std::max<int64_t>(m.heads, 1));
  keys.only<int64_t>("attention.value_length", m.head_dim);
  keys.only<int64_t>("vocab_size", m.vocab_size);
  keys.only<int64_t>("expert_count", 0);
  keys.only<int64_t>("expert_used_count", 0);
  read_rope(keys, m);
  LIGNUM_RETURN_IF_ERROR(keys.done());
  m.tie_embeddings = file.find("output.weight") == nullptr;
  LIGNUM_ASSIGN_OR_RETURN(m.bos_token_id, token_id(file, "bos"));
  LIGNUM_ASSIGN_OR_RETURN(const std::optional<int64_t> eos, token_id(file, "eos"));
  if (eos) m.eos_token_ids = {*eos};
  LIGNUM_RETURN_IF_ERROR(config::validate(m, file.path()));
  return m;
}

std::optional<GgufName> gguf_name(const ModelConfig& model, std::string_view name) {
  struct Pair {
    std::string_view hugging_face, gguf;
  };
  constexpr std::array<Pair, 3> kTop = {{{"model.embed_tokens.weight", "token_embd.weight"},
                                         {"model.norm.weight", "output_norm.weight"},
                                         {"lm_head.weight", "output.weight"}}};
  constexpr std::array<Pair, 9> kLayer = {{{"input_layernorm.weight", "attn_norm.weight"},
                                           {"self_attn.q_proj.weight", "attn_q.weight"},
                                           {"self_attn.k_proj.weight", "attn_k.weight"},
                                           {"self_attn.v_proj.weight", "attn_v.weight"},
                                           {"self_attn.o_proj.weight", "attn_output.weight"},
                                           {"post_attention_layernorm.weight", "ffn_norm.weight"},
                                           {"mlp.gate_proj.weight", "ffn_gate.weight"},
                                           {"mlp.up_proj.weight", "ffn_up.weight"},
                                           {"mlp.down_proj.weight", "ffn_down.weight"}}};
  for (const Pair& p : kTop)
    if (p.hugging_face == name) return GgufName{std::string(p.gguf)};
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return {};
  name.remove_prefix(kLayers.size());
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string_view number = name.substr(0, dot), rest = name.substr(std::min(dot + 1, name.size()));
  for (const Pair& p : kLayer) {
    if (p.hugging_face != rest) continue;
    const int64_t heads = p.gguf == "attn_q.weight"   ? model.heads
                          : p.gguf == "attn_k.weight" ? model.kv_heads
                                                      : 0;
    return GgufName{fmt::format("blk.{}.{}", number, p.gguf), heads};
  }
  return {};
}

int64_t permuted_row(int64_t r, int64_t head_dim) {
  const int64_t in_head = r % head_dim, half = head_dim / 2;
  return r - in_head + in_head % half * 2 + in_head / half;
}

}  // namespace lignum::convert
