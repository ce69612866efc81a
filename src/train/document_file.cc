#include "train/document_file.h"

#include <bit>
#include <cstring>

namespace lignum::train {
namespace {

static_assert(std::endian::native == std::endian::little, "the ids are mapped as they lie in the file");

// The version changes whenever the same source would give other documents.
struct Header {
  std::array<char, 8> magic{'L', 'I', 'G', 'N', 'D', 'O', 'C', '1'};
  tokenizer::Hash128 tokenizer{}, text{}, body{};
  int64_t text_bytes = 0, documents = 0, ids = 0;
};
static_assert(sizeof(Header) == 80);

}  // namespace

Result<DocumentFile> DocumentFile::open(const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  const auto damaged = [&](std::string_view why) {
    return user_error("{}: {}: it is damaged or no file of documents; make it anew", path, why);
  };
  const std::span<const std::byte> bytes = mapped.bytes();
  Header header;
  const Header ours;
  if (bytes.size() < sizeof(header)) return damaged("shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != ours.magic) return damaged("does not begin with LIGNDOC1");
  const auto body = bytes.subspan(sizeof(header));
  const auto space = static_cast<int64_t>(body.size());
  // Each number by itself first: their sum must not overflow.
  if (header.documents < 0 || header.ids < 0 || header.documents > space / 8 || header.ids > space / 4 ||
      header.documents * 8 + header.ids * 4 != space)
    return damaged("its size is not what its header says");
  if (tokenizer::hash128(as_text(body)) != header.body)
    return damaged("its content is not what its header says");
  DocumentFile file(std::move(mapped), {header.tokenizer, header.text, header.text_bytes});
  file.ends_ = {reinterpret_cast<const int64_t*>(body.data()), static_cast<size_t>(header.documents)};
  file.ids_ = {reinterpret_cast<const int32_t*>(body.data() + header.documents * 8),
               static_cast<size_t>(header.ids)};
  int64_t before = 0;
  for (const int64_t end : file.ends_) {
    if (end < before) return damaged("its documents are not ascending");
    before = end;
  }
  if (before != header.ids) return damaged("its documents do not end where its ids do");
  return file;
}

Status DocumentFile::write(const std::string& path, const Source& source, std::span<const int64_t> ends,
                           std::span<const int32_t> ids) {
  std::vector<std::byte> bytes(sizeof(Header) + ends.size_bytes() + ids.size_bytes());
  std::byte* body = bytes.data() + sizeof(Header);
  if (!ends.empty()) std::memcpy(body, ends.data(), ends.size_bytes());
  if (!ids.empty()) std::memcpy(body + ends.size_bytes(), ids.data(), ids.size_bytes());
  Header header;
  header.tokenizer = source.tokenizer;
  header.text = source.text;
  header.text_bytes = source.text_bytes;
  header.documents = static_cast<int64_t>(ends.size());
  header.ids = static_cast<int64_t>(ids.size());
  header.body = tokenizer::hash128(as_text(std::span<const std::byte>(bytes).subspan(sizeof(Header))));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return write_file_atomic(path, bytes);
}

}  // namespace lignum::train
