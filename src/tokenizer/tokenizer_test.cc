#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/test_folder.h"
#include "base/test_threads.h"
#include "tokenizer/token_file.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// What Hugging Face's tokenizers made (testdata/make_cases).
const json& huggingface_oracle() {
  static const json kCases = [] {
    const auto read = read_json(std::string(LIGNUM_SOURCE_DIR) + "/src/tokenizer/testdata/cases.json");
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read.ok() ? *read : json{{"rows", json::array()}};
  }();
  return kCases;
}

json tokenizer_json(const std::string& name) {
  for (const json& row : huggingface_oracle()["rows"]) {
    if (row["name"] != name) continue;
    json j = row["tokenizer"];
    j["model"] = huggingface_oracle()["models"][row["model"].get<size_t>()];
    return j;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

Tokenizer of(const json& j) {
  Result<Tokenizer> t = Tokenizer::parse(j.dump(), "test.json");
  if (!t.ok()) {
    ADD_FAILURE() << t.status().message();
    std::abort();
  }
  return std::move(t).value();
}

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(Tokenizer, GivesTheIdsAndTextsOfTheOracle) {
  size_t compared = 0;
  for (const json& row : huggingface_oracle()["rows"]) {
    const std::string name = row["name"];
    const Tokenizer t = of(tokenizer_json(name));
    for (const json& c : row["cases"]) {
      const std::string text = c.contains("text") ? c["text"].get<std::string>() : unhex(c["bytes"]);
      SCOPED_TRACE(name + ": " + c.dump().substr(0, 200));
      const auto plain = t.encode(text, {.allow_special = false});
      ASSERT_TRUE(plain.ok()) << plain.status().message();
      EXPECT_EQ(*plain, c["ids"].get<Ids>());
      const Ids want =
          c.contains("ids_with_special") ? c["ids_with_special"].get<Ids>() : c["ids"].get<Ids>();
      const auto special = t.encode(text, {.allow_special = true});
      ASSERT_TRUE(special.ok()) << special.status().message();
      // One BOS is enough: where the text begins with the template's, Hugging Face has two.
      const auto& prefix = t.prefix();
      Ids once = want;
      if (!prefix.empty() && want.size() > prefix.size() && want[1] == prefix[0]) once.erase(once.begin());
      EXPECT_EQ(*special, once);
      const auto decoded = t.decode(want);
      ASSERT_TRUE(decoded.ok()) << decoded.status().message();
      EXPECT_EQ(*decoded, c["decoded"].get<std::string>());
      ++compared;
    }
  }
  EXPECT_GT(compared, 1500);
}

TEST(Tokenizer, ByteLevelRoundTrips) {
  const Tokenizer t = of(tokenizer_json("gpt2"));
  std::string text;
  for (char32_t c = 0; c <= 0x10ffff; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xd800 && c < 0xe000) continue;
    append_utf8(c, text);
    text += c % 3 == 0 ? " " : c % 7 == 0 ? "\n" : "";
  }
  const auto ids = t.encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(*t.decode(*ids), text);
  EXPECT_EQ(*t.decode({}), "");
}

TEST(Tokenizer, ReadsIllFormedBytesAsPythonDoes) {
  // Expected: bytes.decode("utf-8", errors="replace").
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\xc3", "\ufffd"},
      {"\xe4\xbd", "\ufffd"},
      {"a\xe4\xbd\x62", "a\ufffd\x62"},
      {"\xe4\xbd\xe4\xbd\xa0", "\ufffd\u4f60"},
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
      {"\xc0\xaf", "\ufffd\ufffd"},
      {"\xf0\x9f\x98", "\ufffd"},
      {"\xf0\x80\x80", "\ufffd\ufffd\ufffd"},
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xfe\xff", "\ufffd\ufffd"},
  };
  for (const auto& [bytes, want] : cases) EXPECT_EQ(replace_ill_formed(bytes), want);
}

TEST(Tokenizer, ComposesHangulOnlyWithFinalConsonants) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\u1100\u1161\u11a8", "\uac01"},
      {"\u1100\u1161\u11a7", "\uac00\u11a7"},
      {"\u11a7\u11a7e\u0301", "\u11a7\u11a7\u00e9"},
      {"\u1100\u1161\u11a7\u1100\u1161", "\uac00\u11a7\uac00"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(normal_form(text, {}), want);
}

// A piece of n bytes takes n log n time: a quadratic step would take minutes.
TEST(Tokenizer, LongPiecesTakeNoQuadraticTime) {
  for (const char* name :
       {"gpt2", "llama3", "qwen", "llama2", "gemma3", "a regular expression", "contiguous"}) {
    const Tokenizer t = of(tokenizer_json(name));
    for (const std::string_view unit : {"a", " ", "\n", "the", "\xcc\x81\xcc\xa7", "\xff", "[left] ", "1"}) {
      const size_t bytes = unit == "a" && name != std::string_view("contiguous") ? 1 << 20 : 1 << 17;
      std::string text;
      while (text.size() < bytes) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = t.encode(text);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      ASSERT_TRUE(ids.ok()) << name << " " << unit << ": " << ids.status().message();
      EXPECT_LT(seconds, 30) << name << " " << unit;
      if (name == std::string_view("gpt2") && unit != "\xff") {
        EXPECT_EQ(*t.decode(*ids), text);
      }
    }
  }
}

