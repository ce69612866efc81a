// A data set's documents as token ids in one file, *.docs, which is mapped and not read: what Lignum makes of
// JSON lines, once.
//   header: magic LIGNDOC1, hash of the tokenizer (zeros: bytes), hash of the source, bytes of text, number
//   of
//           documents, number of ids, hash of what follows
//   i64 [documents]  where each document ends, in ids; ascending
//   i32 [ids]
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "tokenizer/token_file.h"

namespace lignum::train {

class DocumentFile {
 public:
  struct Source {
    tokenizer::Hash128 tokenizer{}, text{};  // text: of the bytes and of how they were read
    int64_t text_bytes = 0;                  // of the documents
    bool operator==(const Source&) const = default;
  };
  // Refuses what is damaged.
  static Result<DocumentFile> open(const std::string& path);
  static Status write(const std::string& path, const Source& source, std::span<const int64_t> ends,
                      std::span<const int32_t> ids);

  const Source& source() const { return source_; }
  std::span<const int64_t> ends() const { return ends_; }
  std::span<const int32_t> ids() const { return ids_; }

 private:
  DocumentFile(MappedFile file, Source source) : file_(std::move(file)), source_(source) {}

  MappedFile file_;
  Source source_;
  std::span<const int64_t> ends_;
  std::span<const int32_t> ids_;
};

}  // namespace lignum::train
