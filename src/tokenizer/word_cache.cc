#include "tokenizer/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace lignum::tokenizer {

static_assert(sizeof(WordCache::Line) == 64);

size_t WordCache::place(std::string_view word) const {
  return XXH3_64bits(word.data(), word.size()) >> shift_;
}

const WordCache::Line* WordCache::find(std::string_view word) const {
  if (word.empty() || word.size() > kMaxWord) return nullptr;
  const Line& line = lines_[place(word)];
  const bool same = line.size == word.size() && std::memcmp(line.word.data(), word.data(), word.size()) == 0;
  return same ? &line : nullptr;
}

void WordCache::put(std::string_view word, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxWord || ids.size() > kMaxIds) return;
  Line& line = lines_[place(word)];
  line.size = static_cast<uint8_t>(word.size());
  line.count = static_cast<uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), line.word.begin());
  std::copy(ids.begin(), ids.end(), line.ids.begin());
}

}  // namespace lignum::tokenizer