TEST(Tokenizer, OneBosIsEnough) {
  const Tokenizer t = of(tokenizer_json("llama3"));
  const int32_t bos = t.id_of("<s>");
  ASSERT_EQ(t.prefix().size(), 1);
  const Ids plain = *t.encode("the", {});
  EXPECT_EQ(plain[0], bos);
  EXPECT_EQ(*t.encode("<s>the", {.allow_special = true}), plain);
  EXPECT_EQ(*t.encode("<s>the", {.add_special_tokens = false, .allow_special = true}), plain);
  // Not allowed: its characters are text.
  const Ids text = *t.encode("<s>the", {});
  EXPECT_EQ(text[0], bos);
  EXPECT_EQ(std::count(text.begin(), text.end(), bos), 1);
  EXPECT_EQ(*t.decode(text), "<s>the");
  EXPECT_EQ(*t.decode(plain), "the");
  EXPECT_EQ(*t.decode(plain, false), "<s>the");
}

TEST(Tokenizer, DecodeRefusesIdsWithoutAToken) {
  const Tokenizer t = of(tokenizer_json("gpt2"));
  for (const int32_t id : {-1, static_cast<int32_t>(t.vocab_size())}) {
    const auto text = t.decode(std::span(&id, 1));
    ASSERT_FALSE(text.ok());
    EXPECT_NE(text.status().message().find(std::to_string(id)), std::string::npos) << text.status().message();
  }
}

TEST(Tokenizer, ThreadsGiveTheSameIds) {
  for (const char* name : {"qwen", "gemma3", "a regular expression"}) {
    const Tokenizer t = of(tokenizer_json(name));
    std::vector<std::string> texts;
    for (int i = 0; i < 64; ++i)
      texts.push_back(fmt::format("the text {} of {} \u4f60\u597d e\u0301", i, i * i));
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    TestThreads pool(4);
    Serial serial;
    const auto all = t.encode_all(views, {}, pool);
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(*all, *t.encode_all(views, {}, serial));
  }
}

// A change to a good file, and what the error says.
struct Hostile {
  std::string what;
  std::function<void(json&)> change;
};

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const auto set = [](const char* pointer, const json& value) {
    return [=](json& j) { j[json::json_pointer(pointer)] = value; };
  };
  const std::vector<Hostile> cases = {
      {"unknown field 'extra'", set("/extra", 1)},
      {"version", set("/version", "2.0")},
      {"truncation", set("/truncation", {{"max_length", 4}})},
      {"padding", set("/padding", {{"length", 4}})},
      {"normalizer: type 'Nmt' is not implemented", set("/normalizer", {{"type", "Nmt"}})},
      {"normalizer: 'type' must be a string", set("/normalizer", json::object())},
      {"normalizer: expected an object", set("/normalizer", 7)},
      {"pre_tokenizer: type 'UnicodeScripts'", set("/pre_tokenizer", {{"type", "UnicodeScripts"}})},
      {"pre_tokenizer: unknown field 'x'", set("/pre_tokenizer/x", true)},
      {"decoder: type 'WordPiece'", set("/decoder", {{"type", "WordPiece"}})},
      {"post_processor: type 'BertProcessing'", set("/post_processor", {{"type", "BertProcessing"}})},
      {"model: type 'Unigram'", set("/model/type", "Unigram")},
      {"'dropout' is not implemented", set("/model/dropout", 0.1)},
      {"'end_of_word_suffix' is not implemented", set("/model/end_of_word_suffix", "</w>")},
      {"'byte_fallback' beside", set("/model/byte_fallback", true)},
      {"unk_token '<none>' is not in the vocabulary", set("/model/unk_token", "<none>")},
      {"'vocab' must be an object", set("/model/vocab", json::array())},
      {"the id of 'x' must be an integer", set("/model/vocab", {{"x", -1}})},
      {"the id of 'x' must be an integer", set("/model/vocab", {{"x", 4294967296}})},
      {"the id of 'x' must be an integer", set("/model/vocab", {{"x", 1.5}})},
      {"have the same id 0", set("/model/vocab", {{"x", 0}, {"y", 0}})},
      {"the vocabulary is empty", set("/model/vocab", json::object())},
      {"is empty", set("/model/vocab", {{"", 0}})},
      {"merges[0]", set("/model/merges", json::array({"a"}))},
      {"merges[0]", set("/model/merges", json::array({"a b c"}))},
      {"merges[0]", set("/model/merges", json::array({json::array({"a", 1})}))},
      {"'zzz' is not in the vocabulary", set("/model/merges", json::array({"zzz a"}))},
      {"appears twice", [](json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); }},
      {"added token", set("/added_tokens/0/id", 3)},
      {"added_tokens[0]: 'id' must be an integer", set("/added_tokens/0/id", int64_t{1} << 40)},
      {"'content' is empty", set("/added_tokens/0/content", "")},
      {"a text of 600 bytes",
       [](json& j) { j["added_tokens"].push_back({{"id", 100000}, {"content", std::string(600, 'x')}}); }},
      {"which no token has",
       set("/post_processor", json::parse(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"B",
            "type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"B":{"id":"B",
            "ids":[99999],"tokens":["B"]}}})"))},
      {"no Sequence 'A'",
       set("/post_processor",
           {{"type", "TemplateProcessing"}, {"single", json::array()}, {"special_tokens", json::object()}})},
      {"a pre-tokeniser after ByteLevel",
       [](json& j) {
         const json byte_level = j["pre_tokenizer"];
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {byte_level, byte_level}}};
       }},
  };
  for (const Hostile& h : cases) {
    json j = tokenizer_json("gpt2");
    h.change(j);
    const auto t = Tokenizer::parse(j.dump(), "test.json");
    ASSERT_FALSE(t.ok()) << h.what;
    EXPECT_EQ(t.status().code(), Code::user_error);
    EXPECT_NE(t.status().message().find(h.what), std::string::npos) << h.what << ": " << t.status().message();
    EXPECT_EQ(t.status().message().find("test.json"), 0) << t.status().message();
  }
  for (const char* text : {"", "{", "[]", "null", "{}", "{\"model\":{}}"})
    EXPECT_FALSE(Tokenizer::parse(text, "test.json").ok()) << text;
}

