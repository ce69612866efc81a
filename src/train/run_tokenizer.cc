#include "train/run_tokenizer.h"

#include <filesystem>

#include "base/file.h"

namespace lignum::train {
namespace {

Result<SharedTokenizer> load(const std::string& path, int64_t model_vocab_size) {
  LIGNUM_ASSIGN_OR_RETURN(std::string json, read_text(path, tokenizer::kMaxFileBytes));
  LIGNUM_ASSIGN_OR_RETURN(tokenizer::Tokenizer t, tokenizer::Tokenizer::parse(json, path));
  if (t.text_vocab_size() > model_vocab_size) {
    return user_error("{}: ids go up to {}, but the model's vocabulary has {}; set vocab_size={} or more",
                      path, t.text_vocab_size() - 1, model_vocab_size, t.text_vocab_size());
  }
  const tokenizer::Hash128 hash = tokenizer::hash128(json);
  return SharedTokenizer(
      std::make_shared<const RunTokenizer>(RunTokenizer{path, std::move(json), hash, std::move(t)}));
}

}  // namespace

Result<SharedTokenizer> find_tokenizer(const config::Config& config, int64_t model_vocab_size) {
  const std::string& given = config.text("tokenizer_path");
  const bool bytes = config.text("tokenizer_type") == "bytes";
  if (bytes && !given.empty()) {
    return user_error(
        "tokenizer_type=bytes reads no tokenizer: remove tokenizer_path={}, or set "
        "tokenizer_type=huggingface",
        given);
  }
  if (bytes || config.text("dataset_type") != "text") return SharedTokenizer();
  if (!given.empty()) {
    const bool folder = std::filesystem::is_directory(given);
    Result<SharedTokenizer> t =
        load(folder ? join_path(given, tokenizer::kFileName) : given, model_vocab_size);
    return t.ok() ? t : t.status().with_context("tokenizer_path");
  }
  const std::string& model = config.text("model_path");
  const std::string beside = join_path(model, tokenizer::kFileName);
  if (model.empty() || !path_exists(beside)) return SharedTokenizer();
  Result<SharedTokenizer> t = load(beside, model_vocab_size);
  return t.ok() ? t : t.status().with_context("model_path's tokenizer (tokenizer_type=bytes does without)");
}

Result<SharedTokenizer> tokenizer_of_weights(const std::string& folder, SharedTokenizer own,
                                             const config::Config& config, int64_t model_vocab_size) {
  const std::string path = join_path(folder, tokenizer::kFileName);
  if (config.text("dataset_type") != "text" || config.text("tokenizer_type") == "bytes" || !path_exists(path))
    return own;
  if (own && own->path == path) return own;
  LIGNUM_ASSIGN_OR_RETURN(SharedTokenizer theirs, load(path, model_vocab_size));
  if (own && own->hash != theirs->hash) {
    return user_error(
        "tokenizer_path: {} is not the tokenizer that the weights were trained with, {}; remove "
        "tokenizer_path",
        own->path, path);
  }
  return theirs;
}

}  // namespace lignum::train
