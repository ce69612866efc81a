#include "tokenizer/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "tokenizer/engine.h"
#include "tokenizer/json_writer.h"
#include "tokenizer/scanner.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

constexpr size_t kMaxToken = 4096;  // bytes; its cuts are as many

// Of each kind: the expression that cuts texts, in the syntax of tokenizer.json.
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string_view expression(TiktokenKind kind) {
  switch (kind) {
    case TiktokenKind::llama3:
      return scanner_expression(Scanner::llama3);
    case TiktokenKind::gpt2:
      return {};
    case TiktokenKind::cl100k:
      return scanner_expression(Scanner::cl100k);
    case TiktokenKind::o200k:
      return kO200k;
  }
  return {};
}

// The special tokens of a file of `ranks` tokens.
std::vector<SpecialToken> specials(TiktokenKind kind, int32_t ranks) {
  std::vector<SpecialToken> out;
  switch (kind) {
    case TiktokenKind::llama3: {
      int32_t next = ranks, reserved = 0;
      const auto add = [&](std::string name) { out.push_back({std::move(name), next++}); };
      const auto reserve = [&](int32_t until) {
        while (reserved < until) add(fmt::format("<|reserved_special_token_{}|>", reserved++));
      };
      add("<|begin_of_text|>");
      add("<|end_of_text|>");
      reserve(4);
      add("<|start_header_id|>");
      add("<|end_header_id|>");
      reserve(5);
      add("<|eot_id|>");
      reserve(251);
      break;
    }
    case TiktokenKind::gpt2:
      out = {{"<|endoftext|>", 50256}};
      break;
    case TiktokenKind::cl100k:
      out = {{"<|endoftext|>", 100257},
             {"<|fim_prefix|>", 100258},
             {"<|fim_middle|>", 100259},
             {"<|fim_suffix|>", 100260},
             {"<|endofprompt|>", 100276}};
      break;
    case TiktokenKind::o200k:
      out = {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
      break;
  }
  return out;
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// False where it is no base64 with its padding.
bool from_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const size_t padding = !last || text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
    uint32_t group = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int digit = k >= 4 - padding ? 0 : base64_digit(text[i + k]);
      if (digit < 0) return false;
      group = group << 6 | static_cast<uint32_t>(digit);
    }
    for (size_t k = 0; k < 3 - padding; ++k) bytes.push_back(static_cast<char>(group >> (16 - 8 * k)));
  }
  return true;
}

// The bytes and the rank of a line, or why there are none.
Status read_line(std::string_view line, std::string& bytes, int32_t& rank) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos)
    return user_error("'{}' is not a token in base64, a space and its rank", shown(line));
  if (space / 4 * 3 > kMaxToken) return user_error("a token of more than {} bytes", kMaxToken);
  if (!from_base64(line.substr(0, space), bytes))
    return user_error("'{}' is no base64", shown(line.substr(0, space)));
  const std::string_view number = line.substr(space + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (error != std::errc() || end != number.data() + number.size() || rank < 0 || rank > kMaxId)
    return user_error("the rank '{}' is no integer from 0 to {}", shown(number), kMaxId);
  return {};
}

std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

struct Ranks {
  std::vector<std::string> tokens;  // by rank; an empty one: no line has it
  std::unordered_map<std::string_view, int32_t> ids;
  int32_t bytes = 0;  // tokens of one byte
};

