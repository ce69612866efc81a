#include "tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Counts = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;

// Where a long text may be cut so that every scanner's pieces stay what they are: between a newline and an
// ASCII letter, since no piece holds a letter behind a newline.
std::vector<std::string_view> chunks(std::span<const std::string_view> texts) {
  constexpr size_t kChunk = 1 << 20;
  std::vector<std::string_view> out;
  for (std::string_view text : texts) {
    size_t cut = kChunk;
    while (cut < text.size()) {
      const auto upper = static_cast<char>(text[cut] & ~0x20);
      if (text[cut - 1] == '\n' && upper >= 'A' && upper <= 'Z') {
        out.push_back(text.substr(0, cut));
        text.remove_prefix(cut);
        cut = kChunk;
      } else {
        ++cut;
      }
    }
    out.push_back(text);
  }
  return out;
}

void count_words(std::string_view text, Scanner scanner, Counts& counts) {
  std::string buffer;
  if (!is_utf8(text)) text = buffer = replace_ill_formed(text);
  for (size_t i = 0; i < text.size();) {
    const size_t end = scan(scanner, text, i);
    const std::string_view word = text.substr(i, end - i);
    const auto it = counts.find(word);
    if (it != counts.end()) {
      ++it->second;
    } else {
      counts.emplace(word, 1);
    }
    i = end;
  }
}

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

using Pair = std::pair<int32_t, int32_t>;
uint64_t key(Pair pair) {
  return uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second);
}

class Merger {
 public:
  Merger(std::vector<Word> words, TrainedBpe& trained, const BpeTrainerOptions& options)
      : words_(std::move(words)), trained_(trained), options_(options) {
    for (size_t i = 0; i < trained.tokens.size(); ++i)
      ids_.emplace(trained.tokens[i], static_cast<int32_t>(i));
  }

  void run() {
    for (size_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (size_t i = 1; i < word.symbols.size(); ++i) {
        const Pair pair(word.symbols[i - 1], word.symbols[i]);
        add(pair, word.count, static_cast<uint32_t>(w));
      }
    }
    push_changed();
    while (static_cast<int64_t>(trained_.tokens.size()) < options_.vocab_size && !queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const auto it = pairs_.find(key(top.pair));
      // Counts sink while a pair waits: such an entry comes back with what it is worth now.
      if (it == pairs_.end() || it->second.count < std::max<int64_t>(options_.min_frequency, 1)) continue;
      if (it->second.count != top.count) {
        queue_.push({it->second.count, top.pair});
        continue;
      }
      const std::vector<uint32_t> words = std::move(it->second.words);
      pairs_.erase(it);
      const int32_t merged = token_of(top.pair);
      if (merged < static_cast<int32_t>(trained_.specials))
        continue;  // a text must not spell a special token
      trained_.merges.push_back(top.pair);
      for (const uint32_t w : words) merge_in(w, top.pair, merged);
      push_changed();
    }
  }

