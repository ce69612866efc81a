// SentencePiece models and tiktoken ranks beside what their own libraries make of them
// (testdata/make_formats).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/json.h"
#include "base/wire.h"
#include "tokenizer/sentencepiece_file.h"
#include "tokenizer/tokenizer.h"

namespace lignum::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const json& oracle() {
  static const json kCases = [] {
    const auto read = read_json(std::string(LIGNUM_SOURCE_DIR) + "/src/tokenizer/testdata/formats.json");
    LIGNUM_CHECK(read.ok(), "{}", read.status().message());
    return *read;
  }();
  return kCases;
}

std::string model_bytes(const json& row) {
  const std::string hex = row["model"];
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

Tokenizer good(std::string_view bytes, const LoadOptions& options = {}) {
  Result<Tokenizer> t = Tokenizer::read(bytes, "test", options);
  LIGNUM_CHECK(t.ok(), "{}", t.status().message());
  return std::move(t).value();
}

TEST(SentencePiece, GivesTheIdsAndTextsOfItsLibrary) {
  for (const json& row : oracle()["sentencepiece"]) {
    const std::string bytes = model_bytes(row);
    Tokenizer t = good(bytes);
    const SpecialIds s = t.special_ids();
    EXPECT_EQ((Ids{s.bos, s.eos, s.unknown, s.pad}), row["special_ids"].get<Ids>()) << row["name"];
    EXPECT_EQ(t.prefix().size(), s.bos >= 0 ? 1 : 0);
    for (const json& c : row["cases"]) {
      SCOPED_TRACE(row["name"].get<std::string>() + ": " + c.dump());
      const auto ids = t.encode(c["text"].get<std::string>(), {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      EXPECT_EQ(*ids, c["ids"].get<Ids>());
      EXPECT_EQ(*t.decode(*ids), c["decoded"].get<std::string>());
    }
  }
}

TEST(SentencePiece, ControlPiecesInATextAreTextUnlessAllowed) {
  const Tokenizer t = good(model_bytes(oracle()["sentencepiece"][0]));
  const SpecialIds s = t.special_ids();
  const Ids plain = *t.encode("the");
  EXPECT_EQ(plain[0], s.bos);
  EXPECT_EQ(*t.encode("<s>the", {.allow_special = true}), plain);  // one BOS is enough
  const Ids text = *t.encode("<s>the");
  EXPECT_EQ(std::count(text.begin(), text.end(), s.bos), 1);
  EXPECT_EQ(*t.decode(text), "<s>the");
  const Ids both = *t.encode("the</s>", {.allow_special = true});
  EXPECT_EQ(both.back(), s.eos);
  EXPECT_EQ(*t.decode(both), "the");
  EXPECT_EQ(*t.decode(both, false), "<s>the</s>");
  EXPECT_TRUE(t.is_special(s.pad));
  EXPECT_EQ(t.id_of("no such piece"), -1);
  EXPECT_EQ(t.id_of("<unk>"), s.unknown);
  EXPECT_FALSE(t.decode(Ids{-1}).ok());
  EXPECT_FALSE(t.decode(Ids{static_cast<int32_t>(t.vocab_size())}).ok());
}

// A model by hand.
struct Made {
  std::vector<std::string> pieces;
  wire::Writer trainer, normalizer;

  static std::string piece(std::string_view text, float score, int type) {
    wire::Writer w;
    w.bytes(1, text);
    w.fixed32(2, score);
    w.integer(3, type);
    return w.str();
  }
  Made() {
    pieces = {piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("\xe2\x96\x81", -1, 1),
              piece("a", -2, 1),    piece("b", -3, 1),  piece("ab", -0.5, 1)};
    trainer.integer(3, 2);
  }
  std::string bytes() const {
    wire::Writer w;
    for (const std::string& p : pieces) w.bytes(1, p);
    w.bytes(2, trainer.str());
    w.bytes(3, normalizer.str());
    return w.str();
  }
};

// Random pieces with few scores, so that many are equal: by our BPE, and with a piece that no text holds and
// that only the library takes.
TEST(SentencePiece, OwnBpeHasTheIdsOfTheLibrary) {
  const auto encoder = [](const Tokenizer& t) { return t.describe().parts.back().second; };
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): the same models in each run
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<std::string> letters = {"\xe2\x96\x81", "a", "b", "c"};
  const std::vector<std::string> words = {" ", "a", "b", "c", "ab", "cab", "<u>", "\xc3\xa9", "\xff"};
  for (int round = 0; round < 60; ++round) {
    Made m;
    m.trainer.integer(35, 1);           // byte_fallback
    m.normalizer.integer(3, below(2));  // add_dummy_prefix
    m.normalizer.integer(4, 0);         // remove_extra_whitespaces
    m.pieces = {Made::piece("<unk>", 0, 2), Made::piece("<s>", 0, 3), Made::piece("<u>", 0, 4),
                Made::piece("cab", 0, 4)};
    std::set<std::string> texts = {"cab"};
    for (int b = 0; b < 256; ++b) m.pieces.push_back(Made::piece(fmt::format("<0x{:02X}>", b), 0, 6));
    for (const std::string& letter : letters) m.pieces.push_back(Made::piece(letter, -9, 1));
    for (int i = 0; i < 30; ++i) {
      std::string text;
      for (size_t n = 2 + below(4); n > 0; --n) text += letters[below(letters.size())];
      if (texts.insert(text).second)
        m.pieces.push_back(Made::piece(text, -1.0f - static_cast<float>(below(4)), 1));
    }
    const Tokenizer own = good(m.bytes());
    m.pieces.push_back(Made::piece("unused", 0, 5));
    const Tokenizer library = good(m.bytes());
    ASSERT_EQ(encoder(own), "Lignum's BPE");
    ASSERT_EQ(encoder(library), "the library");
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (size_t n = below(24); n > 0; --n) text += words[below(words.size())];
      ASSERT_EQ(*own.encode(text), *library.encode(text)) << text;
    }
  }
}

std::string units(std::vector<uint32_t> first, std::string_view replacements) {
  first.resize(256);
  const uint32_t size = 1024;
  std::string map(reinterpret_cast<const char*>(&size), sizeof(size));
  map.append(reinterpret_cast<const char*>(first.data()), size);
  return map.append(replacements);
}

TEST(SentencePiece, RefusesBrokenModels) {
  EXPECT_EQ(*good(Made().bytes()).encode("ab a", {.add_special_tokens = false}), (Ids{2, 5, 2, 3}));
  const auto charsmap = [](std::string map) {
    return [map = std::move(map)](Made& m) { m.normalizer.bytes(2, map); };
  };
  using namespace std::string_literals;
  const std::pair<const char*, std::function<void(Made&)>> cases[] = {
      {"no pieces", [](Made& m) { m.pieces.clear(); }},
      {"piece 6 has 0 bytes", [](Made& m) { m.pieces.push_back(Made::piece("", 0, 1)); }},
      {"piece 6 has 2000 bytes",
       [](Made& m) { m.pieces.push_back(Made::piece(std::string(2000, 'x'), 0, 1)); }},
      {"piece 6 'a' appears twice", [](Made& m) { m.pieces.push_back(Made::piece("a", 0, 1)); }},
      {"is no UTF-8", [](Made& m) { m.pieces.push_back(Made::piece("\xff", 0, 1)); }},
      {"or holds a NUL", [](Made& m) { m.pieces.push_back(Made::piece("a\0b"s, 0, 1)); }},
      {"the score is nan", [](Made& m) { m.pieces.push_back(Made::piece("c", NAN, 1)); }},
      {"type 7 is none of", [](Made& m) { m.pieces.push_back(Made::piece("c", 0, 7)); }},
      {"2 pieces are of type unknown", [](Made& m) { m.pieces.push_back(Made::piece("u", 0, 2)); }},
      {"none of <0x00>", [](Made& m) { m.pieces.push_back(Made::piece("c", 0, 6)); }},
      {"1 pieces are of type byte", [](Made& m) { m.pieces.push_back(Made::piece("<0x0A>", 0, 6)); }},
      {"byte_fallback is true", [](Made& m) { m.trainer.integer(35, 1); }},
      {"model_type 9", [](Made& m) { m.trainer.integer(3, 9); }},
      {"another wire type", [](Made& m) { m.trainer.fixed32(3, 1); }},
      {"another wire type", [](Made& m) { m.normalizer.integer(2, 1); }},
      {"precompiled_charsmap has 3 bytes", charsmap("abc")},
      {"a trie of 1024 bytes", charsmap(units({}, "").substr(0, 1000))},
      {"the last replacement has no end", charsmap(units({}, "a"))},
      {"unit 0 of 256 leads to", charsmap(units({0xfffffc00u}, "a\0"s))},
      {"unit 0 of 256 leads to", charsmap(units({0x7ffffc00u}, "a\0"s))},
      {"names the replacement at 77", charsmap(units({1u << 10 | 1u << 8, 77}, "a\0"s))},
      {"a replacement is no UTF-8", charsmap(units({}, "\xff\0"s))},
  };
  for (const auto& [what, change] : cases) {
    Made m;
    change(m);
    const auto t = Tokenizer::read(m.bytes(), "hostile.model", {.format = Format::sentencepiece});
    ASSERT_FALSE(t.ok()) << what;
    EXPECT_EQ(t.status().code(), Code::user_error) << what;
    EXPECT_NE(t.status().message().find(what), std::string::npos) << what << ": " << t.status().message();
    EXPECT_TRUE(t.status().message().starts_with("hostile.model: ")) << t.status().message();
  }
  const std::string whole = Made().bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto t = Tokenizer::read(whole.substr(0, size), "cut", {.format = Format::sentencepiece});
    EXPECT_EQ(t.status().code(), t.ok() ? Code::ok : Code::user_error) << size;
  }
}

