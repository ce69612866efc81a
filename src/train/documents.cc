#include "train/documents.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "train/json_lines.h"

namespace lignum::train {
namespace {

// Where the ids of a file of them lie, and how wide they are.
struct Shard {
  size_t offset = 0;
  int bytes = 2;  // of an id
};

// What stands after 'key': in the dictionary of a .npy header.
std::string_view npy_field(std::string_view header, std::string_view key) {
  const size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

// NumPy's format, versions 1 to 3: magic, version, length of the header, a Python dictionary.
Result<Shard> npy_shard(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view text = as_text(bytes);
  if (text.size() < 12 || !text.starts_with("\x93NUMPY")) return user_error("{}: no .npy file", path);
  const int version = std::to_integer<int>(bytes[6]);
  const size_t prefix = version == 1 ? 10 : 12;
  size_t length = 0;
  for (size_t i = prefix; i-- > 8;) length = length << 8 | std::to_integer<size_t>(bytes[i]);
  if (version < 1 || version > 3 || length > text.size() - prefix)
    return user_error("{}: its .npy header is damaged", path);
  const std::string_view header = text.substr(prefix, length);
  const std::string_view type = npy_field(header, "descr"), shape = npy_field(header, "shape");
  Shard shard{prefix + length, 0};
  if (type.starts_with("'<u2'")) shard.bytes = 2;
  if (type.starts_with("'<u4'") || type.starts_with("'<i4'")) shard.bytes = 4;
  if (shard.bytes == 0) {
    return user_error(
        "{}: its ids are of type {}; '<u2', '<u4' and '<i4' are allowed: save it with "
        "astype(numpy.uint16) or uint32",
        path, shown(type.substr(0, std::min(type.find(','), type.size()))));
  }
  int64_t count = -1;
  const char* end = shape.data() + shape.size();
  const auto [after, error] = std::from_chars(shape.data() + !shape.empty(), end, count);
  const std::string_view rest(after, static_cast<size_t>(end - after));
  if (!shape.starts_with("(") || error != std::errc() || count < 0 ||
      !(rest.starts_with(",)") || rest.starts_with(")"))) {
    return user_error("{}: its shape is {}; one dim is allowed: save it flat", path,
                      shown(shape.substr(0, std::min(shape.find(')') + 1, shape.size()))));
  }
  const auto space = static_cast<int64_t>(text.size() - shard.offset);
  if (count > space / shard.bytes || count * shard.bytes != space)
    return user_error("{}: {} ids of {} bytes, but {} bytes follow the header", path, count, shard.bytes,
                      space);
  return shard;
}

// llm.c: int32 [256], of which magic, version, number of tokens; then the ids (dev/data/data_common.py).
// None: another magic. A file that has one and does not keep to the rest is damaged, not one of bare ids: its
// header would be read as tokens wherever the vocabulary is large enough.
Result<std::optional<Shard>> llmc_shard(std::span<const std::byte> bytes, const std::string& path) {
  constexpr size_t kHeader = 1024;
  constexpr int32_t kNarrow = 20240520, kWide = 20240801;
  std::array<int32_t, 3> head{};
  if (bytes.size() < sizeof(head)) return std::optional<Shard>();
  std::memcpy(head.data(), bytes.data(), sizeof(head));
  const auto [magic, version, count] = head;
  if (magic != kNarrow && magic != kWide) return std::optional<Shard>();
  const Shard shard{kHeader, magic == kNarrow ? 2 : 4};
  if (const int32_t known = magic == kNarrow ? 1 : 7; version != known)
    return user_error("{}: llm.c's magic {} with version {}; {} is read", path, magic, version, known);
  if (bytes.size() < kHeader)
    return user_error("{}: {} bytes end inside llm.c's header of {}", path, bytes.size(), kHeader);
  const size_t space = bytes.size() - kHeader;
  if (count < 0 || static_cast<size_t>(count) * static_cast<size_t>(shard.bytes) != space)
    return user_error("{}: llm.c's header says {} ids of {} bytes, but {} bytes follow it: cut short?", path,
                      count, shard.bytes, space);
  return std::optional<Shard>(shard);
}

}  // namespace

FileKind file_kind(std::string_view path) {
  if (path.ends_with(".jsonl")) return FileKind::json_lines;
  if (path.ends_with(".docs")) return FileKind::documents;
  if (path.ends_with(".npy")) return FileKind::npy;
  if (path.ends_with(".bin")) return FileKind::bin;
  return FileKind::text;
}

Documents::Documents(File file, std::span<const std::byte> ids, Width width, int64_t text_bytes)
    : file_(std::move(file)), ids_(ids), width_(width), text_bytes_(text_bytes) {}

int64_t Documents::tokens() const {
  const int shift = width_ == Width::u8 ? 0 : width_ == Width::u16 ? 1 : 2;
  return static_cast<int64_t>(ids_.size() >> shift);
}

std::span<const int64_t> Documents::ends() const {
  if (const auto* file = std::get_if<DocumentFile>(&file_)) return file->ends();
  return own_ends_;
}

void Documents::read(int64_t first, int64_t count, int32_t* to) const {
  const std::byte* from = ids_.data();
  switch (width_) {
    case Width::u8:
      for (int64_t i = 0; i < count; ++i) to[i] = std::to_integer<int32_t>(from[first + i]);
      break;
    case Width::u16:
      for (int64_t i = 0; i < count; ++i) {
        uint16_t id = 0;  // a header may leave the ids at an odd place
        std::memcpy(&id, from + 2 * (first + i), sizeof(id));
        to[i] = id;
      }
      break;
    case Width::u32:
      std::memcpy(to, from + 4 * first, static_cast<size_t>(4 * count));
      break;
  }
}

void Documents::cut(int64_t separator) {
  constexpr int64_t kPiece = 4096;
  std::array<int32_t, kPiece> piece{};
  const int64_t all = tokens();
  for (int64_t first = 0; separator >= 0 && first < all; first += kPiece) {
    const int64_t count = std::min(kPiece, all - first);
    read(first, count, piece.data());
    for (int64_t i = 0; i < count; ++i)
      if (piece[static_cast<size_t>(i)] == separator) own_ends_.push_back(first + i + 1);
  }
  if (all > 0 && (own_ends_.empty() || own_ends_.back() != all)) own_ends_.push_back(all);
}

// At most 64 pieces of a file: ids of another width or tokenizer show there, and a large corpus is not read
// twice. The step itself refuses each id that its vocabulary has not.
Status Documents::check_ids(const std::string& path, int64_t vocab_size) const {
  constexpr int64_t kPiece = 2048, kPieces = 64;
  std::array<int32_t, kPiece> piece{};
  const int64_t all = tokens(), stride = std::max(kPiece, all / kPieces);
  for (int64_t first = 0; first < all; first += stride) {
    const int64_t count = std::min(kPiece, all - first);
    read(first, count, piece.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<uint32_t>(piece[static_cast<size_t>(i)]);
      if (id >= static_cast<uint64_t>(vocab_size)) {
        return user_error(
            "{}: id {} at place {}; the model's vocabulary allows 0 to {}: was it made with "
            "another tokenizer?",
            path, id, first + i, vocab_size - 1);
      }
    }
  }
  return {};
}

Result<Documents> Documents::open_shard(const std::string& path, FileKind kind) {
  LIGNUM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  Shard shard;
  if (kind == FileKind::npy) {
    LIGNUM_ASSIGN_OR_RETURN(shard, npy_shard(file.bytes(), path));
  } else {
    LIGNUM_ASSIGN_OR_RETURN(const std::optional<Shard> llmc, llmc_shard(file.bytes(), path));
    if (!llmc && file.bytes().size() % 2 != 0) {
      return user_error("{}: {} bytes: neither llm.c's header nor an even number, as ids of uint16 have",
                        path, file.bytes().size());
    }
    shard = llmc.value_or(shard);
  }
  const std::span<const std::byte> ids = file.bytes().subspan(shard.offset);
  return Documents(std::move(file), ids, shard.bytes == 2 ? Width::u16 : Width::u32, 0);
}

Result<Documents> Documents::open(const std::string& path, const DocumentOptions& o) {
  const FileKind kind = file_kind(path);
  std::optional<Documents> d;
  if (kind == FileKind::npy || kind == FileKind::bin) {
    LIGNUM_ASSIGN_OR_RETURN(d, open_shard(path, kind));
    LIGNUM_RETURN_IF_ERROR(d->check_ids(path, o.vocab_size));
    d->cut(o.separator);
  } else if (kind == FileKind::text && !o.tokenizer) {
    LIGNUM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
    const std::span<const std::byte> bytes = file.bytes();
    d = Documents(std::move(file), bytes, Width::u8, static_cast<int64_t>(bytes.size()));
    d->cut(-1);
  } else if (kind == FileKind::documents) {
    LIGNUM_ASSIGN_OR_RETURN(DocumentFile file, DocumentFile::open(path));
    if (file.source().tokenizer != (o.tokenizer ? o.tokenizer->hash : tokenizer::Hash128{}))
      return user_error("{}: made with another tokenizer than this run's; make it anew", path);
    const auto ids = std::as_bytes(file.ids());
    const int64_t text_bytes = file.source().text_bytes;
    d = Documents(std::move(file), ids, Width::u32, text_bytes);
    LIGNUM_RETURN_IF_ERROR(d->check_ids(path, o.vocab_size));
  } else {
    LIGNUM_ASSIGN_OR_RETURN(const std::string folder, tokenizer::token_cache_folder());
    if (kind == FileKind::text) {
      LIGNUM_ASSIGN_OR_RETURN(
          auto file, tokenizer::TokenFile::open(path, o.tokenizer->tokenizer, o.tokenizer->hash, folder));
      const auto ids = std::as_bytes(file.ids());
      const int64_t text_bytes = file.text_bytes();
      d = Documents(std::move(file), ids, Width::u32, text_bytes);
      d->cut(-1);
    } else {
      LIGNUM_ASSIGN_OR_RETURN(DocumentFile file, json_lines(path, o.field, o.tokenizer, folder, o.threads));
      const auto ids = std::as_bytes(file.ids());
      const int64_t text_bytes = file.source().text_bytes;
      d = Documents(std::move(file), ids, Width::u32, text_bytes);
    }
  }
  if (d->tokens() == 0) return user_error("{}: it holds no token; leave it out", path);
  return std::move(*d);
}

}  // namespace lignum::train
