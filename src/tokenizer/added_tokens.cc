#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/text.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

Result<TokenFinder> TokenFinder::make(std::vector<AddedToken> tokens,
                                      const std::vector<std::string>& found_as) {
  LIGNUM_CHECK(tokens.size() == found_as.size(), "{} tokens, {} texts", tokens.size(), found_as.size());
  TokenFinder f;
  std::vector<std::pair<std::string, int32_t>> sorted;
  for (size_t i = 0; i < found_as.size(); ++i) {
    if (found_as[i].empty() || found_as[i].size() > kMaxAddedToken) {
      return user_error("the added token '{}' is looked for as a text of {} bytes; 1 to {} are allowed",
                        shown(tokens[i].content), found_as[i].size(), kMaxAddedToken);
    }
    sorted.emplace_back(found_as[i], static_cast<int32_t>(i));
  }
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].first == sorted[i - 1].first) {
      return user_error("two added tokens are looked for as the same text '{}'", shown(sorted[i].first));
    }
  }
  for (const AddedToken& t : tokens) {
    if (!t.single_word || !f.word_.empty()) continue;
    LIGNUM_ASSIGN_OR_RETURN(Regex word,
                            Regex::compile("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\xe2\x80\x8c\xe2\x80\x8d]"));
    f.word_.push_back(std::move(word));
  }
  f.tokens_ = std::move(tokens);
  f.roots_.assign(256, 0);
  f.nodes_.emplace_back();
  f.build(0, sorted, 0, sorted.size(), 0);
  for (uint32_t e = f.nodes_[0].first; e < f.nodes_[0].first + f.nodes_[0].count; ++e)
    f.roots_[f.edges_[e].byte] = f.edges_[e].node;
  return f;
}

// The node of the texts sorted[begin, end), which agree in their first `depth` bytes.
void TokenFinder::build(uint32_t node, const std::vector<std::pair<std::string, int32_t>>& sorted,
                        size_t begin, size_t end, size_t depth) {
  if (begin < end && sorted[begin].first.size() == depth) nodes_[node].token = sorted[begin++].second;
  std::vector<std::pair<size_t, size_t>> groups;
  for (size_t i = begin; i < end;) {
    const size_t first = i;
    while (i < end && sorted[i].first[depth] == sorted[first].first[depth]) ++i;
    groups.emplace_back(first, i);
  }
  const auto first_edge = static_cast<uint32_t>(edges_.size());
  nodes_[node].first = first_edge;
  nodes_[node].count = static_cast<uint32_t>(groups.size());
  for (const auto& [first, last] : groups) {
    edges_.push_back(
        {static_cast<unsigned char>(sorted[first].first[depth]), static_cast<uint32_t>(nodes_.size())});
    nodes_.emplace_back();
  }
  for (size_t g = 0; g < groups.size(); ++g)
    build(edges_[first_edge + g].node, sorted, groups[g].first, groups[g].second, depth + 1);
}

TokenFinder::Match TokenFinder::longest_at(std::string_view text, size_t begin) const {
  Match best;
  uint32_t node = roots_[static_cast<unsigned char>(text[begin])];
  for (size_t i = begin + 1; node != 0; ++i) {
    if (nodes_[node].token >= 0) best = {nodes_[node].token, i};
    if (i == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[i]);
    const Edge* const first = edges_.data() + nodes_[node].first;
    const Edge* const last = first + nodes_[node].count;
    const Edge* const edge =
        std::lower_bound(first, last, byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
    node = edge != last && edge->byte == byte ? edge->node : 0;
  }
  return best;
}

bool TokenFinder::is_word_next_to(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](std::string_view character) {
    bool found = false;
    const Status status = word_[0].find(character, [&](size_t, size_t) { found = true; });
    LIGNUM_CHECK(status.ok(), "{}", status.message());
    return found;
  };
  if (begin > 0) {
    size_t at = begin - 1;
    while (at > 0 && is_continuation(text[at])) --at;
    if (is_word(text.substr(at, begin - at))) return true;
  }
  if (end < text.size()) {
    size_t next = end;
    next_code_point(text, next);
    if (is_word(text.substr(end, next - end))) return true;
  }
  return false;
}

void TokenFinder::find(std::string_view text, bool allow_special,
                       FunctionRef<void(const AddedToken*, std::string_view)> on_part) const {
  // As in Hugging Face's find_matches, tokens inside the white space that one has taken are found too.
  size_t done = 0, stripped_from = 0, stripped_to = 0;
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    const Match match = longest_at(text, i);
    if (match.token < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
    size_t begin = i, end = match.end;
    i = match.end;
    if (token.special && !allow_special) continue;
    if (token.single_word && is_word_next_to(text, begin, end)) continue;
    if (token.lstrip) begin = white_space_begin(text, done, begin);
    if (token.rstrip && end >= stripped_from && end <= stripped_to) {
      end = stripped_to;  // looked at before: a text of such tokens takes linear time
    } else if (token.rstrip) {
      stripped_from = end;
      end = stripped_to = white_space_end(text, end);
    }
    if (done < begin) on_part(nullptr, text.substr(done, begin - done));
    on_part(&token, {});
    done = end;
  }
  if (done < text.size()) on_part(nullptr, text.substr(done));
}

}  // namespace lignum::tokenizer
