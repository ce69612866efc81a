#include "tokenizer/scanner.h"

#include <array>

#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A place in the text with what stands there.
struct Place {
  std::string_view text;
  size_t at = 0;

  bool ended() const { return at >= text.size(); }
  // The class of the character here; `next` is then the place behind it. Not at the end.
  CharClass here(size_t& next) const {
    next = at;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {
      ++next;
      return kAscii[byte];
    }
    return char_class(next_code_point(text, next));
  }
  // Past all characters of a class.
  template <class Is>
  void skip(Is is) {
    size_t next = 0;
    while (!ended() && is(here(next))) at = next;
  }
  void skip(CharClass c) {
    skip([c](CharClass other) { return other == c; });
  }

 private:
  static constexpr std::array<CharClass, 128> kAscii = [] {
    std::array<CharClass, 128> classes{};
    for (unsigned c = 0; c < 128; ++c) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      classes[c] = letter                                 ? CharClass::letter
                   : c >= '0' && c <= '9'                 ? CharClass::number
                   : c == '\r' || c == '\n'               ? CharClass::newline
                   : c == ' ' || (c >= 0x09 && c <= 0x0d) ? CharClass::space
                                                          : CharClass::other;
    }
    return classes;
  }();
};

// The bytes of 's, 't, 're, 've, 'm, 'll or 'd at text[begin], an apostrophe; 0 where none of them is there.
// Without case, U+017F (long s) is an s too: it folds to one.
size_t contraction(std::string_view text, size_t begin, bool any_case) {
  const auto at = [&](size_t k) -> char {
    if (begin + k >= text.size()) return '\0';
    const char c = text[begin + k];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    default:
      return any_case && text.substr(begin + 1, 2) == "\xc5\xbf" ? 3 : 0;
  }
}

// \s+(?!\S)|\s+ for white space from `begin` to `end`: all of it at the end of the text, else all but the
// last character, which the word after it may want, unless it is the only one.
size_t white_space_end(std::string_view text, size_t begin, size_t end) {
  if (end == text.size()) return end;
  size_t last = end - 1;
  while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
  return last == begin ? end : last;
}

size_t scan_gpt2(std::string_view text, size_t begin) {
  if (text[begin] == '\'') {
    if (const size_t length = contraction(text, begin, false); length > 0) return begin + length;
  }
  Place p{text, begin};
  size_t next = 0;
  CharClass c = p.here(next);
  if (text[begin] == ' ' && next < text.size()) {
    Place after{text, next};
    const CharClass following = after.here(next);
    if (!is_white_space(following)) {
      p = after;
      c = following;
    }
  }
  if (!is_white_space(c)) {
    p.skip(c);
    return p.at;
  }
  p.skip(is_white_space);
  return white_space_end(text, begin, p.at);
}

size_t scan_llama3(std::string_view text, size_t begin, int digits, bool keeps_end) {
  if (text[begin] == '\'') {
    if (const size_t length = contraction(text, begin, true); length > 0) return begin + length;
  }
  Place p{text, begin};
  size_t next = 0;
  const CharClass c = p.here(next);
  if (c == CharClass::letter) {
    p.skip(CharClass::letter);
    return p.at;
  }
  if (c == CharClass::number) {
    for (int i = 0; i < digits && !p.ended() && p.here(next) == CharClass::number; ++i) p.at = next;
    return p.at;
  }
  CharClass following = CharClass::newline;  // or the end: nothing that a character leads
  Place after{text, next};
  if (!after.ended()) following = after.here(next);
  if (c != CharClass::newline && following == CharClass::letter) {
    after.skip(CharClass::letter);
    return after.at;
  }
  if (c == CharClass::other || (text[begin] == ' ' && following == CharClass::other)) {
    after.skip(CharClass::other);
    after.skip(CharClass::newline);
    return after.at;
  }
  // White space: up to its last newline, if it has one.
  size_t past_newline = 0;
  while (!p.ended()) {
    const CharClass space = p.here(next);
    if (!is_white_space(space)) break;
    p.at = next;
    if (space == CharClass::newline) past_newline = next;
  }
  if (keeps_end && p.ended()) return p.at;
  return past_newline > 0 ? past_newline : white_space_end(text, begin, p.at);
}

}  // namespace

std::string_view scanner_expression(Scanner scanner) {
  switch (scanner) {
    case Scanner::gpt2:
      return kGpt2;
    case Scanner::llama3:
      return kLlama3;
    case Scanner::cl100k:
      return kCl100k;
    case Scanner::qwen:
      return kQwen;
  }
  return {};
}

std::optional<Scanner> scanner_of(std::string_view expression) {
  for (const Scanner s : {Scanner::gpt2, Scanner::llama3, Scanner::cl100k, Scanner::qwen})
    if (expression == scanner_expression(s)) return s;
  return std::nullopt;
}

size_t scan(Scanner scanner, std::string_view text, size_t begin) {
  if (scanner == Scanner::gpt2) return scan_gpt2(text, begin);
  return scan_llama3(text, begin, scanner == Scanner::qwen ? 1 : 3, scanner == Scanner::cl100k);
}

}  // namespace lignum::tokenizer
