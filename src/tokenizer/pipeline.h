// tokenizer.json as an engine: added tokens, normaliser, pre-tokeniser, BPE, decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/engine.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace lignum::tokenizer {

// What a tokenizer.json says beside its model, checked part by part.
struct Parts {
  Normalizer normalizer;
  std::vector<AddedToken> added;  // by id, in a Pipeline
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  std::vector<std::pair<std::string, std::string>> description;
};

class Pipeline final : public Engine {
 public:
  static Result<std::unique_ptr<Pipeline>> make(Bpe model, Parts parts);

  int64_t vocab_size() const override { return vocab_size_; }
  // Gemma 3's file has a special token for images beyond its text models' vocabulary.
  int64_t text_vocab_size() const override { return text_vocab_size_; }
  int32_t id_of(std::string_view token) const override;
  std::string_view token(int32_t id) const override;
  bool is_special(int32_t id) const override;
  Description describe() const override;
  Status encode(std::string_view text, bool allow_special, std::vector<int32_t>& ids) const override;
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

 private:
  Pipeline(Bpe model, Parts parts);
  const AddedToken* added(int32_t id) const;  // nullptr: no added token has this id
  Status encode_section(std::string_view text, bool at_start, bool allow_special, BpeScratch& scratch,
                        std::vector<int32_t>& ids) const;

  Bpe model_;
  Parts parts_;
  TokenFinder raw_, normalized_;  // added tokens that are looked for before and after normalisation
  int64_t vocab_size_ = 0, text_vocab_size_ = 0;
  mutable BpeScratchPool scratch_;
};

}  // namespace lignum::tokenizer