// tiktoken's own loop: the leftmost of the neighbours whose bytes together have the least rank.
Ids plain_merges(const std::map<std::string, int32_t>& ranks, const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    size_t best = 0;
    int32_t least = INT32_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find(parts[i] + parts[i + 1]);
      if (it != ranks.end() && it->second < least) {
        least = it->second;
        best = i;
      }
    }
    if (least == INT32_MAX) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& p : parts) ids.push_back(ranks.at(p));
  return ids;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

TEST(Tiktoken, GivesTheIdsOfItsLibrary) {
  const std::string ranks = oracle()["ranks"];
  for (const json& row : oracle()["tiktoken"]) {
    const TiktokenKind kind = *tiktoken_kind(row["kind"].get<std::string>());
    const Tokenizer t = good(ranks, {.ranks = kind});
    for (const auto& [name, id] : row["specials"].items()) {
      EXPECT_EQ(t.id_of(name), id.get<int32_t>()) << name;
      EXPECT_TRUE(t.is_special(id.get<int32_t>())) << name;
    }
    EXPECT_EQ(t.prefix().size(), kind == TiktokenKind::llama3 ? 1 : 0);
    for (const json& c : row["cases"]) {
      SCOPED_TRACE(row["kind"].get<std::string>() + ": " + c.dump());
      const std::string text = c["text"];
      const Ids plain = *t.encode(text, {.add_special_tokens = false});
      EXPECT_EQ(plain, c["ids"].get<Ids>());
      EXPECT_EQ(*t.decode(plain), text);
      EXPECT_EQ(*t.encode(text, {.add_special_tokens = false, .allow_special = true}),
                c["ids_with_special"].get<Ids>());
    }
  }
}

