// What a Split, a Replace or a Digits looks for in a text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "tokenizer/regex.h"
#include "tokenizer/scanner.h"

namespace lignum::tokenizer {

class Pattern {
 public:
  static Pattern literal(std::string text);  // not empty
  static Pattern number();                   // one character of \p{N}
  static Pattern scanner(Scanner scanner) { return Pattern(scanner); }
  // A scanner's where there is one for the expression.
  static Result<Pattern> expression(const std::string& expression);

  // on_match(begin, end) for each match, left to right.
  Status find(std::string_view text, FunctionRef<void(size_t begin, size_t end)> on_match) const;
  // A copy of the text with `content` for each match.
  Result<std::string> replace(std::string_view text, std::string_view content) const;

 private:
  struct Number {};
  using What = std::variant<std::string, Number, Scanner, Regex>;
  explicit Pattern(What what) : what_(std::move(what)) {}

  What what_;
};

}  // namespace lignum::tokenizer
