// tokenizer.json's text for a byte-level BPE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lignum::tokenizer {

struct SpecialToken {
  std::string text;
  int32_t id = 0;
};

struct ByteLevelFile {
  std::vector<std::string> tokens;  // by id, in the byte alphabet or special; an empty one is left out
  std::vector<std::pair<int32_t, int32_t>> merges;
  std::vector<SpecialToken> specials;  // their ids may lie in `tokens` or behind
  std::string_view expression;         // cuts texts; empty: ByteLevel's own, GPT-2's
  bool ignore_merges = false;
  std::string_view bos;  // a special token that the template puts before a text; empty: none
};

std::string to_json(const ByteLevelFile& file);

}  // namespace lignum::tokenizer
