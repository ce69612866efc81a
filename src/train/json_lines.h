// JSON lines: an object a line, one of whose fields is a document's text. Blank lines are passed over. A line
// that is broken, has no such field, or holds more than kMaxLineBytes is an error with its number.
#pragma once

#include <string>

#include "train/document_file.h"
#include "train/run_tokenizer.h"

namespace lignum::train {

inline constexpr int64_t kMaxLineBytes = int64_t{64} << 20;

// The documents of `path`: token ids, each with what the tokenizer's template adds, or bytes where
// `tokenizer` is null. Made once, on `threads` threads, and kept in `folder` under a hash of file, field and
// tokenizer. A kept file that is damaged is made anew.
Result<DocumentFile> json_lines(const std::string& path, const std::string& field,
                                const SharedTokenizer& tokenizer, const std::string& folder, int threads);

}  // namespace lignum::train
