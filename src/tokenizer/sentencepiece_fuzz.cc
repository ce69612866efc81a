// libFuzzer target: any bytes, or a good model with any bytes overwritten, are a SentencePiece model or an
// error of the user's. What is taken encodes to ids of its vocabulary.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/wire.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace lignum;

std::string good_model() {
  wire::Writer model, trainer, normalizer;
  const auto piece = [&](std::string_view text, float score, int type) {
    wire::Writer w;
    w.bytes(1, text);
    w.fixed32(2, score);
    w.integer(3, type);
    model.bytes(1, w.str());
  };
  piece("<unk>", 0, 2);
  piece("<s>", 0, 3);
  piece("[user]", 0, 4);
  for (const char* text : {"\xe2\x96\x81", "a", "b", "ab",
                           "\xe2\x96\x81"
                           "a"})
    piece(text, -1, 1);
  trainer.integer(3, 2);
  // A table of the normaliser with one unit that has a value: 'A' becomes 'a'.
  std::string map(4 + 1024, '\0');
  const uint32_t size = 1024, root = 0, label = 'A' | 1u << 8 | ('A' ^ 'B') << 10, value = 1u << 31;
  map.replace(0, 4, reinterpret_cast<const char*>(&size), 4);
  map.replace(4, 4, reinterpret_cast<const char*>(&root), 4);
  map.replace(4 + 4 * 'A', 4, reinterpret_cast<const char*>(&label), 4);
  map.replace(4 + 4 * 'B', 4, reinterpret_cast<const char*>(&value), 4);
  normalizer.bytes(2, map.append("a\0", 2));
  model.bytes(2, trainer.str());
  model.bytes(3, normalizer.str());
  return model.str();
}

void read(std::string_view bytes) {
  const auto t = tokenizer::Tokenizer::read(bytes, "fuzz", {.format = tokenizer::Format::sentencepiece});
  if (!t.ok()) {
    if (t.status().code() != Code::user_error || t.status().message().empty()) std::abort();
    return;
  }
  for (const bool allow_special : {false, true}) {
    const auto ids = t->encode("ab AB <s>[user] \xe4\xbd\xa0\n\xff ", {.allow_special = allow_special});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids)
      if (id < 0 || id >= t->vocab_size()) std::abort();
    if (!t->decode(*ids, false).ok()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    read(bytes);
    return 0;
  }
  static const std::string kGood = good_model();
  std::string model = kGood;
  for (size_t i = 0; i + 3 <= bytes.size(); i += 3) {  // a place and a byte
    const size_t at = static_cast<unsigned char>(bytes[i]) << 8 | static_cast<unsigned char>(bytes[i + 1]);
    model[at % model.size()] = bytes[i + 2];
  }
  read(model);
  return 0;
}