// Tokens of a and b only, in random order of rank: the same bytes are cut in many ways.
TEST(Tiktoken, MergesByTheRankOfTheResult) {
  uint64_t state = 1;
  const auto random = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  for (int round = 0; round < 40; ++round) {
    std::map<std::string, int32_t> ranks;
    for (int b = 0; b < 256; ++b) ranks.emplace(std::string(1, static_cast<char>(b)), b);
    while (ranks.size() < 280) {
      std::string token;
      for (uint64_t n = 2 + random(4); n > 0; --n) token += random(2) == 0 ? 'a' : 'b';
      ranks.emplace(token, static_cast<int32_t>(ranks.size()));
    }
    std::string file;
    for (const auto& [token, rank] : ranks) file += fmt::format("{} {}\n", base64(token), rank);
    const Tokenizer t = good(file, {.ranks = TiktokenKind::gpt2});
    for (int k = 0; k < 50; ++k) {
      std::string text;
      for (uint64_t n = 6 + random(20); n > 0; --n) text += random(2) == 0 ? 'a' : 'b';
      EXPECT_EQ(*t.encode(text), plain_merges(ranks, text)) << text;
    }
  }
}

TEST(Tiktoken, RefusesBrokenRanks) {
  const std::string ranks = oracle()["ranks"];
  const std::pair<const char*, std::string> cases[] = {
      {"no ranks", ""},
      {"line 421: 'QUFB' is not a token", ranks + "QUFB\n"},
      {"line 421: 'QU-B' is no base64", ranks + "QU-B 420\n"},
      {"line 421: 'QUF' is no base64", ranks + "QUF 420\n"},
      {"line 421: the rank '-1'", ranks + "QUFB -1\n"},
      {"line 421: the rank '4194304'", ranks + "QUFB 4194304\n"},
      {"line 421: the rank '99999999999999999999'", ranks + "QUFB 99999999999999999999\n"},
      {"line 421: the rank '420 1'", ranks + "QUFB 420 1\n"},
      {"a token of more than 4096 bytes", ranks + base64(std::string(5000, 'x')) + " 420\n"},
      {"two tokens have the rank 7", ranks + "QUFB 7\n"},
      {"the ranks 0 and 420 have the same token", ranks + "IQ== 420\n"},
      {"255 of the 256 single bytes", ranks.substr(ranks.find('\n') + 1)},
      {"'<|endoftext|>' of cl100k has the id 100257", ranks + "QUFB 100257\n"},
  };
  for (const auto& [what, text] : cases) {
    const auto t =
        Tokenizer::read(text, "hostile", {.format = Format::tiktoken, .ranks = TiktokenKind::cl100k});
    ASSERT_FALSE(t.ok()) << what;
    EXPECT_EQ(t.status().code(), Code::user_error);
    EXPECT_NE(t.status().message().find(what), std::string::npos) << what << ": " << t.status().message();
  }
  EXPECT_FALSE(tiktoken_kind("p50k").ok());
}

TEST(Formats, AreToldApartByTheirBytes) {
  EXPECT_EQ(*format_of(" \n{\"version\": 1}"), Format::json);
  EXPECT_EQ(*format_of("IQ== 0\nIg== 1\n"), Format::tiktoken);
  EXPECT_EQ(*format_of(Made().bytes()), Format::sentencepiece);
  for (const char* bytes : {"", "text", "[]", "\xff\xfe"}) EXPECT_FALSE(format_of(bytes).ok()) << bytes;
  const auto other = Tokenizer::read("IQ== 0\n", "file", {.format = Format::json});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("tiktoken rank file, not a tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace lignum::tokenizer
