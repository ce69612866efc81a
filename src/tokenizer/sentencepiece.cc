// SentencePiece models as an engine: by their own library, whose encoding our BPE does where it gives the
// same ids.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>

#include "base/text.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/sentencepiece_file.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which stands for a space in pieces

// BPE models by our own BPE, which has the library's ids and several times its speed
// (bench/results/tokenizers.md). The library merges the pair whose piece has the highest score, the leftmost
// of equal ones; user-defined pieces are cut out of the normalised text first, the longest at each place, and
// merge with nothing.
class OwnBpe {
 public:
  // Nothing, where that is not all: a table of the normaliser, other treatment of white space, pieces that
  // are taken apart again (unused), characters in pieces that are none themselves.
  static Result<std::optional<OwnBpe>> make(const SentencePieceFile& file) {
    if (!takes(file)) return std::optional<OwnBpe>();
    Bpe::Vocabulary vocabulary;
    std::unordered_set<std::string_view> normal;
    std::vector<const SentencePieceFile::Piece*> by_score;
    std::vector<AddedToken> user_defined;
    std::vector<std::string> texts;
    for (const auto& piece : file.pieces) {
      const auto id = static_cast<int32_t>(vocabulary.size());
      vocabulary.emplace_back(piece.text, id);
      if (piece.type == PieceType::normal) {
        normal.insert(piece.text);
        by_score.push_back(&piece);
      } else if (piece.type == PieceType::user_defined) {
        texts.emplace_back(piece.text);
        user_defined.push_back({.id = id, .content = texts.back()});
      }
    }
    std::sort(by_score.begin(), by_score.end(),
              [](const auto* a, const auto* b) { return a->score > b->score; });
    Bpe::Merges merges;
    std::vector<uint32_t> ranks;
    for (size_t i = 0, first = 0; i < by_score.size(); ++i) {
      const auto* piece = by_score[i];
      if (piece->score != by_score[first]->score) first = i;
      for (size_t cut = 1; cut < piece->text.size(); ++cut) {
        const std::string_view left = piece->text.substr(0, cut), right = piece->text.substr(cut);
        if (!normal.contains(left) || !normal.contains(right)) continue;
        merges.emplace_back(left, right);
        ranks.push_back(static_cast<uint32_t>(first));
      }
    }
    LIGNUM_ASSIGN_OR_RETURN(Bpe bpe,
                            Bpe::make(vocabulary, merges, {.byte_fallback = true}, std::move(ranks)));
    LIGNUM_ASSIGN_OR_RETURN(TokenFinder finder, TokenFinder::make(std::move(user_defined), texts));
    return std::optional<OwnBpe>(OwnBpe(std::move(bpe), std::move(finder), file.add_dummy_prefix));
  }

  Status encode(std::string_view text, std::vector<int32_t>& ids) const {
    if (text.empty()) return {};
    std::string normalized;
    normalized.reserve(text.size() + text.size() / 2 + kSpace.size());
    if (dummy_prefix_) normalized = kSpace;
    for (size_t i = 0; i < text.size();) {
      const size_t space = std::min(text.find(' ', i), text.size());
      normalized += text.substr(i, space - i);
      if (space < text.size()) normalized += kSpace;
      i = space + 1;
    }
    std::unique_ptr<BpeScratch> scratch = scratch_->take();
    Status status;
    user_defined_.find(normalized, true, [&](const AddedToken* token, std::string_view part) {
      if (token != nullptr) {
        ids.push_back(token->id);
      } else if (status.ok()) {
        status = bpe_.encode(part, *scratch, ids);
      }
    });
    scratch_->give_back(std::move(scratch));
    return status;
  }

 private:
  OwnBpe(Bpe bpe, TokenFinder user_defined, bool dummy_prefix)
      : bpe_(std::move(bpe)), user_defined_(std::move(user_defined)), dummy_prefix_(dummy_prefix) {}

  static bool takes(const SentencePieceFile& file) {
    if (file.type != SentencePieceType::bpe || !file.byte_fallback || file.charsmap_bytes > 0 ||
        !file.escape_whitespaces || file.remove_extra_whitespaces || file.whitespace_is_suffix ||
        file.count(PieceType::unused) > 0)
      return false;
    std::map<std::string_view, PieceType> characters;
    for (const auto& piece : file.pieces) {
      size_t end = 0;
      next_code_point(piece.text, end);
      if (end == piece.text.size()) characters.emplace(piece.text, piece.type);
      if (piece.text.size() > kMaxAddedToken || piece.text.find(' ') != std::string_view::npos) return false;
    }
    for (const auto& piece : file.pieces) {
      if (characters.contains(piece.text)) {
        // A control piece of one character would be taken for the character.
        if (piece.type != PieceType::normal && piece.type != PieceType::user_defined) return false;
        continue;
      }
      if (piece.type != PieceType::normal) continue;
      for (size_t i = 0; i < piece.text.size();) {
        const size_t begin = i;
        next_code_point(piece.text, i);
        const auto it = characters.find(piece.text.substr(begin, i - begin));
        if (it == characters.end() || it->second != PieceType::normal) return false;
      }
    }
    return true;
  }

  Bpe bpe_;
  TokenFinder user_defined_;
  bool dummy_prefix_;
  std::unique_ptr<BpeScratchPool> scratch_ = std::make_unique<BpeScratchPool>();
};

