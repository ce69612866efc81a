#include "train/run_tokenizer.h"

#include <filesystem>
#include <optional>

#include "base/file.h"

namespace lignum::train {
namespace {

using tokenizer::Format;
using tokenizer::Tokenizer;

// What the keys ask for.
struct Wanted {
  std::string type;
  Format format = Format::json;
  tokenizer::TiktokenKind ranks = tokenizer::TiktokenKind::llama3;
  bool bos = true, eos = true;
};

Result<Wanted> wanted_of(const config::Config& config) {
  Wanted w;
  w.type = config.text("tokenizer_type");
  w.format = w.type == "sentencepiece" ? Format::sentencepiece
             : w.type == "tiktoken"    ? Format::tiktoken
                                       : Format::json;
  w.bos = config.boolean("add_bos");
  w.eos = config.boolean("add_eos");
  LIGNUM_ASSIGN_OR_RETURN(w.ranks, tokenizer::tiktoken_kind(config.text("tokenizer_pattern")));
  return w;
}

const char* type_of(Format format) {
  return format == Format::sentencepiece ? "sentencepiece"
         : format == Format::tiktoken    ? "tiktoken"
                                         : "huggingface";
}

// In a folder that somebody brings; Llama 3's ranks have SentencePiece's name.
const char* file_name(Format format) {
  return format == Format::json ? tokenizer::kFileName : tokenizer::kModelFileName;
}
// In a checkpoint.
const char* kept_name(Format format) {
  return format == Format::sentencepiece ? tokenizer::kModelFileName : tokenizer::kFileName;
}

Status surround(const Wanted& w, Tokenizer& t) {
  std::vector<int32_t> prefix, suffix;
  if (w.format == Format::json) {
    if (w.bos) prefix.assign(t.prefix().begin(), t.prefix().end());
    if (w.eos) suffix.assign(t.suffix().begin(), t.suffix().end());
  } else {
    const tokenizer::TiktokenEnds ends = tokenizer::tiktoken_ends(w.ranks);
    const bool ranks = w.format == Format::tiktoken;
    const int32_t bos = ranks ? t.id_of(ends.bos) : t.special_ids().bos;
    const int32_t eos = ranks ? t.id_of(ends.eos) : t.special_ids().eos;
    if (w.bos && bos < 0) return user_error("add_bos=true, but the tokenizer has no BOS; set add_bos=false");
    if (w.eos && eos < 0) return user_error("add_eos=true, but the tokenizer has no EOS; set add_eos=false");
    if (w.bos) prefix.push_back(bos);
    if (w.eos) suffix.push_back(eos);
  }
  t.surround(std::move(prefix), std::move(suffix));
  return {};
}

// `format` is the file's; a checkpoint's of ranks is tokenizer.json.
Result<SharedTokenizer> load(const std::string& path, Format format, const Wanted& wanted,
                             int64_t model_vocab_size) {
  LIGNUM_ASSIGN_OR_RETURN(std::string bytes, read_text(path, tokenizer::kMaxFileBytes));
  const Result<Format> found = tokenizer::format_of(bytes);
  if (found.ok() && *found != format) {
    return user_error("{}: this is {}; set tokenizer_type={}", path, tokenizer::format_name(*found),
                      type_of(*found));
  }
  if (format == Format::tiktoken) {
    Result<std::string> json = tokenizer::tiktoken_to_json(bytes, wanted.ranks);
    if (!json.ok()) return json.status().with_context(path);
    bytes = std::move(*json);
    format = Format::json;
  }
  LIGNUM_ASSIGN_OR_RETURN(Tokenizer t, Tokenizer::read(bytes, path, {.format = format}));
  LIGNUM_RETURN_IF_ERROR(surround(wanted, t).with_context(path));
  if (t.text_vocab_size() > model_vocab_size) {
    return user_error("{}: ids go up to {}, but the model's vocabulary has {}; set vocab_size={} or more",
                      path, t.text_vocab_size() - 1, model_vocab_size, t.text_vocab_size());
  }
  std::string key = tokenizer::hex(tokenizer::hash128(bytes));
  for (const auto ids : {t.prefix(), t.suffix()}) {
    key += ' ';
    for (const int32_t id : ids) key += fmt::format(" {}", id);
  }
  return SharedTokenizer(std::make_shared<const RunTokenizer>(
      RunTokenizer{path, kept_name(format), std::move(bytes), tokenizer::hash128(key), std::move(t)}));
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
  LIGNUM_ASSIGN_OR_RETURN(const Wanted wanted, wanted_of(config));
  if (!given.empty()) {
    const bool folder = std::filesystem::is_directory(given);
    Result<SharedTokenizer> t = load(folder ? join_path(given, file_name(wanted.format)) : given,
                                     wanted.format, wanted, model_vocab_size);
    return t.ok() ? t : t.status().with_context("tokenizer_path");
  }
  const std::string& model = config.text("model_path");
  const std::string beside = join_path(model, file_name(wanted.format));
  if (model.empty() || !path_exists(beside)) {
    if (wanted.format != Format::json) {
      return user_error("tokenizer_type={} and no tokenizer: set tokenizer_path, or a model_path with a {}",
                        wanted.type, file_name(wanted.format));
    }
    const std::string other = join_path(model, tokenizer::kModelFileName);
    if (!model.empty() && path_exists(other)) {
      return user_error("model_path has {} and no {}: set tokenizer_type=sentencepiece or tiktoken", other,
                        tokenizer::kFileName);
    }
    return SharedTokenizer();
  }
  Result<SharedTokenizer> t = load(beside, wanted.format, wanted, model_vocab_size);
  return t.ok() ? t : t.status().with_context("model_path's tokenizer (tokenizer_type=bytes does without)");
}

Result<SharedTokenizer> tokenizer_of_weights(const std::string& folder, SharedTokenizer own,
                                             const config::Config& config, int64_t model_vocab_size) {
  LIGNUM_ASSIGN_OR_RETURN(const Wanted wanted, wanted_of(config));
  const std::string path = join_path(folder, kept_name(wanted.format));
  if (config.text("dataset_type") != "text" || wanted.type == "bytes" || !path_exists(path)) return own;
  if (own && own->path == path) return own;
  const Format format = wanted.format == Format::tiktoken ? Format::json : wanted.format;
  LIGNUM_ASSIGN_OR_RETURN(SharedTokenizer theirs, load(path, format, wanted, model_vocab_size));
  if (own && own->hash != theirs->hash) {
    return user_error(
        "tokenizer_path: {} is not the tokenizer that the weights were trained with, {}; remove "
        "tokenizer_path",
        own->path, path);
  }
  return theirs;
}

}  // namespace lignum::train
