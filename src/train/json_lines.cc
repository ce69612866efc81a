#include "train/json_lines.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "exec/thread_pool.h"

namespace lignum::train {
namespace {

std::string kind_of(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  return fmt::format("{} {}", value.is_array() || value.is_object() ? "an" : "a", value.type_name());
}

Result<std::string> text_of(std::string_view line, const std::string& what, const std::string& field) {
  LIGNUM_ASSIGN_OR_RETURN(nlohmann::json object, parse_json(line, what));
  if (!object.is_object()) {
    return user_error("{}: it is {}; each line must be an object with the field '{}'", what, kind_of(object),
                      shown(field));
  }
  const auto at = object.find(field);
  if (at == object.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items())
      if (names.size() < 8) names.push_back(fmt::format("'{}'", shown(name)));
    return user_error("{}: no field '{}' (train_data_columns, eval_data_columns); it has {}", what,
                      shown(field), names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  if (!at->is_string()) {
    return user_error("{}: field '{}' is {}; it must be a string", what, shown(field), kind_of(*at));
  }
  return std::move(at->get_ref<std::string&>());
}

// Texts become ids some megabytes at a time: enough for all threads, little beside the ids.
class Encoder {
 public:
  Encoder(const SharedTokenizer& tokenizer, Parallel& pool) : tokenizer_(tokenizer), pool_(pool) {}

  Status add(std::string text) {
    constexpr int64_t kMostBytes = 8 << 20;
    waiting_bytes_ += static_cast<int64_t>(text.size());
    text_bytes_ += static_cast<int64_t>(text.size());
    waiting_.push_back(std::move(text));
    return waiting_bytes_ < kMostBytes ? Status() : flush();
  }
  Status flush() {
    if (tokenizer_) {
      const std::vector<std::string_view> texts(waiting_.begin(), waiting_.end());
      LIGNUM_ASSIGN_OR_RETURN(const auto all, tokenizer_->tokenizer.encode_all(texts, {}, pool_));
      for (const std::vector<int32_t>& one : all) append(one);
    } else {
      for (const std::string& text : waiting_) append(std::as_bytes(std::span(text)));
    }
    waiting_.clear();
    waiting_bytes_ = 0;
    return {};
  }

  int64_t text_bytes() const { return text_bytes_; }
  std::span<const int64_t> ends() const { return ends_; }
  std::span<const int32_t> ids() const { return ids_; }

 private:
  template <class Document>
  void append(const Document& document) {
    for (const auto token : document) ids_.push_back(static_cast<int32_t>(token));
    ends_.push_back(static_cast<int64_t>(ids_.size()));
  }

  const SharedTokenizer& tokenizer_;
  Parallel& pool_;
  std::vector<std::string> waiting_;
  int64_t waiting_bytes_ = 0, text_bytes_ = 0;
  std::vector<int64_t> ends_;
  std::vector<int32_t> ids_;
};

Status encode(std::string_view text, const std::string& path, const std::string& field, Encoder& encoder) {
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::string what = fmt::format("{}, line {}", path, number);
    if (static_cast<int64_t>(line.size()) > kMaxLineBytes) {
      return user_error("{}: {} bytes; a line holds at most {}: cut the document", what, line.size(),
                        kMaxLineBytes);
    }
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    LIGNUM_ASSIGN_OR_RETURN(std::string document, text_of(line, what, field));
    LIGNUM_RETURN_IF_ERROR(encoder.add(std::move(document)).with_context(what + " or before"));
  }
  return encoder.flush().with_context(path);
}

}  // namespace

Result<DocumentFile> json_lines(const std::string& path, const std::string& field,
                                const SharedTokenizer& tokenizer, const std::string& folder, int threads) {
  LIGNUM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  DocumentFile::Source source;
  if (tokenizer) source.tokenizer = tokenizer->hash;
  const tokenizer::Hash128 content = tokenizer::hash128(as_text(file.bytes()));
  source.text = tokenizer::hash128(tokenizer::hex(content) + " " + field);
  const std::string name = join_path(
      folder, fmt::format("{}-{}.docs", tokenizer::hex(source.text), tokenizer::hex(source.tokenizer)));
  if (path_exists(name)) {
    Result<DocumentFile> kept = DocumentFile::open(name);
    if (kept.ok() && kept->source().tokenizer == source.tokenizer && kept->source().text == source.text)
      return kept;
  }
  LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(threads));
  Encoder encoder(tokenizer, *pool);
  LIGNUM_RETURN_IF_ERROR(encode(as_text(file.bytes()), path, field, encoder));
  source.text_bytes = encoder.text_bytes();
  LIGNUM_RETURN_IF_ERROR(make_directories(folder));
  LIGNUM_RETURN_IF_ERROR(DocumentFile::write(name, source, encoder.ends(), encoder.ids()));
  return DocumentFile::open(name);
}

}  // namespace lignum::train
