// Learns a byte-level BPE vocabulary from texts.
//
// The vocabulary is: the special tokens in the given order, the 256 bytes in the order of the characters that
// stand for them, and one token a merge. The next merge is that of the pair that occurs most often inside the
// pieces of the pre-tokeniser (overlapping ones counted, as in aaa: aa twice); of equally frequent pairs,
// that with the smaller left id, then the smaller right id. These are the rules of Hugging Face's BpeTrainer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "tokenizer/scanner.h"

namespace lignum::tokenizer {

struct BpeTrainerOptions {
  int64_t vocab_size = 0;  // with specials and bytes: at least their number
  Scanner scanner = Scanner::gpt2;
  std::vector<std::string> special_tokens;
  int64_t min_frequency = 2;  // rarer pairs are not merged: the vocabulary may end up smaller
};

struct TrainedBpe {
  Scanner scanner = Scanner::gpt2;
  size_t specials = 0;  // the first tokens
  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> merges;
};

// Texts are UTF-8, read as Tokenizer::encode reads them. The result depends on texts and options only: not on
// the pool's threads, nor on the order of the texts.
Result<TrainedBpe> train_bpe(std::span<const std::string_view> texts, const BpeTrainerOptions& options,
                             Parallel& pool);

// The text of a tokenizer.json that encodes with it.
std::string to_json(const TrainedBpe& trained);

}  // namespace lignum::tokenizer
