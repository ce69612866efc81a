// What turns a text into ids and back: a tokenizer.json's pipeline (pipeline.h), or a SentencePiece model
// (sentencepiece.h). A Tokenizer puts around it what all kinds share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace lignum::tokenizer {

// The largest id of any kind of tokenizer.
inline constexpr int32_t kMaxId = (1 << 22) - 1;

struct SpecialIds {
  int32_t bos = -1, eos = -1, unknown = -1, pad = -1;  // -1: the file names none
};

// For people and `inspect`: what stands in the file.
struct Description {
  std::string kind;     // "byte-level BPE", "SentencePiece unigram", ...
  int64_t merges = -1;  // -1: the kind has none
  int64_t added = 0;    // tokens beside the model's vocabulary, or marked in it
  std::vector<std::string> special;
  std::vector<std::pair<std::string, std::string>> parts;  // name and what it does, in order
};

// Immutable: all calls may be made from several threads at once.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual int64_t vocab_size() const = 0;                           // the largest id + 1
  virtual int64_t text_vocab_size() const { return vocab_size(); }  // of the ids that plain text can get
  virtual int32_t id_of(std::string_view token) const = 0;          // -1: there is no such token
  virtual std::string_view token(int32_t id) const = 0;             // as the file writes it; empty: none
  virtual bool is_special(int32_t id) const = 0;
  virtual SpecialIds special_ids() const { return {}; }
  virtual Description describe() const = 0;

  // Appends the ids of well-formed UTF-8, with nothing around them.
  virtual Status encode(std::string_view text, bool allow_special, std::vector<int32_t>& ids) const = 0;
  // Well-formed UTF-8. Every id has a token.
  virtual Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;
};

}  // namespace lignum::tokenizer
