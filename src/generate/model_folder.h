// The models that can be loaded to be run: which folder a name means, and what stands in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "base/status.h"
#include "config/model_config.h"
#include "tokenizer/tokenizer.h"

namespace lignum::generate {

struct ModelFolder {
  std::string folder;
  config::ModelConfig model;
  ModelFiles files;
  std::vector<int32_t> eos_ids;  // of generation_config.json, else of config.json
};

// path: a Hugging Face folder, a checkpoint, or a run (its newest checkpoint). A checkpoint's files are
// checked against their sums.
Result<ModelFolder> open_model(const std::string& path);

// Texts and tokens of a model.
class Codec {
 public:
  // The folder's tokenizer.json or tokenizer.model; without one a model of 256 tokens reads bytes. Another is
  // refused, and so is a tokenizer of more tokens than the model has.
  static Result<Codec> open(const ModelFolder& model);

  // With what the tokenizer puts around a text (BOS, say).
  Result<std::vector<int32_t>> encode(std::string_view text) const;
  // Well-formed UTF-8: what is no character, or the begin of one, becomes U+FFFD. Special tokens, and ids
  // that the tokenizer has no token for (a padded vocabulary's), are left out.
  Result<std::string> decode(std::span<const int32_t> ids) const;

 private:
  Codec() = default;

  std::optional<tokenizer::Tokenizer> tokenizer_;  // none: bytes
};

// The text of a growing sequence, piece by piece: characters are held back until they are whole.
class TextStream {
 public:
  explicit TextStream(const Codec& codec) : codec_(codec) {}  // which outlives the stream
  // What the token adds; nothing while it may be a part of a character.
  Result<std::string> push(int32_t id);
  // What was held back.
  Result<std::string> finish();

 private:
  Result<std::string> take(bool all);

  const Codec& codec_;
  std::vector<int32_t>
      ids_;             // from a token on whose text is printed, and which the next ones are decoded behind
  size_t printed_ = 0;  // tokens of ids_ whose text is printed
};

}  // namespace lignum::generate
