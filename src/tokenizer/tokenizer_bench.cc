// Encodes the records of a file and times it: what bench/tokenizers compares with the libraries that the
// files come from.
//   tokenizer_bench TOKENIZER RECORDS IDS [ROUNDS [THREADS [PATTERN [special|text]]]]
// RECORDS and IDS are lists of a uint32 count and as many bytes, or int32 ids, in this machine's order.
// Special tokens in the text are taken, unless the last word is text, and the template's added. Prints bytes
// and the seconds of the fastest round, each with a new tokenizer's empty cache. PATTERN is that of
// tiktoken's ranks.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/test_threads.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace lignum;

Status run(int argc, char** argv) {
  if (argc < 4)
    return user_error("tokenizer_bench TOKENIZER RECORDS IDS [ROUNDS [THREADS [PATTERN [special|text]]]]");
  const auto number = [&](int i) { return argc > i ? std::strtol(argv[i], nullptr, 10) : 1; };
  const long rounds = number(4);
  TestThreads pool(static_cast<int>(std::max(1L, number(5))));
  const bool special = argc <= 7 || std::string_view(argv[7]) != "text";
  LIGNUM_ASSIGN_OR_RETURN(const tokenizer::TiktokenKind ranks,
                          tokenizer::tiktoken_kind(argc > 6 ? argv[6] : "llama3"));
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
    LIGNUM_ASSIGN_OR_RETURN(const tokenizer::Tokenizer t,
                            tokenizer::Tokenizer::load(argv[1], {.ranks = ranks}));
    out.clear();
    const auto begin = std::chrono::steady_clock::now();
    LIGNUM_ASSIGN_OR_RETURN(const std::vector<std::vector<int32_t>> all,
                            t.encode_all(texts, {.allow_special = special}, pool));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const std::vector<int32_t>& ids : all) {
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