Result<Ranks> read_ranks(std::string_view text) {
  std::vector<std::pair<int32_t, std::string>> read;
  int32_t last = 0;
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view row = take_line(text);
    if (row.empty()) continue;
    std::string bytes;
    int32_t rank = 0;
    LIGNUM_RETURN_IF_ERROR(read_line(row, bytes, rank).with_context(fmt::format("line {}", line)));
    last = std::max(last, rank);
    read.emplace_back(rank, std::move(bytes));
  }
  if (read.empty()) return user_error("no ranks");
  Ranks ranks;
  ranks.tokens.resize(static_cast<size_t>(last) + 1);
  for (auto& [rank, bytes] : read) {
    std::string& token = ranks.tokens[static_cast<size_t>(rank)];
    if (!token.empty()) return user_error("two tokens have the rank {}", rank);
    token = std::move(bytes);
    if (token.size() == 1) ++ranks.bytes;
  }
  for (size_t rank = 0; rank < ranks.tokens.size(); ++rank) {
    if (ranks.tokens[rank].empty()) continue;
    const auto [place, is_new] = ranks.ids.emplace(ranks.tokens[rank], static_cast<int32_t>(rank));
    if (!is_new) return user_error("the ranks {} and {} have the same token", place->second, rank);
  }
  if (ranks.bytes != 256)
    return user_error("{} of the 256 single bytes have a rank; a text of other bytes has no tokens",
                      ranks.bytes);
  return ranks;
}

// All cuts of each token in two other ones, in the order of its rank, then of the parts'.
std::vector<std::pair<int32_t, int32_t>> merges_of(const Ranks& ranks) {
  std::vector<std::pair<int32_t, int32_t>> merges, own;
  for (const std::string& token : ranks.tokens) {
    own.clear();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.ids.find(std::string_view(token).substr(0, cut));
      if (left == ranks.ids.end()) continue;
      const auto right = ranks.ids.find(std::string_view(token).substr(cut));
      if (right != ranks.ids.end()) own.emplace_back(left->second, right->second);
    }
    std::sort(own.begin(), own.end());
    merges.insert(merges.end(), own.begin(), own.end());
  }
  return merges;
}

constexpr std::array<std::string_view, 4> kKinds = {"llama3", "gpt2", "cl100k", "o200k"};

}  // namespace

const std::vector<std::string>& tiktoken_kind_names() {
  static const std::vector<std::string> kNames(kKinds.begin(), kKinds.end());
  return kNames;
}

Result<TiktokenKind> tiktoken_kind(std::string_view name) {
  const auto it = std::find(kKinds.begin(), kKinds.end(), name);
  if (it == kKinds.end()) {
    return user_error("'{}' is none of the patterns that rank files are read with: {}", shown(name),
                      fmt::join(kKinds, ", "));
  }
  return static_cast<TiktokenKind>(it - kKinds.begin());
}

TiktokenEnds tiktoken_ends(TiktokenKind kind) {
  if (kind == TiktokenKind::llama3) return {"<|begin_of_text|>", "<|end_of_text|>"};
  return {"", "<|endoftext|>"};
}

bool looks_like_ranks(std::string_view bytes) {
  std::string token;
  int32_t rank = 0;
  return read_line(take_line(bytes), token, rank).ok();
}

Result<std::string> tiktoken_to_json(std::string_view text, TiktokenKind kind) {
  LIGNUM_ASSIGN_OR_RETURN(const Ranks ranks, read_ranks(text));
  ByteLevelFile file;
  file.tokens.reserve(ranks.tokens.size());
  for (const std::string& token : ranks.tokens) file.tokens.push_back(bytes_to_chars(token));
  file.merges = merges_of(ranks);
  file.specials = specials(kind, static_cast<int32_t>(ranks.tokens.size()));
  for (const SpecialToken& special : file.specials) {
    const auto id = static_cast<size_t>(special.id);
    if (id < ranks.tokens.size() && !ranks.tokens[id].empty()) {
      return user_error(
          "the special token '{}' of {} has the id {}, which is a rank here; another "
          "tokenizer_pattern is wanted",
          special.text, kKinds[static_cast<size_t>(kind)], special.id);
    }
  }
  file.expression = expression(kind);
  file.ignore_merges = true;  // a piece that is a token is that token
  file.bos = tiktoken_ends(kind).bos;
  return to_json(file);
}

}  // namespace lignum::tokenizer
