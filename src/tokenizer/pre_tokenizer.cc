#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace lignum::tokenizer {
namespace {

struct Span {
  size_t begin = 0, end = 0;
  bool match = false;
};

// What Hugging Face's SplitDelimiterBehavior makes of matches and the texts between them.
std::vector<Span> joined(std::vector<Span> spans, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::merged_with_next;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<Span> out;
  bool previous = false;
  for (const Span& s : spans) {
    const bool joins = behavior == SplitBehavior::contiguous ? s.match == previous : (s.match && !previous);
    if (joins && !out.empty()) {
      out.back().begin = std::min(out.back().begin, s.begin);
      out.back().end = std::max(out.back().end, s.end);
    } else {
      out.push_back(s);
    }
    previous = s.match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

const Pattern& gpt2_pattern() {
  static const Pattern kPattern = Pattern::scanner(Scanner::gpt2);
  return kPattern;
}

}  // namespace

Status PreTokenizer::run(std::string_view text, bool at_start, Sink sink) const {
  return text.empty() ? Status() : step(0, text, at_start, sink);
}

Status PreTokenizer::step(size_t i, std::string_view text, bool at_start, Sink sink) const {
  if (i == steps_.size()) return sink(text);
  const auto prefixed = [&](std::string_view prefix) { return std::string(prefix).append(text); };
  if (const auto* split = std::get_if<Split>(&steps_[i])) return cut(i, *split, text, at_start, sink);
  if (const auto* bytes = std::get_if<ByteLevel>(&steps_[i])) {
    std::string with_space;
    if (bytes->add_prefix_space && text[0] != ' ') text = with_space = prefixed(" ");
    if (!bytes->use_regex) return step(i + 1, text, at_start, sink);
    return cut(i, {gpt2_pattern(), SplitBehavior::isolated, false}, text, at_start, sink);
  }
  const auto& meta = std::get<Metaspace>(steps_[i]);
  LIGNUM_ASSIGN_OR_RETURN(std::string replaced, Pattern::literal(" ").replace(text, meta.replacement));
  const bool prepends =
      meta.prepend == Metaspace::Prepend::always || (meta.prepend == Metaspace::Prepend::first && at_start);
  if (prepends && !replaced.starts_with(meta.replacement)) replaced.insert(0, meta.replacement);
  if (!meta.split) return step(i + 1, replaced, at_start, sink);
  return cut(i, {Pattern::literal(meta.replacement), SplitBehavior::merged_with_next, false}, replaced,
             at_start, sink);
}

Status PreTokenizer::cut(size_t i, const Split& split, std::string_view text, bool at_start,
                         Sink sink) const {
  Status status;
  const auto emit = [&](size_t begin, size_t end) {
    if (begin == end || !status.ok()) return;
    status = step(i + 1, text.substr(begin, end - begin), at_start && begin == 0, sink);
  };
  size_t done = 0;
  if (split.behavior == SplitBehavior::isolated || split.behavior == SplitBehavior::removed) {
    // Pieces go on as they are found.
    const bool keeps_all = split.behavior == SplitBehavior::isolated;
    const auto on_match = [&](size_t begin, size_t end) {
      if (keeps_all || !split.invert) emit(done, begin);
      if (keeps_all || split.invert) emit(begin, end);
      done = end;
    };
    LIGNUM_RETURN_IF_ERROR(split.pattern.find(text, on_match));
    if (keeps_all || !split.invert) emit(done, text.size());
    return status;
  }
  std::vector<Span> spans;
  const auto on_match = [&](size_t begin, size_t end) {
    if (done != begin) spans.push_back({done, begin, split.invert});
    spans.push_back({begin, end, !split.invert});
    done = end;
  };
  LIGNUM_RETURN_IF_ERROR(split.pattern.find(text, on_match));
  if (done != text.size()) spans.push_back({done, text.size(), split.invert});
  for (const Span& s : joined(std::move(spans), split.behavior)) emit(s.begin, s.end);
  return status;
}

}  // namespace lignum::tokenizer
