// Tokens that are looked for in the text itself, before anything else (tokenizer.json's `added_tokens`).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "tokenizer/regex.h"

namespace lignum::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // 1..kMaxAddedToken bytes
  bool single_word = false;  // not next to a word character
  bool lstrip = false;       // takes the white space before it too
  bool rstrip = false;       // and after it
  bool normalized = true;    // is looked for in the normalised text
  bool special = false;
};
inline constexpr size_t kMaxAddedToken = 512;

// Finds the tokens of a set in a text.
class TokenFinder {
 public:
  // `found_as[i]` is the text that tokens[i] is found as; no two are equal, none is empty.
  static Result<TokenFinder> make(std::vector<AddedToken> tokens, const std::vector<std::string>& found_as);

  bool empty() const { return tokens_.empty(); }
  // Cuts the text: on_part(nullptr, part) for text between tokens, on_part(token, {}) for a token and the
  // white space that it takes. At each place the longest token that begins there is found, also where it is
  // then passed over: because it is special and allow_special is false, or is no single word.
  void find(std::string_view text, bool allow_special,
            FunctionRef<void(const AddedToken* token, std::string_view part)> on_part) const;

 private:
  struct Node {
    uint32_t first = 0, count = 0;  // of edges_
    int32_t token = -1;             // whose text ends here
  };
  struct Edge {
    unsigned char byte = 0;
    uint32_t node = 0;
  };
  struct Match {
    int32_t token = -1;
    size_t end = 0;
  };
  Match longest_at(std::string_view text, size_t begin) const;
  bool is_word_next_to(std::string_view text, size_t begin, size_t end) const;
  void build(uint32_t node, const std::vector<std::pair<std::string, int32_t>>& sorted, size_t begin,
             size_t end, size_t depth);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<uint32_t> roots_;  // by first byte; 0: no token begins so
  std::vector<Regex> word_;      // one word character, where a token asks for single_word
};

}  // namespace lignum::tokenizer
