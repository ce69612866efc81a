// The ids of words that were seen lately: a table of cache lines; of two words with the same line the newer
// one stays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lignum::tokenizer {

class WordCache {
 public:
  static constexpr size_t kMaxWord = 38, kMaxIds = 6;
  struct alignas(64) Line {
    uint8_t size = 0;  // of the word; 0: empty
    uint8_t count = 0;
    std::array<char, kMaxWord> word{};
    std::array<int32_t, kMaxIds> ids{};
  };

  explicit WordCache(int log2_lines) : lines_(size_t{1} << log2_lines), shift_(64 - log2_lines) {}

  const Line* find(std::string_view word) const;  // nullptr: not here
  // Words and results that are too long for a line are not kept.
  void put(std::string_view word, std::span<const int32_t> ids);

 private:
  size_t place(std::string_view word) const;

  std::vector<Line> lines_;
  int shift_;
};

}  // namespace lignum::tokenizer
