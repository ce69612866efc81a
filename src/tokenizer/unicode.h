// Text as code points: UTF-8, the few character classes that pre-tokenisers ask for, normal forms.
// Categories and compositions are utf8proc's (Unicode 15 in Debian 12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lignum::tokenizer {

// The code point at text[i] of well-formed UTF-8; i moves behind it.
inline char32_t next_code_point(std::string_view text, size_t& i) {
  const auto at = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const char32_t lead = at(i);
  if (lead < 0x80) {
    i += 1;
    return lead;
  }
  if (lead < 0xe0) {
    i += 2;
    return (lead & 0x1fu) << 6 | (at(i - 1) & 0x3fu);
  }
  if (lead < 0xf0) {
    i += 3;
    return (lead & 0x0fu) << 12 | (at(i - 2) & 0x3fu) << 6 | (at(i - 1) & 0x3fu);
  }
  i += 4;
  return (lead & 0x07u) << 18 | (at(i - 3) & 0x3fu) << 12 | (at(i - 2) & 0x3fu) << 6 | (at(i - 1) & 0x3fu);
}

void append_utf8(char32_t code, std::string& text);

// Ill-formed UTF-8 becomes U+FFFD, one for each maximal part of a character (Unicode 15, 3.9, U+FFFD
// substitution of maximal subparts): what Python's bytes.decode("utf-8", errors="replace") gives.
std::string replace_ill_formed(std::string_view text);

enum class CharClass : uint8_t {
  other,
  letter,   // \p{L}
  number,   // \p{N}
  space,    // White_Space but for the next
  newline,  // CR, LF
};
// code <= U+10FFFF
CharClass char_class(char32_t code);
inline bool is_white_space(CharClass c) { return c == CharClass::space || c == CharClass::newline; }

// Where the white space before `end` begins, but not before `limit`; where that from `begin` on ends.
size_t white_space_begin(std::string_view text, size_t limit, size_t end);
size_t white_space_end(std::string_view text, size_t begin);

struct NormalForm {
  bool compose = true;         // NFC, NFKC; else NFD, NFKD
  bool compatibility = false;  // NFKC, NFKD
};
// Of well-formed UTF-8; linear time but for the sorting of a run of combining marks.
std::string normal_form(std::string_view text, NormalForm form);

// Each character's own full lower case, whatever stands beside it (a final sigma is like any other).
std::string lower_case(std::string_view text);
// Without combining marks (Mn, Mc, Me).
std::string without_marks(std::string_view text);

// The characters that stand for bytes in the vocabulary of a byte-level BPE: printable ones of Latin-1 for
// themselves, the other 68 bytes, in order, as U+0100 and on.
char32_t byte_to_char(unsigned char byte);
int char_to_byte(char32_t code);  // -1: stands for no byte
std::string bytes_to_chars(std::string_view bytes);

}  // namespace lignum::tokenizer
