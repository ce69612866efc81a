#include "config/keys.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"

namespace lignum::config {
namespace {

constexpr double kMaxDim = 1 << 24;  // of any tensor dim: products of three stay far inside int64
constexpr double kMaxSteps = 1e12;
constexpr double kMaxSeed = 4294967295.0;  // MaxText's seeds are 32-bit keys
constexpr double kMaxBytes = 0x1p50;
// A key's range is inclusive; the ops' attributes must stay below their bound.
double below(double bound) { return std::nextafter(bound, 0.0); }

// Rows are written as a chain: text("k", "help").of({...}), integer("k", 1, 8, "help").ours("4").
struct Row : Key {
  Row ours(std::string_view text) && {
    default_text = text;
    return std::move(*this);
  }
  Row of(std::vector<std::string_view> words) && {
    allowed = std::move(words);
    return std::move(*this);
  }
  Row or_minus_one() && {
    minus_one = true;
    return std::move(*this);
  }
  Row since(std::string_view reason) && {
    because = reason;
    return std::move(*this);
  }
};

Row row(Type type, std::string_view name, double min, double max, std::string_view help) {
  Row r;
  r.name = name;
  r.type = type;
  r.min = min;
  r.max = max;
  r.help = help;
  return r;
}
Row text(std::string_view name, std::string_view help) { return row(Type::text, name, 0, 0, help); }
Row list(std::string_view name, std::string_view help) { return row(Type::list, name, 0, 0, help); }
Row boolean(std::string_view name, std::string_view help) { return row(Type::boolean, name, 0, 1, help); }
Row integer(std::string_view name, double min, double max, std::string_view help) {
  return row(Type::integer, name, min, max, help);
}
Row real(std::string_view name, double min, double max, std::string_view help) {
  return row(Type::real, name, min, max, help);
}
// A tensor of a layer that remat_policy=custom names.
Row tensor(std::string_view name, std::string_view help) {
  return text(name, help).of({"remat", "device", "offload"});
}
Row bytes(std::string_view name, std::string_view help) { return row(Type::bytes, name, 0, kMaxBytes, help); }

// The part of a mesh axis that lies over slices; the help of its ici_* key says what its ranks share.
Row over_slices(std::string_view name) {
  return integer(name, 1, 65536,
                 "the same ranks in other slices, over the data-centre network; -1: what is left")
      .or_minus_one();
}
constexpr std::string_view kNoExperts = "no model here has experts that ranks could share; leave it out";

// MaxText's keys that Lignum implements. Without ours() the default is MaxText's.
std::vector<Row> maxtext_rows() {
  return {
      text("run_name", "names the run's folder below base_output_directory"),
      text("base_output_directory", "where runs are written").ours("runs"),
      text("model_name", "a preset, or 'default': the base_* keys"),
      boolean("override_model_config", "lets the base_* keys change a preset"),

      integer("steps", 1, kMaxSteps, "training steps"),
      real("per_device_batch_size", 1.0 / 65536, 1e6,
           "rows of a rank and micro-step; a fraction where ranks share rows (ici_context_parallelism, "
           "ici_tensor_parallelism)"),
      integer("max_target_length", 1, 1 << 20, "tokens of a row"),
      integer("gradient_accumulation_steps", 1, 1e6, "micro-steps of a step"),
      text("dataset_type", "synthetic: one random batch again and again; text: train_files")
          .of({"synthetic", "text"})
          .ours("synthetic"),
      text("tokenizer_path",
           "a tokenizer's file or folder; empty: model_path's, where it has one, else bytes"),
      text("tokenizer_type",
           "huggingface: tokenizer.json; sentencepiece: a .model; tiktoken: ranks, cut by tokenizer_pattern; "
           "bytes: none, a token is a byte")
          .of({"huggingface", "sentencepiece", "tiktoken", "bytes"})
          .ours("huggingface"),
      boolean("packing", "rows hold several documents, which attention, positions and loss keep apart")
          .ours("false"),
      text("grain_packing_type",
           "first_fit: each document, or piece of a long one, into the first row with room for it; "
           "concat_then_split: one after the other, cut at each row's end")
          .of({"first_fit", "concat_then_split"}),
      list("train_data_columns", "the field of the text in JSON lines of train_files"),
      list("eval_data_columns", "likewise of eval_files"),
      integer("num_epoch", 1, 1e9, "how often the data is read before it ends; see end_of_data"),
      integer("grain_worker_count", 0, 64,
              "threads of a rank that prepare batches ahead of the step; 0: the rank's own, in the step. The "
              "order of rows does not depend on it")
          .ours("0"),
      boolean("add_bos", "BOS before each text; huggingface: what the file's template has, false: nothing"),
      boolean("add_eos", "EOS behind each text; huggingface: what the file's template has, false: nothing"),
      boolean("enable_data_shuffling", "a new order of the rows each epoch"),
      integer("data_shuffle_seed", 0, kMaxSeed, "seed of that order, and of synthetic tokens"),
      integer("init_weights_seed", 0, kMaxSeed, "seed of the initial weights"),

      boolean("enable_checkpointing", "writes checkpoints and resumes from the last one"),
      integer("checkpoint_period", 1, kMaxSteps, "steps between checkpoints"),
      integer("eval_interval", 1, kMaxSteps, "steps between evaluations; -1: none").or_minus_one(),
      real("target_eval_loss", 0, 1e6, "a run ends once its held-out loss is as low; 0: it does not"),
      integer("eval_steps", 1, kMaxSteps, "batches of an evaluation; -1: all").or_minus_one(),
      boolean("abort_on_nan_loss",
              "a loss or gradient norm that is NaN ends the run; false: its step is skipped"),
      boolean("abort_on_inf_loss", "the same for an infinite one"),
      boolean("skip_step_on_spikes",
              "leaves the update out where loss or gradient norm is far above that of the steps before"),
      integer("skip_step_interval", 2, 1e6, "skip_step_on_spikes: so many steps before"),
      real("skip_step_scaling_factor", 0, 1e6,
           "skip_step_on_spikes: far above is so many standard deviations above their mean"),
      integer("log_period", 1, kMaxSteps, "steps between lines of progress"),
      text("profiler",
           "trace: trace.json in the run's folder, for Perfetto: what the first rank did when, in the last "
           "step that was traced")
          .of({"", "trace"}),

      text("opt_type", "the optimizer: adamw, or sgd without weight decay").of({"adamw", "sgd"}),
      real("learning_rate", 0, 1e3, "the peak of the schedule"),
      text("lr_schedule_type",
           "linear warm-up, then a cosine, or with wsd a constant rate that decays at the end")
          .of({"cosine", "wsd"}),
      real("wsd_decay_steps_fraction", 0, 1, "wsd: the part of the schedule that decays"),
      text("wsd_decay_style", "wsd: the form of that decay").of({"linear", "cosine"}),
      integer("learning_rate_schedule_steps", 1, kMaxSteps, "length of the schedule; -1: steps")
          .or_minus_one(),
      real("warmup_steps_fraction", 0, 1, "the part of the schedule that warms up"),
      real("learning_rate_final_fraction", 0, 1, "of learning_rate, where the schedule ends"),
      real("adam_b1", 0, below(1), "decay of the first moment"),
      real("adam_b2", 0, below(1), "decay of the second moment"),
      real("adam_eps", 0, below(1), "added to the root of the second moment"),
      real("adam_eps_root", 0, below(1), "added under the root of the second moment"),
      real("adam_weight_decay", 0, below(1e3), "decoupled weight decay"),
      text("mu_dtype", "of AdamW's first moment; empty: float32, as the weights")
          .of({"", "float32", "bfloat16"}),
      list("adamw_mask", "regular expressions of parameter names that are not decayed"),
      real("gradient_clipping_threshold", 0, 1e9, "largest global norm of the gradient; 0: no clipping"),

      real("z_loss_multiplier", 0, 1e3, "of the squared log-sum-exp of a token's logits, added to its loss"),
      integer(
          "num_vocab_tiling", 0, 1 << 20,
          "tiles of a rank's tokens whose logits are held one after the other; 1: all at once; 0: up to 8")
          .ours("0"),
      text("remat_policy", "what the backward pass recomputes")
          .of({"none", "full", "minimal", "minimal_with_context", "minimal_flash",
               "minimal_with_quantization", "minimal_with_context_and_quantization",
               "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_dot_except_mlp",
               "save_qkv_proj", "save_out_proj", "qkv_proj_offloaded", "minimal_offloaded", "custom"}),
      text("decoder_layer_input", "where remat_policy=custom keeps each layer's input")
          .of({"device", "offload"}),
      tensor("context", "attention's output and the logarithms of its sums"),
      tensor("query_proj", "the queries"),
      tensor("key_proj", "the keys"),
      tensor("value_proj", "the values"),
      tensor("kv_proj", "keys and values of one projection"),
      tensor("qkv_proj", "queries, keys and values of one projection (fused_qkv)"),
      tensor("out_proj", "attention's output projection"),
      tensor("mlpwi_0", "the MLP's gate"),
      tensor("mlpwi_1", "what the gate multiplies"),
      tensor("mlpwi", "the first projection of an MLP without a gate, or of both (fused_mlp)"),
      tensor("mlpwo", "the MLP's last projection"),
      tensor("attention_out", "attention's output, before its projection"),
      tensor("moe_mlpwi_0", "the experts' gates"),
      tensor("moe_mlpwi_1", "what those multiply"),
      tensor("moe_mlpwo", "the experts' last projections"),
      tensor("mla_q", "the queries of latent attention"),
      tensor("mla_kv", "its keys and values"),
      tensor("query_wa_proj", "its queries' first projection"),
      tensor("kv_wa_proj", "its keys' and values' first projection"),
      tensor("engram", "engram memory"),
      tensor("indexer_cutoff_threshold", "thresholds of sparse attention"),
      boolean("optimizer_memory_host_offload",
              "the optimizer's moments lie in host_memory, fetched for the update a layer at a time"),
      boolean("parameter_memory_host_offload",
              "the parameters lie in host_memory, fetched where they are used a layer at a time"),
      text("dtype", "of operands and activations").of({"float32", "bfloat16"}).ours("float32"),
      text("weight_dtype", "of the master weights").of({"float32"}),
      boolean("use_qwix_quantization", "quantised training by Qwix's rules; `quantization` says which"),
      text("quantization",
           "of dots in decoder layers, with use_qwix_quantization: fp8_full: E4M3 with E5M2 gradients; fp8, "
           "fp8_e4m3: "
           "E4M3; fp8_e5m2: E5M2; empty: none"),
      text("weight_quantization_calibration_method",
           "what fills the format, with fp8_full: absmax, absmax,k, rms,k, fixed,-m,m or static[,k]"),
      text("act_quantization_calibration_method", "likewise of activations"),
      text("bwd_quantization_calibration_method", "likewise of the gradients that come into backward dots"),
      text("attention", "the attention kernel; autoselected takes dot_product")
          .of({"autoselected", "dot_product"}),
      integer("ici_data_parallelism", 1, 65536, "ranks that hold the same weights; -1: what is left")
          .or_minus_one(),
      integer("ici_fsdp_parallelism", 1, 65536, "ranks that share the weights; -1: what is left")
          .or_minus_one(),
      integer("ici_fsdp_transpose_parallelism", 1, 65536,
              "ranks that share the weights' other dim (heads, mlp, vocab); -1: what is left")
          .or_minus_one(),
      integer("ici_context_parallelism", 1, 65536,
              "ranks that share the tokens of each row, in attention too; -1: what is left")
          .or_minus_one(),
      text("context_parallel_strategy",
           "how attention gets at the keys of other ranks' tokens: all_gather, or ring: shard after shard")
          .of({"all_gather", "ring"}),
      boolean("context_parallel_load_balance",
              "a rank has a piece from either end of the row, so that all have as much to do in attention"),
      boolean("shard_optimizer_over_data",
              "ZeRO-1: ranks of the data axis store parts of weights and moments, gathered once a step"),
      integer("ici_tensor_parallelism", 1, 65536,
              "ranks that share heads and mlp of a layer, and the tokens between; -1: what is left")
          .or_minus_one(),
      integer("ici_pipeline_parallelism", 1, 65536,
              "stages, each with a part of the layers; -1: what is left")
          .or_minus_one(),
      integer("ici_expert_parallelism", 1, 1, "ranks that share experts: 1, there are none")
          .since(kNoExperts),
      over_slices("dcn_data_parallelism"),
      over_slices("dcn_fsdp_parallelism"),
      over_slices("dcn_fsdp_transpose_parallelism"),
      over_slices("dcn_context_parallelism"),
      over_slices("dcn_tensor_parallelism"),
      over_slices("dcn_pipeline_parallelism"),
      integer("dcn_expert_parallelism", 1, 1, "likewise over slices").since(kNoExperts),
      integer(
          "num_layers_per_pipeline_stage", 1, 65536,
          "layers that a stage runs on a microbatch before it sends it on, with pipeline_schedule=circular"),
      integer("num_pipeline_repeats", 1, 65536,
              "times that a microbatch goes round the stages; -1: layers / (stages x "
              "num_layers_per_pipeline_stage)")
          .or_minus_one(),
      integer("num_pipeline_microbatches", 1, 65536,
              "parts of the rows of the ranks of a pipeline; a multiple of its stages; -1: as many as stages")
          .or_minus_one(),
      text("compile_xla_flags",
           "of 'lignum compile', and of verify-mesh with target=pjrt: flags of XLA, "
           "--xla_tpu_scoped_vmem_limit_kib=65472, say"),
      text("compile_topology", "compile for it ahead of time: tpu7x-8 (devices) or tpu7x:2x2x1 (chips)"),
      integer("compile_topology_num_slices", 1, 65536,
              "slices of compile_topology, joined by the data-centre network; -1: one")
          .or_minus_one(),

      integer("base_emb_dim", 1, kMaxDim, "width of the model"),
      integer("base_num_query_heads", 1, 65536, "query heads"),
      integer("base_num_kv_heads", 1, 65536, "key and value heads; divide the query heads"),
      integer("head_dim", 2, 65536, "width of a head; even"),
      integer("base_mlp_dim", 1, kMaxDim, "width of the MLP"),
      integer("base_num_decoder_layers", 1, 65536, "layers"),
      integer("vocab_size", 1, kMaxDim, "tokens of the vocabulary"),
      real("normalization_layer_epsilon", 0, below(1), "added to the mean square in RMS norm"),
      real("rope_max_timescale", 1, 1e12, "theta of the rotary embedding"),
      boolean("logits_via_embedding", "the head's weight is the embedding's"),
  };
}

std::vector<Row> own_rows() {
  return {
      text("model_path", "a Hugging Face folder: config.json and safetensors").ours(""),
      list("train_files",
           "files or globs that are trained on, with dataset_type=text: text, .jsonl, or token ids as .npy, "
           ".bin (llm.c, nanoGPT) or .docs")
          .ours("[]"),
      list("train_weights",
           "parts of the rows that each entry of train_files gives; []: all files are one source")
          .ours("[]"),
      list("eval_files", "held-out files or globs; NAME=FILE: of a set with that name").ours("[]"),
      integer("document_separator", 0, kMaxDim, "the id that ends a document in .npy and .bin; -1: none")
          .or_minus_one()
          .ours("-1"),
      text("end_of_data",
           "after num_epoch epochs (of a mixture: of the source that is used up first): repeat: go on; stop: "
           "end "
           "the run; error: refuse a run of more steps")
          .of({"repeat", "stop", "error"})
          .ours("repeat"),
      real("momentum", 0, below(1), "sgd: decay of the sum of gradients, as optax names it; 0: no such sum")
          .ours("0"),
      boolean("nesterov", "sgd: the momentum's step is taken ahead, as optax does").ours("false"),
      text("nu_dtype", "of AdamW's second moment; bfloat16 needs adam_b2 <= 0.99609375")
          .of({"float32", "bfloat16"})
          .ours("float32"),
      integer("eval_patience", 0, kMaxSteps,
              "evaluations in a row without a new lowest held-out loss that end a run; 0: none do")
          .ours("0"),
      integer("ranks", 1, 65536, "ranks of a native run; -1: what the mesh asks for")
          .or_minus_one()
          .ours("-1"),
      text("pipeline_schedule",
           "circular: stages take num_layers_per_pipeline_stage layers in turn, until none is left, as in "
           "MaxText; gpipe: a stage has its layers in one piece")
          .of({"circular", "gpipe"})
          .ours("circular"),
      text("tokenizer_pattern", "how texts are cut for a tiktoken rank file, and its special tokens")
          .of({"llama3", "gpt2", "cl100k", "o200k"})
          .ours("llama3"),
      text("comm",
           "what joins the ranks: threads of one process, or mpi (a process each); auto: mpi under mpiexec, "
           "else "
           "threads")
          .of({"auto", "threads", "mpi"})
          .ours("auto"),
      bytes("link_bandwidth",
            "CPU ranks: collectives take the time of a link of so many bytes a second each way, 1GiB say; 0: "
            "as fast as this machine moves them")
          .ours("0"),
      real("link_latency", 0, 10, "with link_bandwidth: seconds that each hop takes besides").ours("0"),
      integer("threads", 0, 4096, "threads of a rank; 0: the machine's cores divided by the ranks").ours("0"),
      text("target", "what runs the step: own kernels, a PJRT plug-in, or a TPU")
          .of({"cpu", "pjrt", "tpu"})
          .ours("cpu"),
      text("plugin", "path of the PJRT plug-in; empty: an environment variable, then the build's own")
          .ours(""),
      text("spec", "hardware specification: a name or a path; empty: this machine's, as calibrated").ours(""),
      bytes("device_memory", "memory budget of a rank, 8GiB say; 0: what the specification says").ours("0"),
      text("host_memory",
           "where offloaded tensors lie: ram, or file:FOLDER, a nameless file there that goes with the "
           "process")
          .ours("ram"),
      integer("prefetch_distance", 0, 8,
              "layers whose weights are gathered, and what is offloaded fetched, ahead of use")
          .ours("1"),
      text("quantization_rules",
           "a file of quantization rules beside or instead of `quantization`, before it: a JSON list of "
           "objects with "
           "Qwix's names (docs/fp8.md)")
          .ours(""),
      text("quantization_scales",
           "with `quantization`: axis: each index of dims that are not contracted has its own, as in Qwix; "
           "tensor: one a tensor; blockwise: 1 x 128 of activations and gradients, 128 x 128 of weights")
          .of({"axis", "tensor", "blockwise"})
          .ours("axis"),
      text("save_quant_stats_path",
           "a file into which a run writes how far each operand of a quantised dot reached, layer by layer")
          .ours(""),
      text("load_quant_stats_path", "such a file: the ranges of calibrations that are static").ours(""),
      boolean(
          "quantization_metrics",
          "what saturates and underflows in each operand of a quantised dot, its scale and relative error, "
          "layer by layer, in quantization.jsonl on the steps that get a line")
          .ours("false"),
      text("bwd_stochastic_rounding",
           "with `quantization`: uniform: gradients go up or down by chance, the nearer 8-bit float being "
           "more "
           "likely; none: to the nearest")
          .of({"none", "uniform"})
          .ours("none"),
      integer("stochastic_rounding_seed", 0, kMaxSeed, "seed of that, also where a rule asks for it")
          .ours("0"),
      integer("num_layers_at_start_in_bf16", 0, 1 << 16,
              "the first layers whose dots stay as they are where others are quantised")
          .ours("0"),
      integer("num_layers_at_end_in_bf16", 0, 1 << 16, "likewise the last layers").ours("0"),
      text("fp8_accumulation",
           "of dots of 8-bit floats on a CPU: fp32: exact products, sums in f32; fp16_64: fp16 FMA, promoted "
           "to "
           "f32 every 64 products, where the CPU has AVX512-FP16")
          .of({"fp32", "fp16_64"})
          .ours("fp32"),
      text("fuse", "nodes that are one for the CPU's kernels, with the bits of their parts")
          .of({"on", "off"})
          .ours("on"),
      text("overlap", "communication under compute").of({"on", "off"}).ours("on"),
      text("isa", "instructions of the kernels; auto: the best of this CPU")
          .of({"auto", "scalar", "avx2", "avx512"})
          .ours("auto"),
      text("bf16_dot",
           "how dots of bf16 are taken on a CPU; auto: the fastest way, as calibrated or else probed")
          .of({"auto", "fma", "vdpbf16ps", "amx"})
          .ours("auto"),
      text("resume_kernels", "on a resume where kernels differ: choose anew, or refuse with 'exact'")
          .of({"anew", "exact"})
          .ours("anew"),
  };
}

// One CSV line into two fields; a quoted field may hold commas and doubled quotes. No field spans lines.
std::pair<std::string, std::string> csv_fields(std::string_view line) {
  std::string fields[2];
  size_t field = 0;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        fields[field] += '"';
        ++i;
      } else {
        quoted = !quoted;
      }
    } else if (line[i] == ',' && !quoted) {
      LIGNUM_CHECK(++field < 2, "maxtext_keys.csv: {}", line);
    } else {
      fields[field] += line[i];
    }
  }
  LIGNUM_CHECK(field == 1 && !quoted, "maxtext_keys.csv: {}", line);
  return {fields[0], fields[1]};
}

