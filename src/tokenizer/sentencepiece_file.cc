#include "tokenizer/sentencepiece_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "base/text.h"
#include "base/wire.h"
#include "tokenizer/engine.h"

namespace lignum::tokenizer {
namespace {

constexpr size_t kMaxPiece = 1024;

Status expect(const wire::Field& f, wire::Type type, const char* name) {
  if (f.type == type) return {};
  return user_error("the field {} has another wire type than its own", name);
}

Status read_flag(const wire::Field& f, const char* name, bool& flag) {
  LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::varint, name));
  flag = f.value != 0;
  return {};
}

// The reader's own errors are of broken messages: here, of what a user brought.
Status done(const wire::Reader& reader) {
  return reader.status().ok() ? Status() : user_error("{}", reader.status().message());
}

Status read_piece(std::string_view message, SentencePieceFile& file) {
  SentencePieceFile::Piece piece;
  const size_t id = file.pieces.size();
  wire::Reader reader(message);
  wire::Field f;
  while (reader.next(f)) {
    if (f.number == 1) {
      LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::bytes, "piece"));
      piece.text = f.bytes;
    } else if (f.number == 2) {
      LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::fixed32, "score"));
      piece.score = f.single();
    } else if (f.number == 3) {
      LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::varint, "type"));
      if (f.value < 1 || f.value > 6) return user_error("piece {}: type {} is none of 1 to 6", id, f.value);
      piece.type = static_cast<PieceType>(f.value);
    }
  }
  LIGNUM_RETURN_IF_ERROR(done(reader));
  if (piece.text.empty() || piece.text.size() > kMaxPiece)
    return user_error("piece {} has {} bytes; 1 to {} are allowed", id, piece.text.size(), kMaxPiece);
  if (!is_utf8(piece.text) || piece.text.find('\0') != std::string_view::npos)
    return user_error("piece {} '{}' is no UTF-8, or holds a NUL", id, shown(piece.text));
  if (!std::isfinite(piece.score))
    return user_error("piece {} '{}': the score is {}", id, shown(piece.text), piece.score);
  file.pieces.push_back(piece);
  return {};
}

Status read_trainer(std::string_view message, SentencePieceFile& file) {
  wire::Reader reader(message);
  wire::Field f;
  while (reader.next(f)) {
    if (f.number == 3) {
      LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::varint, "model_type"));
      if (f.value < 1 || f.value > 4)
        return user_error("model_type {} is none of 1 (unigram), 2 (bpe), 3 (word), 4 (char)", f.value);
      file.type = static_cast<SentencePieceType>(f.value);
    } else if (f.number == 24) {
      LIGNUM_RETURN_IF_ERROR(read_flag(f, "treat_whitespace_as_suffix", file.whitespace_is_suffix));
    } else if (f.number == 35) {
      LIGNUM_RETURN_IF_ERROR(read_flag(f, "byte_fallback", file.byte_fallback));
    }
  }
  return done(reader);
}

// A table of the normaliser: the bytes of a double-array trie, a u32 their number before them, and behind
// them the replacements, each ended by a NUL. A unit of the trie (darts-clone): bit 31 marks a value; else
// the low byte is a label, bit 8 says that a value stands at the offset, bits 10 to 30 hold the offset, which
// bit 9 shifts by 8. A step goes from place i to i ^ offset ^ label, so each unit's 256 next places must
// exist. The first unit is gone through whatever its bit 31 says.
Status check_charsmap(std::string_view map) {
  static_assert(std::endian::native == std::endian::little);
  uint32_t size = 0;
  if (map.size() <= sizeof(size)) return user_error("precompiled_charsmap has {} bytes", map.size());
  std::memcpy(&size, map.data(), sizeof(size));
  map.remove_prefix(sizeof(size));
  if (size >= map.size() || size % 1024 != 0 || size == 0) {
    return user_error("precompiled_charsmap: a trie of {} bytes in a table of {}; whole KiB are expected",
                      size, map.size());
  }
  const std::string_view replacements = map.substr(size);
  if (replacements.back() != '\0') return user_error("precompiled_charsmap: the last replacement has no end");
  std::vector<uint32_t> units(size / sizeof(uint32_t));
  std::memcpy(units.data(), map.data(), size);
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t unit = units[i];
    if (unit >> 31 != 0 && i != 0) continue;
    const size_t at = i ^ static_cast<size_t>(unit >> 10 << ((unit & (1u << 9)) >> 6));
    if ((at | 0xff) >= units.size())
      return user_error("precompiled_charsmap: unit {} of {} leads to {}", i, units.size(), at);
    if ((unit >> 8 & 1) == 0) continue;
    const size_t value = units[at] & 0x7fffffffu;
    if (value >= replacements.size() || (static_cast<unsigned char>(replacements[value]) & 0xc0) == 0x80)
      return user_error("precompiled_charsmap: unit {} names the replacement at {} of {} bytes", i, value,
                        replacements.size());
  }
  if (!is_utf8(replacements)) return user_error("precompiled_charsmap: a replacement is no UTF-8");
  return {};
}

