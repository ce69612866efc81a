// tokenizer.json's `decoder`: from the tokens of a text to the text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace lignum::tokenizer {

struct DecodeByteLevel {};     // characters of the byte alphabet to bytes; broken UTF-8 to U+FFFD
struct DecodeByteFallback {};  // <0xE4> to bytes; a run that is no UTF-8 to one U+FFFD a byte
struct DecodeFuse {};          // all tokens to one
struct DecodeStrip {           // of each token
  std::string content;         // one character
  int64_t start = 0, stop = 0;
};
struct DecodeMetaspace {
  std::string replacement;
  bool drops_first = true;  // those of the first token stand for what encoding put in front
};

class Decoder {
 public:
  using Step =
      std::variant<DecodeByteLevel, DecodeByteFallback, DecodeFuse, DecodeStrip, DecodeMetaspace, Replace>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  // Without a step the tokens are joined by spaces, as Hugging Face does.
  Result<std::string> apply(std::vector<std::string> tokens) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lignum::tokenizer
