#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "base/text.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

std::string byte_token(unsigned byte) { return fmt::format("<0x{:02X}>", byte); }

// The last character of a token that is not empty.
char32_t last_char(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return next_code_point(text, begin);
}

}  // namespace

std::unique_ptr<BpeScratch> BpeScratchPool::take() {
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) return std::make_unique<BpeScratch>();
  std::unique_ptr<BpeScratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void BpeScratchPool::give_back(std::unique_ptr<BpeScratch> scratch) {
  // What one long piece took is not kept for ever.
  constexpr size_t kKept = 1 << 16;
  if (scratch->symbols.capacity() > kKept) scratch->symbols = {};
  if (scratch->queue.capacity() > kKept) scratch->queue = {};
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(scratch));
}

PairTable::PairTable(size_t pairs)
    : slots_(std::bit_ceil(std::max<size_t>(2 * pairs, 16))),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {}

bool PairTable::insert(int32_t left, int32_t right, uint32_t number) {
  const uint64_t pair = key(left, right);
  size_t i = place(pair);
  while (slots_[i].pair != kEmpty && slots_[i].pair != pair) i = (i + 1) & mask_;
  if (slots_[i].pair == pair) return false;
  slots_[i] = {pair, number};
  return true;
}

Result<Bpe> Bpe::make(const Vocabulary& vocabulary, const Merges& merges, const BpeOptions& options,
                      std::vector<uint32_t> ranks) {
  LIGNUM_CHECK(ranks.empty() || ranks.size() == merges.size(), "{} ranks, {} merges", ranks.size(),
               merges.size());
  Bpe bpe(merges.size());
  bpe.options_ = options;
  bpe.ranks_ = std::move(ranks);
  LIGNUM_RETURN_IF_ERROR(bpe.add_tokens(vocabulary));
  LIGNUM_RETURN_IF_ERROR(bpe.set_symbols());
  LIGNUM_RETURN_IF_ERROR(bpe.add_merges(merges));
  return bpe;
}

Status Bpe::add_tokens(const Vocabulary& vocabulary) {
  if (vocabulary.empty()) return user_error("the vocabulary is empty");
  size_t bytes = 0;
  int32_t last = 0;
  for (const auto& [token, id] : vocabulary) {
    if (token.empty()) return user_error("the token with id {} is empty", id);
    if (id < 0 || id > kMaxId)
      return user_error("the token '{}' has the id {}; 0 to {} are allowed", shown(token), id, kMaxId);
    bytes += token.size();
    last = std::max(last, id);
  }
  if (bytes > std::numeric_limits<uint32_t>::max()) return user_error("the vocabulary has {} bytes", bytes);
  text_.reserve(bytes);
  spans_.resize(static_cast<size_t>(last) + 1);
  ids_.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary) {
    auto& span = spans_[static_cast<size_t>(id)];
    if (span.second != 0) {
      return user_error("the tokens '{}' and '{}' have the same id {}", shown(this->token(id)), shown(token),
                        id);
    }
    span = {static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(token.size())};
    text_.insert(text_.end(), token.begin(), token.end());  // within what is reserved: views stay
    if (!ids_.emplace(this->token(id), id).second)
      return user_error("the token '{}' appears twice", shown(token));
  }
  return {};
}

Status Bpe::set_symbols() {
  pages_.emplace_back().fill(-1);
  page_of_.assign(0x1100, 0);
  byte_ids_.fill(-1);
  if (!options_.unknown.empty()) {
    unknown_id_ = id_of(options_.unknown);
    if (unknown_id_ < 0)
      return user_error("unk_token '{}' is not in the vocabulary", shown(options_.unknown));
  }
  if (options_.byte_level) {
    for (unsigned b = 0; b < 256; ++b) {
      std::string token;
      append_utf8(byte_to_char(static_cast<unsigned char>(b)), token);
      byte_ids_[b] = id_of(token);
    }
    return {};
  }
  for (const auto& [token, id] : ids_) {
    size_t end = 0;
    const char32_t code = next_code_point(token, end);
    if (end != token.size()) continue;
    uint16_t& page = page_of_[code >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(pages_.size());
      pages_.emplace_back().fill(-1);
    }
    pages_[page][code & 0xff] = id;
  }
  if (options_.byte_fallback) {
    for (unsigned b = 0; b < 256; ++b) {
      byte_ids_[b] = id_of(byte_token(b));
      if (byte_ids_[b] < 0)
        return user_error("byte_fallback is true, but the vocabulary has no token {}", byte_token(b));
    }
  }
  return {};
}

Status Bpe::add_merges(const Merges& merges) {
  results_.reserve(merges.size());
  std::string joined;
  for (const auto& [left, right] : merges) {
    const int32_t left_id = id_of(left), right_id = id_of(right);
    joined.assign(left).append(right);
    const int32_t result = id_of(joined);
    if (left_id < 0 || right_id < 0 || result < 0) {
      const std::string& missing = left_id < 0 ? left : right_id < 0 ? right : joined;
      return user_error("merge {} of '{}' and '{}': '{}' is not in the vocabulary", results_.size(),
                        shown(left), shown(right), shown(missing));
    }
    if (!pairs_.insert(left_id, right_id, static_cast<uint32_t>(results_.size())))
      return user_error("the merge of '{}' and '{}' appears twice", shown(left), shown(right));
    results_.push_back(result);
    if (!options_.byte_level) note_neighbours(left_id, right_id);
  }
  return {};
}

// The symbol at the end of a token is its last character's, or the token itself (a byte's, the unknown one).
void Bpe::note_neighbours(int32_t left, int32_t right) {
  size_t end = 0;
  const int32_t ends[] = {left, char_id(last_char(token(left)))};
  const int32_t begins[] = {right, char_id(next_code_point(token(right), end))};
  for (const int32_t a : ends)
    for (const int32_t b : begins)
      if (a >= 0 && b >= 0) neighbours_.insert(a, b, 0);
}

