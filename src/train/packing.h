// Rows of documents. Every token of a document but its first is a target once, whatever the policy: a
// document longer than a row is cut into pieces, and a piece's last target is the next piece's first token.
// Nothing is a target by its id: a document's last token and padding have none, wherever they stand.
//
// A piece's positions count from 0, and its number in the row, from 1, is its tokens' segment; padding has
// segment 0, position 0 and id 0.
#pragma once

#include <memory>
#include <vector>

#include "train/documents.h"
#include "train/rows.h"

namespace lignum::train {

enum class Packing : uint8_t {
  none,               // one piece a row
  first_fit,          // each piece, in order, into the first row that has room for it
  concat_then_split,  // documents one after the other, cut at each row's end: only the last row has padding
};

// Documents of fewer than two tokens have no target and are left out. `seq` >= 1 tokens a row. `key` is the
// configuration key that named the files.
Result<std::unique_ptr<Rows>> document_rows(std::string_view key, std::vector<Documents> files, int64_t seq,
                                            Packing packing);

}  // namespace lignum::train
