// From a model description to the GLOBAL forward graph, and from its parameters to a checkpoint's tensors.
// Knows families; knows no machine, mesh or optimiser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "config/model_config.h"
#include "ir/graph.h"

namespace lignum::models {

// A parameter of the graph. Its param in the graph has the name `pattern`; layer parameters are stacked,
// dims[0] counts layers, and braces in the pattern stand for the layer's number in Hugging Face's names: "{}"
// for dims[0]'s index i itself, "{6i+2}" where a body holds six layers and this is its third. Weights are
// [out, in], GPT-2's [in, out], as their files have them.
struct Parameter {
  std::string pattern;             // "model.layers.{}.self_attn.q_proj.weight"
  std::vector<int64_t> dims;       // [layers, out, in], [out, in] or [dim]
  std::vector<std::string> names;  // logical names, MaxText's
  bool stacked = false;
  enum class Init : uint8_t { normal, ones, zeros } init = Init::normal;
  int64_t first = 0, stride = 1;  // index i of dims[0] is layer first + i * stride
  // A tensor of the file may hold several parameters side by side: this one is its columns (of the last dim)
  // first_column to first_column + dims.back() of file_columns, under the name `file`. 0: the whole tensor,
  // under the name `pattern`.
  std::string file = {};
  int64_t first_column = 0, file_columns = 0;
  // The file's name at index i of dims[0] (or of the whole, when not stacked).
  std::string file_name(int64_t i) const;
};

// A tensor that older files have beside the parameters, and that is computed: rotary frequencies, GPT-2's
// masks.
bool is_buffer(const config::ModelConfig& model, std::string_view name);

// Layers that differ (sliding and full ones) stand in one body in the order of the model: a range is `trip`
// times a body of the `period` layers from `first` on. At most kMaxPeriod in a body; a model whose layers do
// not repeat that soon is cut where the kind changes. No range goes over one of ModelConfig::loop_breaks.
struct LayerRange {
  int64_t first, period, trip;
};
inline constexpr int64_t kMaxPeriod = 8;
std::vector<LayerRange> layer_ranges(const config::ModelConfig& model);

// In the order of the graph's params.
std::vector<Parameter> parameters(const config::ModelConfig& model);

struct Shape {
  int64_t batch = 1;  // rows over all ranks, one micro-step
  int64_t sequence = 1;
  DType dtype = DType::f32;    // of activations and of the weights' operands; masters are f32
  int64_t loss_tile = 0;       // tokens of a rank whose logits are held at a time; 0: all of them
  bool rounding_keys = false;  // made of each row's ids, for gradients that are rounded by chance
  bool segmented = false;      // a row may hold several documents, which attention keeps apart
  double z_loss = 0;           // what squares of log-sum-exps are multiplied by; not in Head::loss
};

// What stands at the end. logits and whole ones (loss_tile = 0): matmul, then cross_entropy; else
// linear_cross_entropy.
enum class Head : uint8_t {
  loss,       // the loss alone
  gradients,  // the loss, of which gradients will be taken
  logits,     // gradients, and the logits as an output
};

// loss_tile for a micro-step of that many tokens on a rank and a number of tiles (num_vocab_tiling): 1 is the
// whole, 0 stands for at most 8 tiles of at least 256 tokens. The head's gradient is read and written once a
// tile.
int64_t loss_tile(int64_t tokens, int64_t tiles);

// Params: the parameters (f32), then "input_ids", "labels" and "positions" (i32 [batch, sequence]; label -100
// = not supervised, labels are shifted already); where rows are segmented also "segments", likewise: the
// number of each token's document. Outputs: "loss_sum" (f32, over supervised tokens), "tokens" (f32, their
// number), with z_loss "z_loss_sum" (f32, to be differentiated beside loss_sum) and, when wanted, "logits"
// [batch, sequence, vocab].
ir::Graph forward(const config::ModelConfig& model, const Shape& shape, Head head);

// A step of generation: the next tokens of `rows` sequences, whose keys and values stay in a cache between
// steps.
struct GenerationShape {
  int64_t rows = 1;
  int64_t tokens = 1;        // of a row and step at most: many while a prompt is read, then 1
  int64_t capacity = 1;      // positions of the cache
  DType dtype = DType::f32;  // of weights, activations and cache: nothing is converted in a step
};

// Params: the parameters, in the shape's dtype (but a norm that adds one: f32); "cache:key" and "cache:value"
// [layers, rows, capacity, kv_heads, head_dim], or one of each a layer of a body, "cache:key.N" with N the
// first of its layers, where not all layers are one loop's; "input_ids" i32 [rows, tokens]; "start" and
// "count" i32 [rows]: row r's tokens are the first count[r] of its ids (the others are padding, any id), and
// stand at positions start[r] on. Outputs: "logits" f32 [rows, vocab] of each row's last token (of no meaning
// where count is 0), and the caches, in their params' place. The parameters and the caches come first: steps
// of one model, rows, capacity and dtype can share their memory, whatever their tokens are. Rotary
// frequencies that depend on a text's length are those of a text of `capacity` tokens.
ir::Graph generation_step(const config::ModelConfig& model, const GenerationShape& shape);

// Adds 1 for each multiplication and addition of the matmuls and attention of one training step, as MaxText
// counts (maxtext_utils.calculate_tflops_training_per_device: 3 x forward, causal attention halved, no
// recompute, no norms); of a sliding layer what lies in its window, s w - w^2 / 2 pairs of s positions.
double training_flops(const config::ModelConfig& model, int64_t rows, int64_t sequence);

}  // namespace lignum::models
