// The token ids of a text file, made once and kept: FOLDER/KEY.ids, KEY being a hash of the tokenizer and of
// the text. A file that is damaged, or was written for something else, is written anew.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace lignum::tokenizer {

using Hash128 = std::array<uint64_t, 2>;
Hash128 hash128(std::string_view bytes);  // XXH3
std::string hex(const Hash128& hash);

// $XDG_CACHE_HOME/lignum/tokens, else ~/.cache/lignum/tokens; an error where neither is set.
Result<std::string> token_cache_folder();

class TokenFile {
 public:
  // The ids of the text at `path` with what the tokenizer's template adds; special tokens in the text are
  // text. `tokenizer_hash` is of the tokenizer's file.
  static Result<TokenFile> open(const std::string& path, const Tokenizer& tokenizer,
                                const Hash128& tokenizer_hash, const std::string& folder);

  std::span<const int32_t> ids() const;
  int64_t text_bytes() const { return text_bytes_; }

 private:
  TokenFile(MappedFile file, int64_t text_bytes) : file_(std::move(file)), text_bytes_(text_bytes) {}

  MappedFile file_;
  int64_t text_bytes_ = 0;
};

}  // namespace lignum::tokenizer