TEST(Tokenizer, RefusesExpressionsThatPcreReadsOtherwise) {
  for (const char* expression : {"", "(", "a{,3}", "\\h", "[[:alpha:]]", "[a&&b]", "a{1,3}+", "\\K", "(?m:a)",
                                 "(*ACCEPT)", "(?R)", "[\\W]", "\\1", "a\\", "(?<name>a)"}) {
    json j = tokenizer_json("removed");
    j["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
    const auto t = Tokenizer::parse(j.dump(), "test.json");
    ASSERT_FALSE(t.ok()) << expression;
    EXPECT_NE(t.status().message().find("test.json.pre_tokenizer"), std::string::npos)
        << t.status().message();
  }
}

TEST(Tokenizer, AnExpressionThatBacktracksWithoutEndIsAnError) {
  json j = tokenizer_json("removed");
  j["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(?:a+a+)+b"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const auto ids = of(j).encode(std::string(4000, 'a') + "cb");
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.status().message().find("gave up"), std::string::npos) << ids.status().message();
}

TEST(Tokenizer, AByteWithoutATokenIsAnError) {
  json j = tokenizer_json("gpt2");
  j["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}};
  j["model"]["merges"] = {"a b"};
  j["added_tokens"] = json::array();
  const Tokenizer t = of(j);
  EXPECT_EQ(*t.encode("abba"), (Ids{2, 1, 0}));
  const auto ids = t.encode("abc");
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.status().message().find("0x63"), std::string::npos) << ids.status().message();
}

TEST(TokenFile, IsMadeOnceAndMadeAgainWhenDamaged) {
  const testing::TestFolder folder;
  const json j = tokenizer_json("llama3");
  const Tokenizer t = of(j);
  const Hash128 hash = hash128(j.dump());
  ASSERT_TRUE(write_file_atomic(folder / "text", "the quick <s> fox").ok());
  const auto open = [&](const Hash128& of) {
    return TokenFile::open(folder / "text", t, of, folder / "cache");
  };
  const auto first = open(hash);
  ASSERT_TRUE(first.ok()) << first.status().message();
  const Ids ids(first->ids().begin(), first->ids().end());
  EXPECT_EQ(ids, *t.encode("the quick <s> fox"));
  EXPECT_EQ(first->text_bytes(), 17);
  const auto names = [&] { return *list_directory(folder / "cache"); };
  ASSERT_EQ(names().size(), 1);
  const std::string kept = folder / ("cache/" + names()[0]);
  const std::string good = *read_text(kept);
  // A word of the file that was flipped, cut, or grown.
  std::string flipped = good;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& bad :
       {flipped, good.substr(0, 70), good.substr(0, 10), good + "1234", std::string()}) {
    ASSERT_TRUE(write_file_atomic(kept, bad).ok());
    const auto again = open(hash);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(Ids(again->ids().begin(), again->ids().end()), ids);
    EXPECT_EQ(*read_text(kept), good);
  }
  // Another tokenizer, another text: other files.
  ASSERT_TRUE(open(hash128("other")).ok());
  EXPECT_EQ(names().size(), 2);
  ASSERT_TRUE(write_file_atomic(folder / "text", "the quick fox").ok());
  EXPECT_NE(open(hash)->ids().size(), ids.size());
  EXPECT_EQ(names().size(), 3);
}

}  // namespace
}  // namespace lignum::tokenizer
