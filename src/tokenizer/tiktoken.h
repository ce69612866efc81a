// tiktoken's rank files: a line a token, its bytes in base64, a space, its rank. The rank is the token's id,
// and the order of merges: of two neighbours whose bytes together are a token, those of the least rank are
// joined first. How texts are cut and which tokens are special stands in no file; a kind brings both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::tokenizer {

enum class TiktokenKind : uint8_t {
  llama3,  // 256 special tokens behind the ranks
  gpt2,    // r50k and p50k
  cl100k,  // GPT-4
  o200k,   // GPT-4o
};

// By the name that the key tokenizer_pattern has; the names that are allowed.
const std::vector<std::string>& tiktoken_kind_names();
Result<TiktokenKind> tiktoken_kind(std::string_view name);

struct TiktokenEnds {
  std::string_view bos, eos;  // empty: the kind has none
};
TiktokenEnds tiktoken_ends(TiktokenKind kind);

// Whether the first line is one of a rank file.
bool looks_like_ranks(std::string_view bytes);

// The tokenizer.json that encodes with these ranks: each token's merges are all its cuts in two, in the order
// of the token's rank. BOS stands in its template. Errors name the line.
Result<std::string> tiktoken_to_json(std::string_view ranks, TiktokenKind kind);

}  // namespace lignum::tokenizer
