#include "tokenizer/pipeline.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {

Pipeline::Pipeline(Bpe model, Parts parts) : model_(std::move(model)), parts_(std::move(parts)) {}

Result<std::unique_ptr<Pipeline>> Pipeline::make(Bpe model, Parts parts) {
  std::unique_ptr<Pipeline> made(new Pipeline(std::move(model), std::move(parts)));
  Pipeline& t = *made;
  t.vocab_size_ = t.text_vocab_size_ = t.model_.vocab_size();
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_text, normalized_text;
  std::set<int32_t> seen;
  for (const AddedToken& a : t.parts_.added) {
    const std::string_view there = t.model_.token(a.id);
    const int32_t in_model = t.model_.id_of(a.content);
    if (in_model >= 0 ? in_model != a.id : !there.empty()) {
      return user_error(
          "the added token '{}' has the id {}, but in the vocabulary {}", shown(a.content), a.id,
          in_model >= 0 ? fmt::format("it is {}", in_model) : fmt::format("that is '{}'", shown(there)));
    }
    if (a.id < 0 || a.id > kMaxId)
      return user_error("the added token '{}' has the id {}; 0 to {} are allowed", shown(a.content), a.id,
                        kMaxId);
    if (!seen.insert(a.id).second) return user_error("two added tokens have the id {}", a.id);
    t.vocab_size_ = std::max<int64_t>(t.vocab_size_, a.id + 1);
    if (!a.special) t.text_vocab_size_ = std::max<int64_t>(t.text_vocab_size_, a.id + 1);
    if (!a.normalized) {
      raw.push_back(a);
      raw_text.push_back(a.content);
      continue;
    }
    LIGNUM_ASSIGN_OR_RETURN(std::string text, t.parts_.normalizer.apply(a.content));
    normalized.push_back(a);
    normalized_text.push_back(std::move(text));
  }
  LIGNUM_ASSIGN_OR_RETURN(t.raw_, TokenFinder::make(std::move(raw), raw_text));
  LIGNUM_ASSIGN_OR_RETURN(t.normalized_, TokenFinder::make(std::move(normalized), normalized_text));
  std::sort(t.parts_.added.begin(), t.parts_.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return made;
}

int32_t Pipeline::id_of(std::string_view token) const {
  for (const AddedToken& a : parts_.added)
    if (a.content == token) return a.id;
  return model_.id_of(token);
}

const AddedToken* Pipeline::added(int32_t id) const {
  const auto it = std::lower_bound(parts_.added.begin(), parts_.added.end(), id,
                                   [](const AddedToken& a, int32_t i) { return a.id < i; });
  return it != parts_.added.end() && it->id == id ? &*it : nullptr;
}

std::string_view Pipeline::token(int32_t id) const {
  const AddedToken* a = added(id);
  return a != nullptr ? std::string_view(a->content) : model_.token(id);
}

bool Pipeline::is_special(int32_t id) const {
  const AddedToken* a = added(id);
  return a != nullptr && a->special;
}

Status Pipeline::encode_section(std::string_view text, bool at_start, bool allow_special, BpeScratch& scratch,
                                std::vector<int32_t>& ids) const {
  std::string buffer;
  if (!parts_.normalizer.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(buffer, parts_.normalizer.apply(std::string(text)));
    text = buffer;
  }
  const auto encode_piece = [&](std::string_view piece) { return model_.encode(piece, scratch, ids); };
  Status status;
  normalized_.find(text, allow_special, [&](const AddedToken* token, std::string_view part) {
    if (token != nullptr) {
      ids.push_back(token->id);
    } else if (status.ok()) {
      status = parts_.pre_tokenizer.run(part, at_start && part.data() == text.data(), encode_piece);
    }
  });
  return status;
}

Status Pipeline::encode(std::string_view text, bool allow_special, std::vector<int32_t>& ids) const {
  ids.reserve(ids.size() + text.size() / 3 + 8);
  std::unique_ptr<BpeScratch> scratch = scratch_.take();
  Status status;
  raw_.find(text, allow_special, [&](const AddedToken* token, std::string_view part) {
    if (token != nullptr) {
      ids.push_back(token->id);
    } else if (status.ok()) {
      status = encode_section(part, part.data() == text.data(), allow_special, *scratch, ids);
    }
  });
  scratch_.give_back(std::move(scratch));
  return status;
}

Result<std::string> Pipeline::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids)
    if (!skip_special_tokens || !is_special(id)) tokens.emplace_back(token(id));
  return parts_.decoder.apply(std::move(tokens));
}

Description Pipeline::describe() const {
  Description d;
  d.kind = model_.options().byte_level ? "byte-level BPE" : "BPE";
  d.merges = model_.merges();
  d.added = static_cast<int64_t>(parts_.added.size());
  for (const AddedToken& a : parts_.added)
    if (a.special) d.special.push_back(a.content);
  d.parts = parts_.description;
  return d;
}

}  // namespace lignum::tokenizer
