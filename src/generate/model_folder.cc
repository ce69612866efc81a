#include "generate/model_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "tokenizer/unicode.h"
#include "train/checkpoint.h"

namespace lignum::generate {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Result<std::string> find_folder(const std::string& path) {
  if (exists(join_path(path, "config.json"))) {
    if (exists(join_path(path, "manifest.json")))
      LIGNUM_RETURN_IF_ERROR(train::open_checkpoint(path).status());
    return path;
  }
  if (exists(join_path(path, "checkpoints"))) {
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, train::list_checkpoints(path));
    if (steps.empty()) return user_error("{}: the run has no checkpoint yet", shown(path));
    const std::string folder = train::checkpoint_folder(path, steps.back());
    LIGNUM_RETURN_IF_ERROR(train::open_checkpoint(folder).status());
    return folder;
  }
  if (!exists(path))
    return user_error("{}: no such folder; a model's, a checkpoint's or a run's is wanted", shown(path));
  return user_error(
      "{}: neither config.json nor checkpoints/ is there; a model's folder, a checkpoint's or a run's is "
      "wanted",
      shown(path));
}

Result<std::vector<int32_t>> read_eos_ids(const std::string& folder, const config::ModelConfig& model) {
  std::vector<int64_t> ids = model.eos_token_ids;
  const std::string path = join_path(folder, "generation_config.json");
  if (exists(path)) {
    LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json json, read_json(path));
    const auto eos = json.is_object() ? json.find("eos_token_id") : json.end();
    if (!json.is_object()) return user_error("{}: an object is expected", path);
    if (eos != json.end() && !eos->is_null()) {
      const auto list = eos->is_array() ? *eos : nlohmann::json::array({*eos});
      ids.clear();
      for (const nlohmann::json& id : list) {
        if (!id.is_number_integer())
          return user_error("{}: eos_token_id is {}; whole numbers are expected", path, eos->dump());
        ids.push_back(id.get<int64_t>());
      }
    }
  }
  std::vector<int32_t> out;
  for (const int64_t id : ids) {
    if (id >= 0 && id < model.vocab_size)
      out.push_back(static_cast<int32_t>(id));  // others are never sampled
  }
  return out;
}

constexpr int64_t kBytes = 256;

}  // namespace

Result<ModelFolder> open_model(const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(std::string folder, find_folder(path));
  LIGNUM_ASSIGN_OR_RETURN(config::ModelConfig model, config::model_from_folder(folder));
  LIGNUM_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::open(folder));
  LIGNUM_ASSIGN_OR_RETURN(std::vector<int32_t> eos_ids, read_eos_ids(folder, model));
  return ModelFolder{std::move(folder), std::move(model), std::move(files), std::move(eos_ids)};
}

Result<Codec> Codec::open(const ModelFolder& model) {
  Codec codec;
  std::string path = join_path(model.folder, tokenizer::kFileName);
  if (!exists(path)) path = join_path(model.folder, tokenizer::kModelFileName);
  if (exists(path)) {
    LIGNUM_ASSIGN_OR_RETURN(codec.tokenizer_, tokenizer::Tokenizer::load(path));
    if (codec.tokenizer_->vocab_size() > model.model.vocab_size) {
      return user_error("{}: {} tokens, more than the {} of the model in that folder", path,
                        codec.tokenizer_->vocab_size(), model.model.vocab_size);
    }
  } else if (model.model.vocab_size != kBytes) {
    return user_error(
        "{}: a vocabulary of {} without {} or {}; only one of 256 is taken for bytes: give the prompt as "
        "token ids "
        "(--ids)",
        model.folder, model.model.vocab_size, tokenizer::kFileName, tokenizer::kModelFileName);
  }
  return codec;
}

Result<std::vector<int32_t>> Codec::encode(std::string_view text) const {
  if (tokenizer_) return tokenizer_->encode(text);
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

Result<std::string> Codec::decode(std::span<const int32_t> ids) const {
  if (tokenizer_) {
    std::vector<int32_t> known;
    for (const int32_t id : ids)
      if (!tokenizer_->token(id).empty()) known.push_back(id);
    return tokenizer_->decode(known);
  }
  std::string text;
  for (const int32_t id : ids) text += static_cast<char>(id);
  return tokenizer::replace_ill_formed(text);
}

Result<std::string> TextStream::push(int32_t id) {
  ids_.push_back(id);
  return take(false);
}

Result<std::string> TextStream::finish() { return take(true); }

Result<std::string> TextStream::take(bool all) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string before, codec_.decode(std::span(ids_).first(printed_)));
  LIGNUM_ASSIGN_OR_RETURN(const std::string now, codec_.decode(ids_));
  if (now.size() <= before.size() || (!all && now.ends_with("\xef\xbf\xbd"))) return std::string();
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(printed_));
  printed_ = ids_.size();
  return now.substr(before.size());
}

}  // namespace lignum::generate
