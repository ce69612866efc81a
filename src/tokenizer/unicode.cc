#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/status.h"
#include "base/text.h"

namespace lignum::tokenizer {
namespace {

constexpr char32_t kMaxCode = 0x10ffff;

// Bytes of the well-formed character at text[0], or 0; `part` is then how many bytes one U+FFFD replaces.
size_t character_at(std::string_view text, size_t& part) {
  const auto at = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned lead = at(0);
  part = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF (Table 3-7).
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (; part < length; ++part) {
    if (part >= text.size()) return 0;
    const unsigned byte = at(part);
    if (byte < (part == 1 ? low : 0x80u) || byte > (part == 1 ? high : 0xbfu)) return 0;
  }
  return length;
}

CharClass class_of(char32_t code) {
  if (code == '\r' || code == '\n') return CharClass::newline;
  if ((code >= 0x09 && code <= 0x0d) || code == 0x85) return CharClass::space;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharClass::space;
    default:
      return CharClass::other;
  }
}

// The decomposed form of `text`, with marks in canonical order. utf8proc's own ordering takes quadratic time
// on a long run of marks.
std::vector<utf8proc_int32_t> decompose(std::string_view text, bool compatibility) {
  constexpr int kMost = 32;  // code points that one decomposes into: 18 in Unicode 15
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t out[kMost];
    int last_boundclass = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(next_code_point(text, i)), out, kMost, options, &last_boundclass);
    LIGNUM_CHECK(count >= 0 && count <= kMost, "utf8proc_decompose_char: {}", count);
    codes.insert(codes.end(), out, out + count);
  }
  const auto mark_class = [](utf8proc_int32_t code) {
    return static_cast<uint64_t>(utf8proc_get_property(code)->combining_class);
  };
  // By class, then place, with the code point in the low bits. (std::stable_sort of libstdc++ 12 calls what
  // clang knows as deprecated.)
  constexpr int kPlace = 21, kClass = 53;
  std::vector<uint64_t> marks;
  for (size_t begin = 0; begin < codes.size(); ++begin) {
    marks.clear();
    for (size_t i = begin; i < codes.size(); ++i) {
      const uint64_t mark = mark_class(codes[i]);
      if (mark == 0) break;
      marks.push_back(mark << kClass | uint64_t{i - begin} << kPlace | static_cast<uint64_t>(codes[i]));
    }
    std::sort(marks.begin(), marks.end());
    for (const uint64_t m : marks)
      codes[begin++] = static_cast<utf8proc_int32_t>(m & ((uint64_t{1} << kPlace) - 1));
  }
  return codes;
}

struct ByteAlphabet {
  std::array<char32_t, 256> chars{};
  std::array<int, 324> bytes{};
  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      chars[b] = printable ? b : next++;
      bytes[chars[b]] = static_cast<int>(b);
    }
  }
};
const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

void append_utf8(char32_t code, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0u | code >> 6);
    put(0x80u | (code & 0x3fu));
  } else if (code < 0x10000) {
    put(0xe0u | code >> 12);
    put(0x80u | (code >> 6 & 0x3fu));
    put(0x80u | (code & 0x3fu));
  } else {
    put(0xf0u | code >> 18);
    put(0x80u | (code >> 12 & 0x3fu));
    put(0x80u | (code >> 6 & 0x3fu));
    put(0x80u | (code & 0x3fu));
  }
}

std::string replace_ill_formed(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string out;
  out.reserve(text.size() + 16);
  while (!text.empty()) {
    size_t part = 0;
    const size_t length = character_at(text, part);
    if (length > 0) {
      out.append(text.substr(0, length));
    } else {
      out.append("\xef\xbf\xbd");
    }
    text.remove_prefix(part);
  }
  return out;
}

CharClass char_class(char32_t code) {
  static const std::vector<CharClass> kClasses = [] {
    std::vector<CharClass> classes(kMaxCode + 1);
    for (char32_t c = 0; c <= kMaxCode; ++c) classes[c] = class_of(c);
    return classes;
  }();
  return kClasses[code];
}

std::string normal_form(std::string_view text, NormalForm form) {
  // Nothing below U+00A0 has a decomposition, and nothing below U+0300 is composed away or takes part in a
  // composition with what is before it.
  const unsigned char first = form.compose && !form.compatibility ? 0xcc : 0xc2;
  if (std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) < first; }))
    return std::string(text);
  std::vector<utf8proc_int32_t> codes = decompose(text, form.compatibility);
  if (form.compose) {
    // utf8proc takes U+11A7, which is no final consonant and composes with nothing, for one and drops it.
    constexpr utf8proc_int32_t kNoFinal = 0x11a7;
    auto out = codes.begin();
    for (auto begin = codes.begin(); begin != codes.end();) {
      const auto end = std::find(begin, codes.end(), kNoFinal);
      const utf8proc_ssize_t length = utf8proc_normalize_utf32(
          &*begin, end - begin, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      LIGNUM_CHECK(length >= 0, "utf8proc_normalize_utf32: {}", length);
      out = std::copy(begin, begin + length, out);
      if (end == codes.end()) break;
      *out++ = kNoFinal;
      begin = end + 1;
    }
    codes.erase(out, codes.end());
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t code : codes) append_utf8(static_cast<char32_t>(code), out);
  return out;
}

size_t white_space_begin(std::string_view text, size_t limit, size_t end) {
  while (end > limit) {
    size_t begin = end - 1;
    while (begin > limit && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    size_t next = begin;
    if (!is_white_space(char_class(next_code_point(text, next)))) break;
    end = begin;
  }
  return end;
}

size_t white_space_end(std::string_view text, size_t begin) {
  for (size_t next = begin; next < text.size(); begin = next)
    if (!is_white_space(char_class(next_code_point(text, next)))) break;
  return begin;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t code = next_code_point(text, i);
    if (code == 0x130) {  // the one with a lower case of two: i, dot above
      out += "i\xcc\x87";
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
    }
  }
  return out;
}

std::string without_marks(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const auto code = static_cast<utf8proc_int32_t>(next_code_point(text, i));
    const utf8proc_category_t category = code < 0x80 ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
    const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                      category == UTF8PROC_CATEGORY_ME;
    if (!mark) out.append(text.substr(begin, i - begin));
  }
  return out;
}

char32_t byte_to_char(unsigned char byte) { return byte_alphabet().chars[byte]; }

int char_to_byte(char32_t code) {
  const auto& bytes = byte_alphabet().bytes;
  return code < bytes.size() ? bytes[code] : -1;
}

std::string bytes_to_chars(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(byte_to_char(static_cast<unsigned char>(c)), out);
  return out;
}

}  // namespace lignum::tokenizer
