#include "tokenizer/json_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "tokenizer/bpe_trainer.h"

namespace lignum::tokenizer {
namespace {

using Ordered = nlohmann::ordered_json;

Ordered pre_tokenizer(std::string_view expression) {
  if (expression.empty()) return byte_level(true);
  return {{"type", "Sequence"},
          {"pretokenizers", Ordered::array({isolating_split(expression), byte_level(false)})}};
}

Ordered post_processor(const ByteLevelFile& file) {
  if (file.bos.empty()) return nullptr;
  const auto bos = std::find_if(file.specials.begin(), file.specials.end(),
                                [&](const SpecialToken& s) { return s.text == file.bos; });
  LIGNUM_CHECK(bos != file.specials.end(), "'{}' is not among {} special tokens", file.bos,
               file.specials.size());
  const auto piece = [&](int type_id) -> Ordered {
    return {{"SpecialToken", {{"id", bos->text}, {"type_id", type_id}}}};
  };
  const auto text = [](const char* id, int type_id) -> Ordered {
    return {{"Sequence", {{"id", id}, {"type_id", type_id}}}};
  };
  const Ordered token = {{"id", bos->text}, {"ids", {bos->id}}, {"tokens", {bos->text}}};
  return {{"type", "TemplateProcessing"},
          {"single", Ordered::array({piece(0), text("A", 0)})},
          {"pair", Ordered::array({piece(0), text("A", 0), piece(1), text("B", 1)})},
          {"special_tokens", {{bos->text, token}}}};
}

}  // namespace

Ordered byte_level(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Ordered isolating_split(std::string_view regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Ordered added_token(int64_t id, std::string_view text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Ordered byte_level_bpe(Ordered added_tokens, Ordered pre_tokenizer, Ordered post_processor, Ordered vocab,
                       Ordered merges, bool ignore_merges) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added_tokens)},
          {"normalizer", nullptr},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", std::move(post_processor)},
          {"decoder", byte_level(true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", ignore_merges},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}}}};
}

std::string to_json(const ByteLevelFile& file) {
  Ordered added = Ordered::array(), merges = Ordered::array();
  for (const SpecialToken& special : file.specials)
    added.push_back(added_token(special.id, special.text, true));
  Ordered::object_t vocab;
  for (size_t i = 0; i < file.tokens.size(); ++i)
    if (!file.tokens[i].empty()) vocab.Container::emplace_back(file.tokens[i], i);  // no look-up: each is new
  for (const auto& [left, right] : file.merges)
    merges.push_back({file.tokens[static_cast<size_t>(left)], file.tokens[static_cast<size_t>(right)]});
  const Ordered root = byte_level_bpe(std::move(added), pre_tokenizer(file.expression), post_processor(file),
                                      std::move(vocab), std::move(merges), file.ignore_merges);
  return root.dump(1) + "\n";
}

std::string to_json(const TrainedBpe& trained) {
  ByteLevelFile file;
  file.tokens = trained.tokens;
  file.merges = trained.merges;
  for (size_t i = 0; i < trained.specials; ++i)
    file.specials.push_back({trained.tokens[i], static_cast<int32_t>(i)});
  if (trained.scanner != Scanner::gpt2) file.expression = scanner_expression(trained.scanner);
  return to_json(file);
}

}  // namespace lignum::tokenizer