 private:
  struct Entry {
    int64_t count = 0;
    Pair pair;
    bool operator<(const Entry& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  struct Occurrences {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that have or had it, some of them twice
  };

  // Two pairs may make the same token: ab+c and a+bc.
  int32_t token_of(Pair pair) {
    std::string token =
        trained_.tokens[static_cast<size_t>(pair.first)] + trained_.tokens[static_cast<size_t>(pair.second)];
    const auto [it, is_new] = ids_.emplace(token, static_cast<int32_t>(trained_.tokens.size()));
    if (is_new) trained_.tokens.push_back(std::move(token));
    return it->second;
  }

  // The pair that is being merged has no count any more: what overlaps with itself (aaa) must not bring it
  // back.
  void change(Pair pair, Pair merging, int64_t count, uint32_t word) {
    if (pair != merging) add(pair, count, word);
  }

  void add(Pair pair, int64_t count, uint32_t word) {
    Occurrences& o = pairs_[key(pair)];
    o.count += count;
    if (count <= 0) return;
    if (o.words.empty() || o.words.back() != word) o.words.push_back(word);
    changed_.insert(key(pair));
  }

  void push_changed() {
    for (const uint64_t k : changed_) {
      const Occurrences& o = pairs_[k];
      if (o.count > 0) {
        queue_.push({o.count, {static_cast<int32_t>(k >> 32), static_cast<int32_t>(k & 0xffffffffu)}});
      }
    }
    changed_.clear();
  }

  void merge_in(uint32_t index, Pair pair, int32_t merged) {
    Word& word = words_[index];
    auto& s = word.symbols;
    size_t out = 0;
    for (size_t i = 0; i < s.size();) {
      if (i + 1 >= s.size() || s[i] != pair.first || s[i + 1] != pair.second) {
        s[out++] = s[i++];
        continue;
      }
      // What is left of out is merged already, what is right of i + 1 is not yet.
      if (out > 0) {
        change({s[out - 1], pair.first}, pair, -word.count, index);
        change({s[out - 1], merged}, pair, word.count, index);
      }
      if (i + 2 < s.size()) {
        change({pair.second, s[i + 2]}, pair, -word.count, index);
        change({merged, s[i + 2]}, pair, word.count, index);
      }
      s[out++] = merged;
      i += 2;
    }
    s.resize(out);
  }

  std::vector<Word> words_;
  TrainedBpe& trained_;
  const BpeTrainerOptions& options_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, Occurrences> pairs_;
  std::unordered_set<uint64_t> changed_;
  std::priority_queue<Entry> queue_;
};

Status check(const BpeTrainerOptions& options) {
  const auto least = static_cast<int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > kMaxId) {
    return user_error("a vocabulary of {} tokens: {} to {} are allowed (256 bytes and {} special tokens)",
                      options.vocab_size, least, kMaxId, options.special_tokens.size());
  }
  std::set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.size() < 2 || token.size() > kMaxAddedToken || !is_utf8(token))
      return user_error("the special token '{}' must be UTF-8 of 2 to {} bytes", shown(token),
                        kMaxAddedToken);
    if (!seen.insert(token).second) return user_error("the special token '{}' is named twice", shown(token));
  }
  return {};
}

}  // namespace

Result<TrainedBpe> train_bpe(std::span<const std::string_view> texts, const BpeTrainerOptions& options,
                             Parallel& pool) {
  LIGNUM_RETURN_IF_ERROR(check(options));
  const std::vector<std::string_view> parts = chunks(texts);
  std::vector<Counts> counts(static_cast<size_t>(pool.threads()));
  pool.run(static_cast<int64_t>(parts.size()), [&](int64_t part, int thread) {
    count_words(parts[static_cast<size_t>(part)], options.scanner, counts[static_cast<size_t>(thread)]);
  });
  for (size_t t = 1; t < counts.size(); ++t)
    for (const auto& [word, count] : counts[t]) counts[0][word] += count;

  TrainedBpe trained{.scanner = options.scanner,
                     .specials = options.special_tokens.size(),
                     .tokens = options.special_tokens};
  std::vector<std::pair<char32_t, unsigned char>> alphabet;
  for (unsigned b = 0; b < 256; ++b) {
    const auto byte = static_cast<unsigned char>(b);
    alphabet.emplace_back(byte_to_char(byte), byte);
  }
  std::sort(alphabet.begin(), alphabet.end());
  std::vector<int32_t> byte_ids(256);
  for (const auto& [code, byte] : alphabet) {
    byte_ids[byte] = static_cast<int32_t>(trained.tokens.size());
    append_utf8(code, trained.tokens.emplace_back());
  }

  std::vector<Word> words;
  words.reserve(counts[0].size());
  for (const auto& [text, count] : counts[0]) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char c : text) word.symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
  }
  Merger(std::move(words), trained, options).run();
  return trained;
}

}  // namespace lignum::tokenizer
