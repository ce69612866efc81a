// libFuzzer target: any bytes are a tokenizer.json, or a text for fixed tokenisers of each kind, or errors. A
// byte-level tokenizer gives back what it was given, but for ill-formed bytes.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tokenizer/bpe_trainer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using namespace lignum;
using namespace lignum::tokenizer;

void check_error(const Status& status) {
  if (status.code() != Code::user_error || status.message().empty()) std::abort();
}

// Encodes and decodes: what is encoded has ids of the vocabulary.
void use(const Tokenizer& t, std::string_view text) {
  for (const bool allow_special : {false, true}) {
    const auto ids = t.encode(text, {.allow_special = allow_special});
    if (!ids.ok()) {
      check_error(ids.status());
      continue;
    }
    for (const int32_t id : *ids)
      if (id < 0 || id >= t.vocab_size()) std::abort();
    const auto decoded = t.decode(*ids, false);
    if (!decoded.ok()) check_error(decoded.status());
  }
}

Tokenizer good(const std::string& json) {
  Result<Tokenizer> t = Tokenizer::parse(json, "good");
  if (!t.ok()) std::abort();
  return std::move(t).value();
}

std::vector<Tokenizer> byte_level_ones() {
  std::vector<Tokenizer> all;
  const std::vector<std::string_view> texts = {"the cat and the dog, the 12 and 1234;  it's\n\n  theirs"};
  for (const Scanner scanner : {Scanner::gpt2, Scanner::llama3, Scanner::qwen}) {
    Serial serial;
    const auto trained = train_bpe(
        texts, {.vocab_size = 290, .scanner = scanner, .special_tokens = {"<|end|>"}, .min_frequency = 1},
        serial);
    if (!trained.ok()) std::abort();
    all.push_back(good(to_json(*trained)));
  }
  return all;
}

// Prefix and replacements, byte fallback, a regular expression, added tokens with every flag.
Tokenizer character_one() {
  std::string vocab = R"("<unk>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁a": 5, "<s>": 6)";
  for (int b = 0; b < 256; ++b) vocab += fmt::format(R"(, "<0x{:02X}>": {})", b, 7 + b);
  return good(R"({"added_tokens": [
      {"id": 6, "content": "<s>", "special": true},
      {"id": 300, "content": "[w]", "single_word": true, "normalized": false},
      {"id": 301, "content": "[l]", "lstrip": true, "normalized": true},
      {"id": 302, "content": " [r]", "rstrip": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\w+(?!b)|\\s+"}, "behavior": "MergedWithNext", "invert": true},
      {"type": "Digits", "individual_digits": false}]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
      "merges": ["a b", "▁ a"], "vocab": {)" +
              vocab + "}}}");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const std::vector<Tokenizer> kByteLevel = byte_level_ones();
  static const Tokenizer kCharacters = character_one();
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto t = Tokenizer::parse(text, "fuzz");
    if (t.ok()) {
      use(*t, "ab <s> it's 12\n\xff\xc3\xa9  ");
    } else {
      check_error(t.status());
    }
    return 0;
  }
  for (const Tokenizer& t : kByteLevel) {
    use(t, text);
    const auto ids = t.encode(text);
    if (!ids.ok() || *t.decode(*ids) != replace_ill_formed(text)) std::abort();
  }
  use(kCharacters, text);
  return 0;
}
