// The splits that published byte-level tokenisers make, by hand-written scanners: each gives exactly the
// matches of its expression, one after the other, in linear time and without a regular expression engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lignum::tokenizer {

enum class Scanner : uint8_t {
  gpt2,    // GPT-2, and ByteLevel with use_regex
  llama3,  // Llama 3: numbers in threes
  cl100k,  // the same, but white space at the end of the text is one piece
  qwen,    // Qwen 2 and 3: Llama 3's with single digits
};

// The expression that it stands for, as tokenizer.json files write it.
std::string_view scanner_expression(Scanner scanner);
std::optional<Scanner> scanner_of(std::string_view expression);

// The end of the match that begins at text[begin], begin < text.size(): at each place of a well-formed text
// there is one.
size_t scan(Scanner scanner, std::string_view text, size_t begin);

}  // namespace lignum::tokenizer
