// Byte pair encoding of one piece: the pair of least rank is merged first, the leftmost of equal ones, until
// no two neighbours have a rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/engine.h"
#include "tokenizer/word_cache.h"

namespace lignum::tokenizer {

struct BpeOptions {
  bool byte_level = false;     // tokens are written in the byte alphabet (unicode.h); pieces are bytes
  bool ignore_merges = false;  // a piece that is a token is that token, whatever its merges give
  bool byte_fallback = false;  // a character without a token becomes its bytes' <0x00>..<0xFF>
  bool fuse_unknown = false;   // neighbouring unknown characters are one unknown token
  std::string unknown;         // the unknown token; empty: none, and a character without a token is an error
};

// One thread's memory for Bpe::encode: grown as needed and used again.
struct BpeScratch {
  struct Symbol {
    int32_t id = 0;  // -1: merged into the one before it
    int32_t prev = 0, next = 0;
    int32_t merge = 0;  // the merge of it and the next one; -1: none
  };
  WordCache cache{15};  // 2 MiB
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;
};

// Memory for as many threads as encode at once: a call takes one, or makes one, and gives it back.
class BpeScratchPool {
 public:
  std::unique_ptr<BpeScratch> take();
  void give_back(std::unique_ptr<BpeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BpeScratch>> free_;
};

// Pairs of ids, each with a number: open addressing, at most half full.
class PairTable {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit PairTable(size_t pairs);  // room for so many
  // The number of the pair from now on, unless it had one: then false.
  bool insert(int32_t left, int32_t right, uint32_t number);
  uint32_t find(int32_t left, int32_t right) const {
    const uint64_t pair = key(left, right);
    for (size_t i = place(pair);; i = (i + 1) & mask_) {
      if (slots_[i].pair == pair) return slots_[i].number;
      if (slots_[i].pair == kEmpty) return kNone;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t number = kNone;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t pair) const { return pair * 0x9e3779b97f4a7c15u >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_;
  int shift_;
};

class Bpe {
 public:
  using Vocabulary = std::vector<std::pair<std::string, int32_t>>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // Merges come in the order of their ranks: merge i has the rank ranks[i], or where there are none the rank
  // i. Errors name the token or the merge.
  static Result<Bpe> make(const Vocabulary& vocabulary, const Merges& merges, const BpeOptions& options,
                          std::vector<uint32_t> ranks = {});
  Bpe(Bpe&&) = default;
  Bpe& operator=(Bpe&&) = default;

  const BpeOptions& options() const { return options_; }
  int64_t vocab_size() const { return static_cast<int64_t>(spans_.size()); }  // the largest id + 1
  int64_t merges() const { return static_cast<int64_t>(results_.size()); }    // ranks of them
  int32_t id_of(std::string_view token) const;                                // -1: there is no such token
  std::string_view token(int32_t id) const;                                   // empty: no token has this id

  // Appends the ids of a piece of well-formed UTF-8. n log n time at worst.
  Status encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;

 private:
  explicit Bpe(size_t merges) : pairs_(merges), neighbours_(4 * merges) {}
  Status add_tokens(const Vocabulary& vocabulary);
  Status add_merges(const Merges& merges);
  Status set_symbols();
  void note_neighbours(int32_t left, int32_t right);

  int32_t char_id(char32_t code) const { return pages_[page_of_[code >> 8]][code & 0xff]; }
  Status encode_bytes(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  Status encode_chars(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  // Merges the symbols, which are those of `text`, and appends what they become.
  void finish(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  BpeOptions options_;
  std::vector<char> text_;  // of all tokens
  std::vector<std::pair<uint32_t, uint32_t>> spans_;
  std::unordered_map<std::string_view, int32_t> ids_;
  PairTable pairs_;               // to merges
  std::vector<int32_t> results_;  // by merge: what the pair becomes
  std::vector<uint32_t> ranks_;   // by merge; empty: each has its own

  std::array<int32_t, 256> byte_ids_{};          // byte alphabet or byte fallback; -1: none
  std::vector<std::array<int32_t, 256>> pages_;  // of characters, by the low byte; the first one is empty
  std::vector<uint16_t> page_of_;                // by the rest of the code point
  int32_t unknown_id_ = -1;
  // Symbols that stand side by side in some merge. Between any two others a piece falls apart, and each part
  // can be looked up by itself: a text without pre-tokeniser has words again.
  PairTable neighbours_;
};

}  // namespace lignum::tokenizer
