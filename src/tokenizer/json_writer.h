// tokenizer.json's text for a byte-level BPE.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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

// The file's parts, for whoever brings others beside them.
nlohmann::ordered_json byte_level(bool use_regex);               // pre-tokeniser, post-processor or decoder
nlohmann::ordered_json isolating_split(std::string_view regex);  // pre-tokeniser
nlohmann::ordered_json added_token(int64_t id, std::string_view text, bool special);
// merges: pairs, or texts with a space between.
nlohmann::ordered_json byte_level_bpe(nlohmann::ordered_json added_tokens,
                                      nlohmann::ordered_json pre_tokenizer,
                                      nlohmann::ordered_json post_processor, nlohmann::ordered_json vocab,
                                      nlohmann::ordered_json merges, bool ignore_merges);

}  // namespace lignum::tokenizer
