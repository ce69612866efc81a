// Encodes the records of a file and times it: what bench/tokenizers compares with Hugging Face's tokenizers.
//   tokenizer_bench TOKENIZER.json RECORDS IDS [ROUNDS]
// RECORDS and IDS are lists of a uint32 count and as many bytes, or int32 ids, in this machine's order.
// Special tokens in the text are taken, and the template's added. Prints bytes and the seconds of the fastest
// round, each with a new tokenizer's empty cache.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace lignum;

Status run(int argc, char** argv) {
  if (argc < 4) return user_error("tokenizer_bench TOKENIZER.json RECORDS IDS [ROUNDS]");
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 1;
  LIGNUM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(argv[2]));
  std::vector<std::string_view> texts;
  size_t bytes = 0;
  for (size_t at = 0; at < file.bytes().size();) {
    uint32_t count = 0;
    if (file.bytes().size() - at < sizeof(count)) return user_error("{}: a cut record", argv[2]);
    std::memcpy(&count, file.bytes().data() + at, sizeof(count));
    at += sizeof(count);
    if (file.bytes().size() - at < count) return user_error("{}: a cut record", argv[2]);
    texts.emplace_back(reinterpret_cast<const char*>(file.bytes().data()) + at, count);
    at += count;
    bytes += count;
  }
  double fastest = 1e9;
  std::string out;
  for (int round = 0; round < rounds; ++round) {
    LIGNUM_ASSIGN_OR_RETURN(const tokenizer::Tokenizer t, tokenizer::Tokenizer::load(argv[1]));
    out.clear();
    double seconds = 0;
    for (const std::string_view text : texts) {
      const auto begin = std::chrono::steady_clock::now();
      LIGNUM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, t.encode(text, {.allow_special = true}));
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const auto count = static_cast<uint32_t>(ids.size());
      out.append(reinterpret_cast<const char*>(&count), sizeof(count));
      out.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    }
    fastest = std::min(fastest, seconds);
  }
  fmt::print("{} {:.6f}\n", bytes, fastest);
  return write_file_atomic(argv[3], out);
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc, argv);
  if (!status.ok()) fmt::print(stderr, "tokenizer_bench: {}\n", status.message());
  return static_cast<int>(status.code());
}
