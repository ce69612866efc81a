// The tokeniser inside a GGUF file as a tokenizer.json.
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "convert/gguf_model.h"
#include "tokenizer/json_writer.h"

namespace lignum::convert {
namespace {

using Json = nlohmann::ordered_json;
using tokenizer::byte_level, tokenizer::isolating_split;
using Texts = std::vector<std::string_view>;

// Of the file's token_type.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

Json sequence(const Json& first, const Json& then) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({first, then})}};
}

// By llama.cpp's name for it; null where the name is unknown. The patterns are those of the models' own
// tokenizer.json.
Json pre_tokenizer(std::string_view name) {
  if (name == "gpt-2" || name == "default") return byte_level(true);
  if (name == "smollm") return sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(true));
  if (name == "llama-bpe")
    return sequence(
        isolating_split(
            R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
            R"(\s*[\r\n]+|\s+(?!\S)|\s+)"),
        byte_level(false));
  return {};
}
constexpr std::string_view kPreTokenizers = "default, gpt-2, llama-bpe and smollm";

Result<Texts> texts(const GgufReader& file, std::string_view key) {
  LIGNUM_ASSIGN_OR_RETURN(std::optional<Texts> list, file.get<Texts>(key));
  if (!list) return user_error("{}: {} is missing", file.path(), key);
  for (size_t i = 0; i < list->size(); ++i)
    if (!is_utf8((*list)[i])) return user_error("{}: {}[{}] is not UTF-8", file.path(), key, i);
  return *std::move(list);
}

// transformers' tokenizer_config.json.
Result<std::string> config_of(const GgufReader& file, const Texts& tokens) {
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kSpecial = {
      {{"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}}};
  for (const auto& [which, name] : kSpecial) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", which);
    LIGNUM_ASSIGN_OR_RETURN(const std::optional<int64_t> id, file.get<int64_t>(key));
    if (!id) continue;
    if (*id < 0 || static_cast<uint64_t>(*id) >= tokens.size())
      return user_error("{}: {}={} is none of the {} tokens", file.path(), key, *id, tokens.size());
    json[name] = tokens[static_cast<size_t>(*id)];
  }
  LIGNUM_ASSIGN_OR_RETURN(const auto chat, file.get<std::string_view>("tokenizer.chat_template"));
  if (chat && !is_utf8(*chat)) return user_error("{}: tokenizer.chat_template is not UTF-8", file.path());
  if (chat) json["chat_template"] = *chat;
  return json.dump(2) + "\n";
}

}  // namespace

Result<TokenizerFiles> tokenizer_from_gguf(const GgufReader& file) {
  LIGNUM_ASSIGN_OR_RETURN(const auto model, file.get<std::string_view>("tokenizer.ggml.model"));
  if (model != "gpt2")
    return user_error("{}: tokenizer.ggml.model={} is not converted; gpt2, a byte-level BPE, is", file.path(),
                      shown(model.value_or("(none)")));
  LIGNUM_ASSIGN_OR_RETURN(const auto pre, file.get<std::string_view>("tokenizer.ggml.pre"));
  const Json split_by = pre_tokenizer(pre.value_or("default"));
  if (split_by.is_null())
    return user_error("{}: tokenizer.ggml.pre={} is not implemented; {} are", file.path(), shown(*pre),
                      kPreTokenizers);
  LIGNUM_ASSIGN_OR_RETURN(const Texts tokens, texts(file, "tokenizer.ggml.tokens"));
  LIGNUM_ASSIGN_OR_RETURN(const Texts merges, texts(file, "tokenizer.ggml.merges"));
  LIGNUM_ASSIGN_OR_RETURN(const auto types, file.get<std::vector<int64_t>>("tokenizer.ggml.token_type"));
  LIGNUM_ASSIGN_OR_RETURN(const auto adds_bos, file.get<bool>("tokenizer.ggml.add_bos_token"));
  LIGNUM_ASSIGN_OR_RETURN(const auto bos, file.get<int64_t>("tokenizer.ggml.bos_token_id"));
  if (types && types->size() != tokens.size())
    return user_error("{}: {} tokens, but {} token types", file.path(), tokens.size(), types->size());

  Json added = Json::array();
  Json::object_t vocab;  // appended to: a key of an ordered object is searched from its begin
  vocab.reserve(tokens.size());
  std::set<std::string_view> seen;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = types ? (*types)[id] : kNormal;
    if (!seen.insert(tokens[id]).second)
      return user_error("{}: tokenizer.ggml.tokens[{}]: '{}' is there before", file.path(), id,
                        shown(tokens[id]));
    vocab.push_back({std::string(tokens[id]), id});
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    added.push_back(tokenizer::added_token(static_cast<int64_t>(id), tokens[id], type != kUserDefined));
  }
  Json post = byte_level(true);
  if (adds_bos.value_or(false)) {
    if (!bos || *bos < 0 || static_cast<uint64_t>(*bos) >= tokens.size())
      return user_error("{}: tokenizer.ggml.add_bos_token without a bos_token_id among the tokens",
                        file.path());
    const std::string_view token = tokens[static_cast<size_t>(*bos)];
    const Json first = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
    const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    post = {{"type", "TemplateProcessing"},
            {"single", Json::array({first, text})},
            {"pair", Json::array({first, text, second})},
            {"special_tokens",
             {{std::string(token),
               {{"id", token}, {"ids", Json::array({*bos})}, {"tokens", Json::array({token})}}}}}};
  }
  const Json json = tokenizer::byte_level_bpe(std::move(added), split_by, std::move(post), std::move(vocab),
                                              merges, pre == "llama-bpe");
  LIGNUM_ASSIGN_OR_RETURN(std::string config, config_of(file, tokens));
  return TokenizerFiles{json.dump(2) + "\n", std::move(config)};
}

}  // namespace lignum::convert