int32_t Bpe::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? -1 : it->second;
}

std::string_view Bpe::token(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  const auto [begin, size] = spans_[static_cast<size_t>(id)];
  return {text_.data() + begin, size};
}

Status Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    return user_error("a piece of {} bytes is too long to encode", piece.size());
  return options_.byte_level ? encode_bytes(piece, scratch, ids) : encode_chars(piece, scratch, ids);
}

Status Bpe::encode_bytes(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (const WordCache::Line* line = scratch.cache.find(piece)) {
    ids.insert(ids.end(), line->ids.begin(), line->ids.begin() + line->count);
    return {};
  }
  scratch.symbols.clear();
  if (const int32_t whole = options_.ignore_merges ? id_of(bytes_to_chars(piece)) : -1; whole >= 0) {
    scratch.symbols.push_back({.id = whole});
  } else {
    bool after_unknown = false;
    for (const char c : piece) {
      const auto byte = static_cast<unsigned char>(c);
      const bool is_unknown = byte_ids_[byte] < 0;
      if (is_unknown && unknown_id_ < 0) {
        return user_error("the vocabulary has no token for the byte 0x{:02x} in '{}', and unk_token is null",
                          byte, shown(piece));
      }
      if (is_unknown && after_unknown && options_.fuse_unknown) continue;
      after_unknown = is_unknown;
      scratch.symbols.push_back({.id = is_unknown ? unknown_id_ : byte_ids_[byte]});
    }
  }
  finish(piece, scratch, ids);
  return {};
}

Status Bpe::encode_chars(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (const int32_t whole = options_.ignore_merges ? id_of(piece) : -1; whole >= 0) {
    ids.push_back(whole);
    return {};
  }
  auto& symbols = scratch.symbols;
  symbols.clear();
  size_t part = 0;  // where the symbols' text begins
  bool after_unknown = false;
  for (size_t i = 0; i < piece.size();) {
    const size_t begin = i;
    const int32_t id = char_id(next_code_point(piece, i));
    const bool is_unknown = id < 0 && !options_.byte_fallback;
    if (is_unknown && unknown_id_ < 0) {
      return user_error("the vocabulary has no token for '{}', and unk_token is null",
                        shown(piece.substr(begin, i - begin)));
    }
    if (is_unknown && after_unknown && options_.fuse_unknown) continue;
    after_unknown = is_unknown;
    const int32_t first = id >= 0      ? id
                          : is_unknown ? unknown_id_
                                       : byte_ids_[static_cast<unsigned char>(piece[begin])];
    if (!symbols.empty() && neighbours_.find(symbols.back().id, first) == PairTable::kNone) {
      finish(piece.substr(part, begin - part), scratch, ids);
      symbols.clear();
      part = begin;
    }
    symbols.push_back({.id = first});
    if (id >= 0 || is_unknown) continue;
    for (size_t k = begin + 1; k < i; ++k)
      symbols.push_back({.id = byte_ids_[static_cast<unsigned char>(piece[k])]});
  }
  if (!symbols.empty()) finish(piece.substr(part), scratch, ids);
  return {};
}

// What Hugging Face's Word::merge_all does, also where two pairs merge into the same token: an entry of the
// queue is worth taking as long as what stands at its place merges into the token that it was made for. Where
// merges share ranks, as long as what stands there has its rank: it would stand at the same place of the
// queue.
void Bpe::finish(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  auto& symbols = scratch.symbols;
  if (symbols.size() == 1) {
    ids.push_back(symbols[0].id);
    if (options_.byte_level) scratch.cache.put(text, {&symbols[0].id, 1});
    return;
  }
  if (!options_.byte_level) {
    if (const WordCache::Line* line = scratch.cache.find(text)) {
      ids.insert(ids.end(), line->ids.begin(), line->ids.begin() + line->count);
      return;
    }
  }
  auto& queue = scratch.queue;
  queue.clear();
  // The pair at a place and its result; noted in the queue where it has a rank.
  const auto look = [&](int32_t at, auto&& note) {
    auto& s = symbols[static_cast<size_t>(at)];
    s.merge = -1;
    if (s.next < 0) return;
    const uint32_t merge = pairs_.find(s.id, symbols[static_cast<size_t>(s.next)].id);
    if (merge == PairTable::kNone) return;
    s.merge = static_cast<int32_t>(merge);
    note(uint64_t{ranks_.empty() ? merge : ranks_[merge]} << 32 | static_cast<uint32_t>(at));
  };
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].prev = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
  for (int32_t i = 0; i < count; ++i) look(i, [&](uint64_t entry) { queue.push_back(entry); });
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](uint64_t entry) {
    queue.push_back(entry);
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    const uint64_t entry = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    const auto at = static_cast<int32_t>(entry & 0xffffffffu);
    auto& s = symbols[static_cast<size_t>(at)];
    if (s.id < 0 || s.merge < 0) continue;
    const auto merge = static_cast<size_t>(s.merge);
    if (ranks_.empty() ? results_[merge] != results_[entry >> 32] : ranks_[merge] != entry >> 32) continue;
    auto& right = symbols[static_cast<size_t>(s.next)];
    s.id = results_[merge];
    s.next = right.next;
    right.id = -1;
    if (s.next >= 0) symbols[static_cast<size_t>(s.next)].prev = at;
    if (s.prev >= 0) look(s.prev, push);
    look(at, push);
  }
  const size_t before = ids.size();
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  scratch.cache.put(text, std::span(ids).subspan(before));
}

}  // namespace lignum::tokenizer
