// Regular expressions as tokenizer.json files hold them: Oniguruma's syntax, run by PCRE2 (UTF, Unicode
// properties, JIT). Where the two read an expression differently it is translated, or refused by name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/parallel.h"
#include "base/status.h"

namespace lignum::tokenizer {

class Regex {
 public:
  static Result<Regex> compile(const std::string& expression);

  // Calls on_match(begin, end) for each match in well-formed UTF-8, from left to right, none overlapping; an
  // empty match right behind another one is passed over. An expression that needs more than a bounded amount
  // of work on this text is a user's error. Safe to call from several threads at once.
  Status find(std::string_view text, FunctionRef<void(size_t begin, size_t end)> on_match) const;

 private:
  struct Code;
  Regex(std::string expression, std::shared_ptr<const Code> code)
      : expression_(std::move(expression)), code_(std::move(code)) {}

  std::string expression_;
  std::shared_ptr<const Code> code_;
};

}  // namespace lignum::tokenizer
