// The tokenizer of a run: what its configuration names, with the file's text for its checkpoints.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "tokenizer/token_file.h"
#include "tokenizer/tokenizer.h"

namespace lignum::train {

struct RunTokenizer {
  std::string path;
  std::string file_name,
      bytes;                  // what a checkpoint carries: tokenizer.json, also for ranks, or tokenizer.model
  tokenizer::Hash128 hash{};  // of the file and of what stands around a text
  tokenizer::Tokenizer tokenizer;
};
// Null: a token is a byte.
using SharedTokenizer = std::shared_ptr<const RunTokenizer>;

// tokenizer_path (a file, or a folder with one), read as tokenizer_type says, else model_path's file, where
// there is one; add_bos and add_eos say what stands around a text. Only dataset_type=text has a tokenizer.
// Its ids must fit the model's vocabulary.
Result<SharedTokenizer> find_tokenizer(const config::Config& config, int64_t model_vocab_size);

// What reads text for the weights in `folder`: the tokenizer there, which `own` may repeat but not
// contradict; else `own`.
Result<SharedTokenizer> tokenizer_of_weights(const std::string& folder, SharedTokenizer own,
                                             const config::Config& config, int64_t model_vocab_size);

}  // namespace lignum::train
