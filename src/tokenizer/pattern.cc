#include "tokenizer/pattern.h"

#include "tokenizer/unicode.h"

namespace lignum::tokenizer {

Pattern Pattern::literal(std::string text) {
  LIGNUM_CHECK(!text.empty(), "an empty text is found everywhere");
  return Pattern(std::move(text));
}

Pattern Pattern::number() { return Pattern(Number{}); }

Result<Pattern> Pattern::expression(const std::string& expression) {
  if (const auto scanner = scanner_of(expression)) return Pattern(*scanner);
  LIGNUM_ASSIGN_OR_RETURN(Regex regex, Regex::compile(expression));
  return Pattern(std::move(regex));
}

Status Pattern::find(std::string_view text, FunctionRef<void(size_t, size_t)> on_match) const {
  if (const auto* scanner = std::get_if<Scanner>(&what_)) {
    for (size_t i = 0; i < text.size();) {
      const size_t end = scan(*scanner, text, i);
      on_match(i, end);
      i = end;
    }
  } else if (const auto* literal = std::get_if<std::string>(&what_)) {
    for (size_t i = text.find(*literal); i != std::string_view::npos; i = text.find(*literal, i)) {
      on_match(i, i + literal->size());
      i += literal->size();
    }
  } else if (const auto* regex = std::get_if<Regex>(&what_)) {
    return regex->find(text, on_match);
  } else {
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      if (char_class(next_code_point(text, i)) == CharClass::number) on_match(begin, i);
    }
  }
  return {};
}

Result<std::string> Pattern::replace(std::string_view text, std::string_view content) const {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  const auto put = [&](size_t begin, size_t end) {
    out.append(text.substr(done, begin - done)).append(content);
    done = end;
  };
  LIGNUM_RETURN_IF_ERROR(find(text, put));
  out.append(text.substr(done));
  return out;
}

}  // namespace lignum::tokenizer