// The texts of the CSV, decoded once; the table's string_views point here.
const std::vector<std::pair<std::string, std::string>>& maxtext_defaults() {
  static const std::vector<std::pair<std::string, std::string>> kDefaults = [] {
    std::vector<std::pair<std::string, std::string>> rows;
    std::string_view rest = kMaxTextKeysCsv;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (!line.empty() && line[0] != '#' && line != "key,default") rows.push_back(csv_fields(line));
    }
    return rows;
  }();
  return kDefaults;
}

std::string_view without_quotes(std::string_view text) {
  if (text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0]) {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

std::vector<Key> make_table() {
  std::map<std::string_view, std::string_view> defaults(maxtext_defaults().begin(), maxtext_defaults().end());
  std::vector<Key> table;
  for (Row& r : maxtext_rows()) {
    const auto it = defaults.find(r.name);
    LIGNUM_CHECK(it != defaults.end(), "'{}' is not a key of MaxText", r.name);
    r.source = Source::maxtext;
    r.maxtext_default = it->second;
    // No ours(): the view is still null, not merely empty.
    if (r.default_text.data() == nullptr) r.default_text = without_quotes(it->second);
    defaults.erase(it);
    table.push_back(std::move(r));
  }
  for (Row& r : own_rows()) {
    LIGNUM_CHECK(!defaults.contains(r.name), "'{}' is a key of MaxText", r.name);
    table.push_back(std::move(r));
  }
  for (const Key& key : table) {
    const auto value = parse_value(key, key.default_text);
    LIGNUM_CHECK(value.ok(), "the default of {}: {}", key.name, value.status().message());
  }
  for (const auto& [name, text] : maxtext_defaults()) {
    if (!defaults.contains(name)) continue;
    Key known;
    known.name = name;
    known.default_text = known.maxtext_default = text;
    known.source = Source::maxtext;
    known.support = Support::known;
    table.push_back(std::move(known));
  }
  return table;
}

}  // namespace