class SentencePiece final : public Engine {
 public:
  static Result<std::unique_ptr<SentencePiece>> make(std::string_view bytes) {
    LIGNUM_ASSIGN_OR_RETURN(const SentencePieceFile file, read_sentencepiece_file(bytes));
    auto engine = std::unique_ptr<SentencePiece>(new SentencePiece);
    // The library's builder of tries throws.
    try {
      const auto status = engine->processor_.LoadFromSerializedProto(bytes);
      if (!status.ok()) return user_error("SentencePiece refuses the model: {}", status.message());
    } catch (const std::exception& e) {
      return user_error("SentencePiece refuses the model: {}", e.what());
    }
    LIGNUM_ASSIGN_OR_RETURN(engine->own_, OwnBpe::make(file));
    engine->note(file);
    std::vector<AddedToken> control;
    std::vector<std::string> texts;
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      const auto& piece = file.pieces[id];
      if (piece.type != PieceType::control) continue;
      texts.emplace_back(piece.text);
      control.push_back({.id = static_cast<int32_t>(id), .content = texts.back(), .special = true});
    }
    LIGNUM_ASSIGN_OR_RETURN(engine->control_, TokenFinder::make(std::move(control), texts));
    return engine;
  }

  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t id_of(std::string_view token) const override {
    const int id = processor_.PieceToId(token);  // the unknown piece's, where there is none
    return this->token(id) == token ? id : -1;
  }
  std::string_view token(int32_t id) const override {
    return id >= 0 && id < processor_.GetPieceSize() ? std::string_view(processor_.IdToPiece(id))
                                                     : std::string_view();
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IsControl(id);
  }
  SpecialIds special_ids() const override {
    return {.bos = processor_.bos_id(),
            .eos = processor_.eos_id(),
            .unknown = processor_.unk_id(),
            .pad = processor_.pad_id()};
  }
  Description describe() const override { return description_; }

  Status encode(std::string_view text, bool allow_special, std::vector<int32_t>& ids) const override {
    if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 2)
      return user_error("a text of {} bytes is too long for SentencePiece; cut it", text.size());
    Status status;
    const auto encode_part = [&](std::string_view part) {
      if (own_) {
        status = own_->encode(part, ids);
        return;
      }
      std::vector<int> part_ids;
      const auto encoded = processor_.Encode(part, &part_ids);
      if (!encoded.ok()) {
        status = user_error("SentencePiece: {}", encoded.message());
        return;
      }
      ids.insert(ids.end(), part_ids.begin(), part_ids.end());
    };
    if (!allow_special) {
      encode_part(text);
      return status;
    }
    control_.find(text, true, [&](const AddedToken* token, std::string_view part) {
      if (token != nullptr) {
        ids.push_back(token->id);
      } else if (status.ok()) {
        encode_part(part);
      }
    });
    return status;
  }

  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    std::string text;
    std::vector<int> run;
    Status status;
    const auto flush = [&] {
      std::string part;
      if (run.empty()) return;
      const auto decoded = processor_.Decode(run, &part);
      if (!decoded.ok() && status.ok()) status = user_error("SentencePiece: {}", decoded.message());
      text += part;
      run.clear();
    };
    for (const int32_t id : ids) {
      if (!is_special(id)) {
        run.push_back(id);
      } else if (!skip_special_tokens) {
        flush();
        text += token(id);
      }
    }
    flush();
    if (!status.ok()) return status;
    return text;
  }

 private:
  SentencePiece() = default;

  void note(const SentencePieceFile& file) {
    Description& d = description_;
    d.kind = fmt::format("SentencePiece {}", sentencepiece_type_name(file.type));
    for (const auto& piece : file.pieces)
      if (piece.type == PieceType::control) d.special.emplace_back(piece.text);
    d.added = file.count(PieceType::control) + file.count(PieceType::user_defined);
    std::string normalizer =
        fmt::format("{}, a table of {} bytes", shown(file.normalizer), file.charsmap_bytes);
    if (file.add_dummy_prefix) normalizer += file.whitespace_is_suffix ? ", space after" : ", space before";
    if (file.remove_extra_whitespaces) normalizer += ", extra white space removed";
    if (file.escape_whitespaces) normalizer += ", spaces as U+2581";
    d.parts = {{"normaliser", std::move(normalizer)},
               {"pieces", fmt::format("{} normal, {} control, {} user-defined, {} unused, {} bytes",
                                      file.count(PieceType::normal), file.count(PieceType::control),
                                      file.count(PieceType::user_defined), file.count(PieceType::unused),
                                      file.count(PieceType::byte))},
               {"unknown characters", file.byte_fallback ? "as bytes" : "one unknown token a run"},
               {"encoded by", own_ ? "Lignum's BPE" : "the library"}};
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::optional<OwnBpe> own_;  // encodes in the library's place
  TokenFinder control_;
  Description description_;
};

}  // namespace

Result<Tokenizer> Tokenizer::parse_sentencepiece(std::string_view bytes, const std::string& what) {
  Result<std::unique_ptr<SentencePiece>> engine = SentencePiece::make(bytes);
  if (!engine.ok()) return engine.status().with_context(what);
  std::vector<int32_t> prefix;
  if (const int32_t bos = (*engine)->special_ids().bos; bos >= 0) prefix.push_back(bos);
  return make(std::move(*engine), std::move(prefix), {});
}

}  // namespace lignum::tokenizer
