// Which parameters a model has, and their names, shapes and places in files.
#include <fmt/format.h>

#include <algorithm>

#include "models/table.h"

namespace lignum::models {
namespace {

using config::ModelConfig;
using Init = Parameter::Init;
using Names = std::vector<std::string>;
using Dims = std::vector<int64_t>;

// Rows of one model. A family adds those of its layers by `add`, `norm` and the like.
class Table {
 public:
  explicit Table(const ModelConfig& m) : m_(m) {}

  std::vector<Row> rows() {
    const int64_t e = m_.hidden;
    const bool gpt2 = input_major(m_);
    top("embed", gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", {m_.vocab_size, e},
        {"vocab", "embed"}, Init::normal);
    if (m_.learnt_positions)
      top("position", "transformer.wpe.weight", {m_.max_position, e}, {"", "embed"}, Init::normal);
    const std::vector<LayerRange> ranges = layer_ranges(m_);
    for (size_t r = 0; r < ranges.size(); ++r) {
      for (int64_t member = 0; member < ranges[r].period; ++member) {
        at(r, ranges[r], member);
        if (gpt2) {
          gpt2_layer();
        } else {
          llama_layer();
        }
      }
    }
    top("norm", gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", {e}, {"norm"}, norm_init());
    rows_.back().adds_one = m_.norm_plus_one;
    if (m_.norm == config::Norm::layer) top("normb", "transformer.ln_f.bias", {e}, {"norm"}, Init::zeros);
    if (!m_.tie_embeddings)
      top("head", "lm_head.weight", {m_.vocab_size, e}, {"vocab", "embed"}, Init::normal);
    return std::move(rows_);
  }

 private:
  void top(std::string key, std::string file, Dims dims, Names names, Init init) {
    rows_.push_back(
        {{std::move(file), std::move(dims), std::move(names), false, init}, Slot::top, std::move(key)});
  }

  // The rows that follow are of one layer of a range's body, stacked over the trips.
  void at(size_t r, const LayerRange& range, int64_t member) {
    first_ = range.first + member;
    range_ = &range;
    range_number_ = r;
    member_ = member;
    number_ = "{}";
    if (range.trip == 1) {
      number_ = std::to_string(first_);
    } else if (range.period > 1 || first_ > 0) {
      number_ = fmt::format("{{{}i+{}}}", range.period, first_);
    }
  }
  void add(std::string key, const std::string& file, Dims dims, Names names, Init init) {
    dims.insert(dims.begin(), range_->trip);
    names.insert(names.begin(), "layers");
    const std::string_view block = input_major(m_) ? "transformer.h." : "model.layers.";
    Row row;
    row.parameter = {fmt::format("{}{}.{}", block, number_, file),
                     std::move(dims),
                     std::move(names),
                     true,
                     init,
                     first_,
                     range_->period};
    row.slot = Slot::layer;
    row.key = std::move(key);
    row.range = range_number_;
    row.member = member_;
    rows_.push_back(std::move(row));
  }
  void norm(std::string key, const std::string& file, int64_t size) {
    add(std::move(key), file + ".weight", {size}, {"norm"}, norm_init());
    rows_.back().adds_one = m_.norm_plus_one;
  }

  void llama_layer() {
    const int64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim, e = m_.hidden;
    norm("ln1", "input_layernorm", e);
    add("q", "self_attn.q_proj.weight", {q, e}, {"q_heads", "embed"}, Init::normal);
    add("k", "self_attn.k_proj.weight", {kv, e}, {"kv_heads", "embed"}, Init::normal);
    add("v", "self_attn.v_proj.weight", {kv, e}, {"kv_heads", "embed"}, Init::normal);
    add("o", "self_attn.o_proj.weight", {e, q}, {"embed", "q_heads"}, Init::normal);
    if (m_.attention_bias) {
      add("qb", "self_attn.q_proj.bias", {q}, {"q_heads"}, Init::zeros);
      add("kb", "self_attn.k_proj.bias", {kv}, {"kv_heads"}, Init::zeros);
      add("vb", "self_attn.v_proj.bias", {kv}, {"kv_heads"}, Init::zeros);
      add("ob", "self_attn.o_proj.bias", {e}, {"norm"}, Init::zeros);
    }
    if (m_.qk_norm) {
      norm("qn", "self_attn.q_norm", m_.head_dim);
      norm("kn", "self_attn.k_norm", m_.head_dim);
    }
    // Where results are normed too, the file's post_attention_layernorm is that of attention's.
    if (m_.post_norms) {
      norm("post1", "post_attention_layernorm", e);
      norm("ln2", "pre_feedforward_layernorm", e);
      norm("post2", "post_feedforward_layernorm", e);
    } else {
      norm("ln2", "post_attention_layernorm", e);
    }
    add("gate", "mlp.gate_proj.weight", {m_.mlp, e}, {"mlp", "embed"}, Init::normal);
    add("up", "mlp.up_proj.weight", {m_.mlp, e}, {"mlp", "embed"}, Init::normal);
    add("down", "mlp.down_proj.weight", {e, m_.mlp}, {"embed", "mlp"}, Init::normal);
    if (m_.mlp_bias) {
      add("gateb", "mlp.gate_proj.bias", {m_.mlp}, {"mlp"}, Init::zeros);
      add("upb", "mlp.up_proj.bias", {m_.mlp}, {"mlp"}, Init::zeros);
      add("downb", "mlp.down_proj.bias", {e}, {"norm"}, Init::zeros);
    }
  }

  // Weight [in, out] and bias.
  void conv1d(const std::string& key, const std::string& file, int64_t in, int64_t out, const char* in_name,
              const char* out_name) {
    add(key, file + ".weight", {in, out}, {in_name, out_name}, Init::normal);
    add(key + "b", file + ".bias", {out}, {out_name}, Init::zeros);
  }
  void layer_norm(const std::string& key, const std::string& file) {
    norm(key, file, m_.hidden);
    add(key + "b", file + ".bias", {m_.hidden}, {"norm"}, Init::zeros);
  }
  // GPT-2's: queries, keys and values are columns of one tensor of the file.
  void gpt2_layer() {
    const int64_t e = m_.hidden, q = m_.heads * m_.head_dim;
    layer_norm("ln1", "ln_1");
    const struct {
      const char *key, *name, *logical;
    } parts[] = {{"q", "query", "q_heads"}, {"k", "key", "kv_heads"}, {"v", "value", "kv_heads"}};
    const auto part = [&](int64_t i, const char* tensor) {
      Parameter& p = rows_.back().parameter;
      p.file = fmt::format("transformer.h.{}.attn.c_attn.{}", number_, tensor);
      p.first_column = i * q;
      p.file_columns = 3 * q;
    };
    for (int64_t i = 0; i < 3; ++i) {
      add(parts[i].key, fmt::format("attn.c_attn.{}.weight", parts[i].name), {e, q},
          {"embed", parts[i].logical}, Init::normal);
      part(i, "weight");
    }
    for (int64_t i = 0; i < 3; ++i) {
      add(fmt::format("{}b", parts[i].key), fmt::format("attn.c_attn.{}.bias", parts[i].name), {q},
          {parts[i].logical}, Init::zeros);
      part(i, "bias");
    }
    conv1d("o", "attn.c_proj", q, e, "q_heads", "embed");
    layer_norm("ln2", "ln_2");
    conv1d("up", "mlp.c_fc", e, m_.mlp, "embed", "mlp");
    conv1d("down", "mlp.c_proj", m_.mlp, e, "mlp", "embed");
  }

  Init norm_init() const { return m_.norm_plus_one ? Init::zeros : Init::ones; }

  const ModelConfig& m_;
  std::vector<Row> rows_;
  const LayerRange* range_ = nullptr;
  size_t range_number_ = 0;
  int64_t first_ = 0, member_ = 0;
  std::string number_;
};

}  // namespace

bool is_buffer(const ModelConfig& model, std::string_view name) {
  if (input_major(model)) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with("rotary_emb.inv_freq");
}

std::vector<Row> table(const ModelConfig& model) { return Table(model).rows(); }

bool input_major(const ModelConfig& model) { return model.family == "gpt2"; }

namespace {

// Of the layers from `begin` to before `end`.
std::vector<LayerRange> ranges_between(const ModelConfig& m, int64_t begin, int64_t end) {
  for (int64_t period = 1; period <= std::min(kMaxPeriod, end - begin); ++period) {
    bool repeats = true;
    for (int64_t i = begin + period; i < end; ++i) repeats = repeats && m.slides(i) == m.slides(i - period);
    if (!repeats) continue;
    std::vector<LayerRange> ranges = {{begin, period, (end - begin) / period}};
    if (const int64_t rest = (end - begin) % period; rest > 0) ranges.push_back({end - rest, rest, 1});
    return ranges;
  }
  std::vector<LayerRange> runs;
  for (int64_t i = begin; i < end; ++i) {
    if (i == begin || m.slides(i) != m.slides(i - 1)) runs.push_back({i, 1, 0});
    ++runs.back().trip;
  }
  return runs;
}

}  // namespace

std::vector<LayerRange> layer_ranges(const ModelConfig& m) {
  std::vector<LayerRange> ranges;
  int64_t begin = 0;
  const auto until = [&](int64_t end) {
    const std::vector<LayerRange> more = ranges_between(m, begin, end);
    ranges.insert(ranges.end(), more.begin(), more.end());
    begin = end;
  };
  for (const int64_t layer : m.loop_breaks.at) until(layer);
  until(m.layers);
  return ranges;
}

std::string Parameter::file_name(int64_t i) const {
  const std::string& name = file.empty() ? pattern : file;
  const size_t open = name.find('{');
  if (open == std::string::npos) return name;
  return name.substr(0, open) + std::to_string(first + i * stride) + name.substr(name.find('}') + 1);
}

std::vector<Parameter> parameters(const ModelConfig& model) {
  std::vector<Parameter> out;
  for (Row& row : table(model)) out.push_back(std::move(row.parameter));
  return out;
}

}  // namespace lignum::models
