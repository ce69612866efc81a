// A GGUF file of a Llama read as what a Hugging Face folder says. The families that llama.cpp calls "llama"
// (Llama, SmolLM2, ...) are taken; any key of theirs that is not known and could change the mathematics is
// refused by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/gguf.h"
#include "base/status.h"
#include "config/model_config.h"

namespace lignum::convert {

// From general.architecture and llama.*; without a tensor output.weight the head is tied. The lengths of
// lists and the tensors' shapes are not its business.
Result<config::ModelConfig> model_from_gguf(const GgufReader& file);

// llama.cpp's name of a Hugging Face tensor, and what must be done with its rows:
// "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight". Nothing where there is no such name.
struct GgufName {
  std::string name;
  int64_t interleaved_heads = 0;  // of queries and keys, whose rows stand as permuted_row says; else 0
};
std::optional<GgufName> gguf_name(const config::ModelConfig& model, std::string_view hugging_face);

// llama.cpp turns neighbouring rows of a head by one angle (2 i and 2 i + 1), Hugging Face those half a head
// apart (i and i + dim / 2): the file's rows are permuted for that, and this is the file's row that is row r.
int64_t permuted_row(int64_t r, int64_t head_dim);

// tokenizer.json of a byte-level BPE (tokenizer.ggml.model "gpt2"), from its tokens, merges and
// pre-tokeniser; and tokenizer_config.json, which transformers reads special tokens and chat template from.
// An unknown pre-tokeniser is refused by its name, and so are other models' tokens.
struct TokenizerFiles {
  std::string tokenizer, config;
};
Result<TokenizerFiles> tokenizer_from_gguf(const GgufReader& file);

}  // namespace lignum::convert
