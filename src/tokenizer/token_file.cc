#include "tokenizer/token_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace lignum::tokenizer {
namespace {

static_assert(std::endian::native == std::endian::little, "the ids are mapped as they lie in the file");

// The version changes whenever the same tokenizer and text would give other ids.
struct Header {
  std::array<char, 8> magic{'L', 'I', 'G', 'N', 'I', 'D', 'S', '1'};
  Hash128 tokenizer{}, text{};
  int64_t text_bytes = 0, count = 0;
  uint64_t ids_hash = 0;
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 64);

// Whether the file is what `want`, but for the ids' number and hash, says.
bool holds(const MappedFile& file, Header want) {
  Header header;
  if (file.bytes().size() < sizeof(header)) return false;
  std::memcpy(&header, file.bytes().data(), sizeof(header));
  const auto ids = file.bytes().subspan(sizeof(header));
  want.count = static_cast<int64_t>(ids.size() / sizeof(int32_t));
  want.ids_hash = XXH3_64bits(ids.data(), ids.size());
  return header == want && ids.size() % sizeof(int32_t) == 0;
}

}  // namespace

Hash128 hash128(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

std::string hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash[0], hash[1]); }

Result<std::string> token_cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/lignum/tokens";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/lignum/tokens";
  return user_error(
      "neither XDG_CACHE_HOME nor HOME is set, so there is no folder to keep token ids in; set one");
}

Result<TokenFile> TokenFile::open(const std::string& path, const Tokenizer& tokenizer,
                                  const Hash128& tokenizer_hash, const std::string& folder) {
  LIGNUM_ASSIGN_OR_RETURN(const MappedFile text, MappedFile::open(path));
  Header header;
  header.tokenizer = tokenizer_hash;
  header.text = hash128(as_text(text.bytes()));
  header.text_bytes = static_cast<int64_t>(text.bytes().size());
  const std::string name =
      join_path(folder, hex(hash128(as_text(std::as_bytes(std::span(&header, 1))))) + ".ids");
  if (path_exists(name)) {
    LIGNUM_ASSIGN_OR_RETURN(MappedFile kept, MappedFile::open(name));
    if (holds(kept, header)) return TokenFile(std::move(kept), header.text_bytes);
  }
  const Result<std::vector<int32_t>> ids = tokenizer.encode(as_text(text.bytes()));
  if (!ids.ok()) return ids.status().with_context(path);
  header.count = static_cast<int64_t>(ids->size());
  header.ids_hash = XXH3_64bits(ids->data(), ids->size() * sizeof(int32_t));
  LIGNUM_RETURN_IF_ERROR(make_directories(folder));
  std::vector<std::byte> bytes(sizeof(header) + ids->size() * sizeof(int32_t));
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!ids->empty()) std::memcpy(bytes.data() + sizeof(header), ids->data(), ids->size() * sizeof(int32_t));
  LIGNUM_RETURN_IF_ERROR(write_file_atomic(name, bytes));
  LIGNUM_ASSIGN_OR_RETURN(MappedFile written, MappedFile::open(name));
  return TokenFile(std::move(written), header.text_bytes);
}

std::span<const int32_t> TokenFile::ids() const {
  const auto ids = file_.bytes().subspan(sizeof(Header));
  return {reinterpret_cast<const int32_t*>(ids.data()), ids.size() / sizeof(int32_t)};
}

}  // namespace lignum::tokenizer
