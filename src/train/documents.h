// The documents of one file of a data set. What a file holds, its name's end says:
//   .jsonl       JSON lines (json_lines.h)
//   .docs        documents that Lignum made of one with the same tokenizer (document_file.h)
//   .npy         NumPy: one dim of token ids, uint16, uint32 or int32, little-endian
//   .bin         token ids: as llm.c writes them, a header of 256 int32 that says uint16 or uint32; else as
//                nanoGPT does, uint16 from the first byte on
//   any other    text, which is one document
// Files of ids are one document each, or are cut after each id `separator`.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/file.h"
#include "train/document_file.h"
#include "train/run_tokenizer.h"

namespace lignum::train {

enum class FileKind : uint8_t { text, json_lines, documents, npy, bin };
FileKind file_kind(std::string_view path);

struct DocumentOptions {
  SharedTokenizer tokenizer = nullptr;  // a token is a byte
  std::string field = "text";           // of JSON lines
  int64_t separator = -1;               // an id that ends a document; -1: none
  int64_t vocab_size = 0;               // of the model: a sample of the ids must be below
  int threads = 1;                      // that text becomes ids on
};

// Movable, and read by any number of threads at once: the ids lie in a mapped file.
class Documents {
 public:
  // Errors name the path, and where they can the line or the place.
  static Result<Documents> open(const std::string& path, const DocumentOptions& options);

  int64_t tokens() const;
  std::span<const int64_t> ends() const;  // of each document, in tokens; ascending
  void read(int64_t first, int64_t count, int32_t* to) const;
  int64_t text_bytes() const { return text_bytes_; }            // 0: not known
  std::span<const std::byte> id_bytes() const { return ids_; }  // as they lie in the file

 private:
  enum class Width : uint8_t { u8, u16, u32 };
  using File = std::variant<MappedFile, tokenizer::TokenFile, DocumentFile>;
  Documents(File file, std::span<const std::byte> ids, Width width, int64_t text_bytes);
  static Result<Documents> open_shard(const std::string& path, FileKind kind);
  void cut(int64_t separator);
  Status check_ids(const std::string& path, int64_t vocab_size) const;

  File file_;
  std::span<const std::byte> ids_;
  Width width_;
  int64_t text_bytes_ = 0;
  std::vector<int64_t> own_ends_;  // where the file has none
};

}  // namespace lignum::train
