#include "tokenizer/normalizer.h"

namespace lignum::tokenizer {
namespace {

Result<std::string> run(const NormalForm& form, std::string text) { return normal_form(text, form); }
Result<std::string> run(const Replace& replace, std::string text) {
  return replace.pattern.replace(text, replace.content);
}
Result<std::string> run(const Prepend& prepend, std::string text) {
  return text.empty() ? text : prepend.prefix + text;
}
Result<std::string> run(const Lowercase&, std::string text) { return lower_case(text); }
Result<std::string> run(const StripAccents&, std::string text) { return without_marks(text); }
Result<std::string> run(const Strip& strip, std::string text) {
  const size_t begin = strip.left ? white_space_end(text, 0) : 0;
  const size_t end = strip.right ? white_space_begin(text, begin, text.size()) : text.size();
  return text.substr(begin, end - begin);
}

}  // namespace

Result<std::string> Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) {
    Result<std::string> next = std::visit([&](const auto& s) { return run(s, std::move(text)); }, step);
    if (!next.ok()) return next;
    text = std::move(next).value();
  }
  return text;
}

}  // namespace lignum::tokenizer
