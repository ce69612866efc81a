// tokenizer.json's `pre_tokenizer`: cuts a normalised text into the pieces that the model sees one by one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/pattern.h"

namespace lignum::tokenizer {

enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Split {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the pattern finds what is between the delimiters
};
// Also says that the model's tokens are written in the byte alphabet; nothing may come after it.
struct ByteLevel {
  bool add_prefix_space = true;
  bool use_regex = true;  // GPT-2's split
};
struct Metaspace {
  enum class Prepend : uint8_t { always, first, never };
  std::string replacement = "\xe2\x96\x81";  // U+2581
  Prepend prepend = Prepend::always;
  bool split = true;
};

class PreTokenizer {
 public:
  using Step = std::variant<Split, ByteLevel, Metaspace>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  const std::vector<Step>& steps() const { return steps_; }

  // Calls sink for each piece, in order; none is empty, and each lives only for its call. `text` is
  // well-formed UTF-8; at_start: it begins where the whole text does. The sink's first error ends it.
  Status run(std::string_view text, bool at_start, FunctionRef<Status(std::string_view piece)> sink) const;

 private:
  using Sink = FunctionRef<Status(std::string_view)>;
  Status step(size_t i, std::string_view text, bool at_start, Sink sink) const;
  Status cut(size_t i, const Split& split, std::string_view text, bool at_start, Sink sink) const;

  std::vector<Step> steps_;
};

}  // namespace lignum::tokenizer
