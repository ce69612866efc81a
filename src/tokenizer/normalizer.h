// What tokenizer.json's `normalizer` does to a text before it is split.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {

struct Replace {
  Pattern pattern;
  std::string content;
};
struct Prepend {
  std::string prefix;  // before a text that is not empty
};

struct Lowercase {};
struct StripAccents {};  // combining marks; composed characters stay: an NFD goes before
struct Strip {           // white space at the ends of each text between added tokens
  bool left = true, right = true;
};

class Normalizer {
 public:
  using Step = std::variant<NormalForm, Replace, Prepend, Lowercase, StripAccents, Strip>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  // Of well-formed UTF-8.
  Result<std::string> apply(std::string text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lignum::tokenizer
