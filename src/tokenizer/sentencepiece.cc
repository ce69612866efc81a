// SentencePiece's own library as an engine.
#include <sentencepiece_processor.h>

#include <exception>
#include <limits>

#include "base/text.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/sentencepiece_file.h"
#include "tokenizer/tokenizer.h"

namespace lignum::tokenizer {
namespace {

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
               {"unknown characters", file.byte_fallback ? "as bytes" : "one unknown token a run"}};
  }

  sentencepiece::SentencePieceProcessor processor_;
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
