#include "tokenizer/normalizer.h"

namespace lignum::tokenizer {

Result<std::string> Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<NormalForm>(&step)) {
      text = normal_form(text, *form);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      LIGNUM_ASSIGN_OR_RETURN(text, replace->pattern.replace(text, replace->content));
    } else if (!text.empty()) {
      text.insert(0, std::get<Prepend>(step).prefix);
    }
  }
  return text;
}

}  // namespace lignum::tokenizer
