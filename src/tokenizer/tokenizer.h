// Tokenisers as Hugging Face writes them (tokenizer.json), with its ids: BPE models with their normalisers,
// pre-tokenisers, added tokens, post-processors and decoders. A file with a part that is not implemented is
// refused by that part's name.
//
// A text is UTF-8; ill-formed bytes are read as Python's errors="replace" reads them, each maximal part of a
// character as U+FFFD. Pairs of texts and type ids have no place here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace lignum::tokenizer {

inline constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;
inline constexpr const char* kFileName = "tokenizer.json";

struct EncodeOptions {
  // What the post-processor puts before and after a text: BOS, say. Where the text itself begins with those
  // tokens (allow_special) they are not put there again.
  bool add_special_tokens = true;
  // A special token that is written in the text is that token; else its characters are text like any other.
  // For texts that the caller made, never for what a user typed. Added tokens that are not special are always
  // taken.
  bool allow_special = false;
};

// What a tokenizer.json says, checked part by part.
struct Parts {
  Normalizer normalizer;
  std::vector<AddedToken> added;  // by id, in a Tokenizer
  PreTokenizer pre_tokenizer;
  std::vector<int32_t> prefix, suffix;  // of the post-processor's template
  Decoder decoder;
};

// Immutable: all calls may be made from several threads at once.
class Tokenizer {
 public:
  static Result<Tokenizer> load(const std::string& path);
  // `what` stands at the head of errors.
  static Result<Tokenizer> parse(std::string_view json, const std::string& what);
  static Result<Tokenizer> make(Bpe model, Parts parts);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  const Bpe& model() const { return *model_; }
  const std::vector<AddedToken>& added_tokens() const { return parts_.added; }
  int64_t vocab_size() const { return vocab_size_; }  // the largest id + 1
  // The same of those ids that a text can get without allow_special: what a model must have at least. Gemma
  // 3's file has a special token for images beyond its text models' vocabulary.
  int64_t text_vocab_size() const { return text_vocab_size_; }
  int32_t id_of(std::string_view token) const;  // -1: there is no such token
  std::string_view token(int32_t id) const;     // as it is written in the file; empty: none
  bool is_special(int32_t id) const;
  // What add_special_tokens puts around a text.
  std::span<const int32_t> prefix() const { return parts_.prefix; }
  std::span<const int32_t> suffix() const { return parts_.suffix; }

  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Each text by itself, on the threads of the pool. The first text that fails is named.
  Result<std::vector<std::vector<int32_t>>> encode_all(std::span<const std::string_view> texts,
                                                       const EncodeOptions& options, Parallel& pool) const;
  // Well-formed UTF-8: what is cut inside a character becomes U+FFFD. An id without a token is an error.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

 private:
  struct ScratchPool;
  const AddedToken* added(int32_t id) const;  // nullptr: no added token has this id
  Tokenizer(Bpe model, Parts parts);
  Status encode_section(std::string_view text, bool at_start, bool allow_special, BpeScratch& scratch,
                        std::vector<int32_t>& ids) const;

  std::unique_ptr<const Bpe> model_;
  Parts parts_;
  TokenFinder raw_, normalized_;  // added tokens that are looked for before and after normalisation
  int64_t vocab_size_ = 0, text_vocab_size_ = 0;
  std::unique_ptr<ScratchPool> scratch_;
};

}  // namespace lignum::tokenizer