Status read_normalizer(std::string_view message, SentencePieceFile& file) {
  wire::Reader reader(message);
  wire::Field f;
  while (reader.next(f)) {
    switch (f.number) {
      case 1:
        LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::bytes, "normalizer_spec.name"));
        file.normalizer = f.bytes;
        break;
      case 2:
        LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::bytes, "precompiled_charsmap"));
        file.charsmap_bytes = f.bytes.size();
        if (!f.bytes.empty()) LIGNUM_RETURN_IF_ERROR(check_charsmap(f.bytes));
        break;
      case 3:
        LIGNUM_RETURN_IF_ERROR(read_flag(f, "add_dummy_prefix", file.add_dummy_prefix));
        break;
      case 4:
        LIGNUM_RETURN_IF_ERROR(read_flag(f, "remove_extra_whitespaces", file.remove_extra_whitespaces));
        break;
      case 5:
        LIGNUM_RETURN_IF_ERROR(read_flag(f, "escape_whitespaces", file.escape_whitespaces));
        break;
      default:
        break;
    }
  }
  return done(reader);
}

Status check_pieces(const SentencePieceFile& file) {
  if (file.pieces.empty()) return user_error("no pieces");
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& piece = file.pieces[id];
    if (!seen.insert(piece.text).second)
      return user_error("piece {} '{}' appears twice", id, shown(piece.text));
    if (piece.type == PieceType::byte && !(piece.text.size() == 6 && piece.text.starts_with("<0x")))
      return user_error("piece {} '{}' is of type byte and none of <0x00> to <0xFF>", id, shown(piece.text));
  }
  if (const int64_t unknown = file.count(PieceType::unknown); unknown != 1)
    return user_error("{} pieces are of type unknown; one is expected", unknown);
  const int64_t bytes = file.count(PieceType::byte);
  if (bytes != (file.byte_fallback ? 256 : 0))
    return user_error("{} pieces are of type byte, and byte_fallback is {}", bytes, file.byte_fallback);
  for (int b = 0; b < 256 && file.byte_fallback; ++b) {
    const std::string name = fmt::format("<0x{:02X}>", b);
    if (!seen.contains(name)) return user_error("byte_fallback is true, but there is no piece {}", name);
  }
  return {};
}

}  // namespace

int64_t SentencePieceFile::count(PieceType piece_type) const {
  return std::count_if(pieces.begin(), pieces.end(),
                       [&](const Piece& piece) { return piece.type == piece_type; });
}

const char* sentencepiece_type_name(SentencePieceType type) {
  switch (type) {
    case SentencePieceType::unigram:
      return "unigram";
    case SentencePieceType::bpe:
      return "BPE";
    case SentencePieceType::word:
      return "words";
    case SentencePieceType::character:
      return "characters";
  }
  return "";
}

Result<SentencePieceFile> read_sentencepiece_file(std::string_view bytes) {
  SentencePieceFile file;
  wire::Reader reader(bytes);
  wire::Field f;
  while (reader.next(f)) {
    if (f.number < 1 || f.number > 5) continue;  // extensions
    LIGNUM_RETURN_IF_ERROR(expect(f, wire::Type::bytes, "of the model"));
    if (f.number == 1) {
      if (file.pieces.size() > kMaxId) return user_error("more than {} pieces", kMaxId + 1);
      LIGNUM_RETURN_IF_ERROR(read_piece(f.bytes, file));
    } else if (f.number == 2) {
      LIGNUM_RETURN_IF_ERROR(read_trainer(f.bytes, file).with_context("trainer_spec"));
    } else if (f.number == 3) {
      LIGNUM_RETURN_IF_ERROR(read_normalizer(f.bytes, file).with_context("normalizer_spec"));
    } else if (f.number == 5) {
      SentencePieceFile other;
      LIGNUM_RETURN_IF_ERROR(read_normalizer(f.bytes, other).with_context("denormalizer_spec"));
    }
  }
  LIGNUM_RETURN_IF_ERROR(done(reader));
  LIGNUM_RETURN_IF_ERROR(check_pieces(file));
  return file;
}

}  // namespace lignum::tokenizer
