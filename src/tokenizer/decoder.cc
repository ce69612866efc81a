#include "tokenizer/decoder.h"

#include "base/text.h"

namespace lignum::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
using Tokens = std::vector<std::string>;

Status run(const DecodeByteLevel&, Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const size_t before = bytes.size();
    for (size_t i = 0; i < token.size();) {
      const int byte = char_to_byte(next_code_point(token, i));
      if (byte < 0) {  // an added token that is not written in the alphabet
        bytes.resize(before);
        bytes += token;
        break;
      }
      bytes.push_back(static_cast<char>(byte));
    }
  }
  tokens.assign(1, replace_ill_formed(bytes));
  return {};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// The byte of a token <0x..>, else -1.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

Status run(const DecodeByteFallback&, Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes)) {
      out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back(kReplacement);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of(token); byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
  return {};
}

std::string joined(const Tokens& tokens, std::string_view separator) {
  std::string out;
  for (const std::string& token : tokens) {
    if (!out.empty()) out += separator;
    out += token;
  }
  return out;
}

Status run(const DecodeFuse&, Tokens& tokens) {
  tokens.assign(1, joined(tokens, ""));
  return {};
}

Status run(const DecodeStrip& strip, Tokens& tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (int64_t i = 0; i < strip.start && rest.starts_with(strip.content); ++i)
      rest.remove_prefix(strip.content.size());
    for (int64_t i = 0; i < strip.stop && rest.ends_with(strip.content); ++i)
      rest.remove_suffix(strip.content.size());
    token = std::string(rest);
  }
  return {};
}

Status run(const DecodeMetaspace& meta, Tokens& tokens) {
  const Pattern replacement = Pattern::literal(meta.replacement);
  for (size_t i = 0; i < tokens.size(); ++i) {
    LIGNUM_ASSIGN_OR_RETURN(tokens[i], replacement.replace(tokens[i], i == 0 && meta.drops_first ? "" : " "));
  }
  return {};
}

Status run(const Replace& replace, Tokens& tokens) {
  for (std::string& token : tokens) {
    LIGNUM_ASSIGN_OR_RETURN(token, replace.pattern.replace(token, replace.content));
  }
  return {};
}

}  // namespace

Result<std::string> Decoder::apply(std::vector<std::string> tokens) const {
  for (const Step& step : steps_)
    LIGNUM_RETURN_IF_ERROR(std::visit([&](const auto& s) { return run(s, tokens); }, step));
  return joined(tokens, steps_.empty() ? " " : "");
}

}  // namespace lignum::tokenizer
