// Tokenisers, with the ids of the libraries that their files come from: Hugging Face's tokenizer.json,
// SentencePiece's .model, tiktoken's rank files. A file with a part that is not implemented is refused by
// that part's name.
//
// A text is UTF-8; ill-formed bytes are read as Python's errors="replace" reads them, each maximal part of a
// character as U+FFFD. Pairs of texts and type ids have no place here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "tokenizer/engine.h"
#include "tokenizer/tiktoken.h"

namespace lignum::tokenizer {

inline constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;
inline constexpr const char* kFileName = "tokenizer.json";        // in a folder
inline constexpr const char* kModelFileName = "tokenizer.model";  // SentencePiece's, and Llama 3's ranks

enum class Format : uint8_t { json, sentencepiece, tiktoken };
const char* format_name(Format format);  // as in messages
// By the first bytes; an error where they are none of the three.
Result<Format> format_of(std::string_view bytes);

struct LoadOptions {
  std::optional<Format> format;  // none: format_of
  TiktokenKind ranks = TiktokenKind::llama3;
};

struct EncodeOptions {
  // What stands before and after each text: BOS, say. Where the text itself begins with those tokens
  // (allow_special) they are not put there again.
  bool add_special_tokens = true;
  // A special token that is written in the text is that token; else its characters are text like any other.
  // For texts that the caller made, never for what a user typed. Added tokens that are not special are always
  // taken.
  bool allow_special = false;
};

// Immutable but for surround(): all calls may be made from several threads at once.
class Tokenizer {
 public:
  // A file, or a folder: its tokenizer.json, else its tokenizer.model.
  static Result<Tokenizer> load(const std::string& path, const LoadOptions& options = {});
  // The bytes of a file of any format; `what` stands at the head of errors.
  static Result<Tokenizer> read(std::string_view bytes, const std::string& what,
                                const LoadOptions& options = {});
  // Of a tokenizer.json; prefix and suffix are what its post-processor puts around a text.
  static Result<Tokenizer> parse(std::string_view json, const std::string& what);
  // Of a SentencePiece model: BOS is put before a text where the model has one.
  static Result<Tokenizer> parse_sentencepiece(std::string_view bytes, const std::string& what);
  static Result<Tokenizer> make(std::unique_ptr<const Engine> engine, std::vector<int32_t> prefix,
                                std::vector<int32_t> suffix);

  int64_t vocab_size() const { return engine_->vocab_size(); }  // the largest id + 1
  // The same of those ids that a text can get without allow_special: what a model must have at least.
  int64_t text_vocab_size() const;
  int32_t id_of(std::string_view token) const { return engine_->id_of(token); }  // -1: there is no such token
  std::string_view token(int32_t id) const { return engine_->token(id); }  // as in the file; empty: none
  bool is_special(int32_t id) const { return engine_->is_special(id); }
  SpecialIds special_ids() const { return engine_->special_ids(); }
  Description describe() const { return engine_->describe(); }
  // What add_special_tokens puts around a text.
  std::span<const int32_t> prefix() const { return prefix_; }
  std::span<const int32_t> suffix() const { return suffix_; }
  // Other tokens than the file's, from now on; each has an id of the vocabulary.
  void surround(std::vector<int32_t> prefix, std::vector<int32_t> suffix);

  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Each text by itself, on the threads of the pool. The first text that fails is named.
  Result<std::vector<std::vector<int32_t>>> encode_all(std::span<const std::string_view> texts,
                                                       const EncodeOptions& options, Parallel& pool) const;
  // Well-formed UTF-8: what is cut inside a character becomes U+FFFD. An id without a token is an error.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

 private:
  Tokenizer() = default;

  std::unique_ptr<const Engine> engine_;
  std::vector<int32_t> prefix_, suffix_;
};

}  // namespace lignum::tokenizer
