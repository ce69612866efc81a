// A SentencePiece .model as the bytes say it: a protobuf message of pieces, trainer and normaliser settings.
// Read by hand, and strictly, before the library sees it: the library aborts on some broken files, and
// follows a broken table of its normaliser beyond its end. Message:
// https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::tokenizer {

enum class PieceType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
enum class SentencePieceType : uint8_t { unigram = 1, bpe, word, character };

struct SentencePieceFile {
  struct Piece {
    std::string_view text;  // a view into the bytes
    float score = 0;
    PieceType type = PieceType::normal;
  };
  std::vector<Piece> pieces;  // by id
  SentencePieceType type = SentencePieceType::unigram;
  bool byte_fallback = false, whitespace_is_suffix = false;
  std::string_view normalizer;  // its name
  size_t charsmap_bytes = 0;    // of the normaliser's table; 0: it changes no character
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;

  int64_t count(PieceType piece_type) const;
};

const char* sentencepiece_type_name(SentencePieceType type);

// A file that the library may be given. Errors name the piece or field and say what is wrong with it.
Result<SentencePieceFile> read_sentencepiece_file(std::string_view bytes);

}  // namespace lignum::tokenizer