const std::vector<Key>& key_table() {
  static const std::vector<Key> kTable = make_table();
  return kTable;
}

const Key* find_key(std::string_view name) {
  static const std::map<std::string_view, const Key*> kIndex = [] {
    std::map<std::string_view, const Key*> index;
    for (const Key& key : key_table()) index.emplace(key.name, &key);
    return index;
  }();
  const auto it = kIndex.find(name);
  return it == kIndex.end() ? nullptr : it->second;
}

Status unknown_key(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Key& key : key_table()) names.push_back(key.name);
  return user_error("unknown key '{}'{}", shown(name), nearest_hint(name, names));
}

Result<std::string> explain(std::string_view key) {
  const Key* row = find_key(key);
  if (row == nullptr) return unknown_key(key);
  if (row->support == Support::known) {
    return fmt::format("{}: a key of MaxText (default {}) that Lignum does not implement\n", row->name,
                       row->maxtext_default);
  }
  std::string text = fmt::format("{}: {}\n  {}, default {}\n", row->name, row->help, allowed_text(*row),
                                 row->default_text.empty() ? "(empty)" : row->default_text);
  if (row->source == Source::own) {
    text += "  Lignum's own key\n";
  } else if (row->default_text == without_quotes(row->maxtext_default)) {
    text += "  MaxText's key and default\n";
  } else {
    text += fmt::format("  MaxText's key; its default there is {}\n", row->maxtext_default);
  }
  return text;
}

}  // namespace lignum::config
