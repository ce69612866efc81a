#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {

const char* format_name(Format format) {
  switch (format) {
    case Format::json:
      return "a tokenizer.json";
    case Format::sentencepiece:
      return "a SentencePiece model";
    case Format::tiktoken:
      return "a tiktoken rank file";
  }
  return "";
}

Result<Format> format_of(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && bytes[first] == '{') return Format::json;
  if (looks_like_ranks(bytes)) return Format::tiktoken;
  // Field 1 of the message, a piece.
  if (bytes.starts_with('\n')) return Format::sentencepiece;
  return user_error("neither {}, nor {}, nor {}", format_name(Format::json),
                    format_name(Format::sentencepiece), format_name(Format::tiktoken));
}

Result<Tokenizer> Tokenizer::read(std::string_view bytes, const std::string& what,
                                  const LoadOptions& options) {
  const Result<Format> found = format_of(bytes);
  if (!options.format && !found.ok()) return found.status().with_context(what);
  const Format format = options.format.value_or(found.ok() ? *found : Format::json);
  if (found.ok() && *found != format) {
    return user_error("{}: this is {}, not {}", what, format_name(*found), format_name(format));
  }
  switch (format) {
    case Format::sentencepiece:
      return parse_sentencepiece(bytes, what);
    case Format::tiktoken: {
      const Result<std::string> json = tiktoken_to_json(bytes, options.ranks);
      if (!json.ok()) return json.status().with_context(what);
      return parse(*json, what);
    }
    case Format::json:
      break;
  }
  return parse(bytes, what);
}

Result<Tokenizer> Tokenizer::load(const std::string& path, const LoadOptions& options) {
  std::string file = path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    file = join_path(path, kFileName);
    if (!path_exists(file)) file = join_path(path, kModelFileName);
    if (!path_exists(file))
      return user_error("{}: neither {} nor {} is there", path, kFileName, kModelFileName);
  }
  LIGNUM_ASSIGN_OR_RETURN(const std::string bytes, read_text(file, kMaxFileBytes));
  return read(bytes, file, options);
}

Result<Tokenizer> Tokenizer::make(std::unique_ptr<const Engine> engine, std::vector<int32_t> prefix,
                                  std::vector<int32_t> suffix) {
  for (const auto* ids : {&prefix, &suffix}) {
    for (const int32_t id : *ids)
      if (engine->token(id).empty())
        return user_error("the post-processor adds the id {}, which no token has", id);
  }
  Tokenizer t;
  t.engine_ = std::move(engine);
  t.surround(std::move(prefix), std::move(suffix));
  return t;
}

void Tokenizer::surround(std::vector<int32_t> prefix, std::vector<int32_t> suffix) {
  for (const auto* ids : {&prefix, &suffix}) {
    for (const int32_t id : *ids)
      LIGNUM_CHECK(!engine_->token(id).empty(), "id {} of {}", id, engine_->vocab_size());
  }
  prefix_ = std::move(prefix);
  suffix_ = std::move(suffix);
}

int64_t Tokenizer::text_vocab_size() const {
  int64_t size = engine_->text_vocab_size();
  for (const auto* ids : {&prefix_, &suffix_})
    for (const int32_t id : *ids) size = std::max<int64_t>(size, id + 1);
  return size;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::string buffer;
  if (!is_utf8(text)) text = buffer = replace_ill_formed(text);
  std::vector<int32_t> ids(options.add_special_tokens ? prefix_ : std::vector<int32_t>());
  LIGNUM_RETURN_IF_ERROR(engine_->encode(text, options.allow_special, ids));
  if (options.add_special_tokens) {
    // One BOS is enough.
    const auto own = ids.begin() + static_cast<std::ptrdiff_t>(prefix_.size());
    const bool has_own = options.allow_special && static_cast<size_t>(ids.end() - own) >= prefix_.size() &&
                         std::equal(prefix_.begin(), prefix_.end(), own);
    if (has_own) ids.erase(ids.begin(), own);
    ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  }
  return ids;
}

Result<std::vector<std::vector<int32_t>>> Tokenizer::encode_all(std::span<const std::string_view> texts,
                                                                const EncodeOptions& options,
                                                                Parallel& pool) const {
  std::vector<std::vector<int32_t>> out(texts.size());
  std::vector<Status> status(texts.size());
  pool.run(static_cast<int64_t>(texts.size()), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    Result<std::vector<int32_t>> ids = encode(texts[i], options);
    if (ids.ok()) {
      out[i] = std::move(ids).value();
    } else {
      status[i] = ids.status();
    }
  });
  for (size_t i = 0; i < texts.size(); ++i)
    if (!status[i].ok()) return status[i].with_context(fmt::format("text {}", i));
  return out;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  for (const int32_t id : ids)
    if (token(id).empty())
      return user_error("no token has the id {}; the vocabulary ends at {}", id, vocab_size());
  return engine_->decode(ids, skip_special_tokens);
}

}  // namespace lignum::tokenizer
