// libFuzzer target: any bytes behind the 256 single bytes are tiktoken ranks or an error of the user's. What
// is taken gives every text back.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using namespace lignum;

std::string single_bytes() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (unsigned b = 0; b < 256; ++b) {
    lines += {kDigits[b >> 2], kDigits[(b & 3) << 4]};
    lines += fmt::format("== {}\n", b);
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tokenizer::Tokenizer;
  if (size == 0) return 0;
  static const std::string kBytes = single_bytes();
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto kind = static_cast<tokenizer::TiktokenKind>(data[0] % 4);
  for (const std::string& ranks : {std::string(rest), kBytes + std::string(rest)}) {
    const auto t = Tokenizer::read(ranks, "fuzz", {.format = tokenizer::Format::tiktoken, .ranks = kind});
    if (!t.ok()) {
      if (t.status().code() != Code::user_error || t.status().message().empty()) std::abort();
      continue;
    }
    for (const std::string_view text : {std::string_view("aab <|endoftext|> \n \xff"), rest}) {
      const auto ids = t->encode(text);
      if (!ids.ok() || *t->decode(*ids) != tokenizer::replace_ill_formed(text)) std::abort();
    }
  }
  return 0;
}
