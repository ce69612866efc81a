#include "tokenizer/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/rng.h"
#include "base/test_threads.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace lignum::tokenizer {
namespace {

using Pair = std::pair<int32_t, int32_t>;

TrainedBpe trained(const std::vector<std::string_view>& texts, const BpeTrainerOptions& options) {
  Serial serial;
  auto t = train_bpe(texts, options, serial);
  EXPECT_TRUE(t.ok()) << t.status().message();
  return t.ok() ? *t : TrainedBpe{};
}

// Every pair counted anew before each merge.
TrainedBpe slowly_trained(const std::string& text, const BpeTrainerOptions& options) {
  TrainedBpe out{.scanner = options.scanner,
                 .specials = options.special_tokens.size(),
                 .tokens = options.special_tokens};
  std::map<std::string, int32_t> ids;
  std::map<char32_t, unsigned char> alphabet;
  for (unsigned b = 0; b < 256; ++b)
    alphabet[byte_to_char(static_cast<unsigned char>(b))] = static_cast<unsigned char>(b);
  for (const auto& [code, byte] : alphabet) append_utf8(code, out.tokens.emplace_back());
  for (size_t i = 0; i < out.tokens.size(); ++i) ids[out.tokens[i]] = static_cast<int32_t>(i);
  std::vector<std::vector<int32_t>> words;
  for (size_t i = 0; i < text.size();) {
    const size_t end = scan(options.scanner, text, i);
    auto& word = words.emplace_back();
    for (; i < end; ++i) word.push_back(ids[bytes_to_chars(text.substr(i, 1))]);
  }
  std::vector<Pair> banned;
  while (static_cast<int64_t>(out.tokens.size()) < options.vocab_size) {
    std::map<Pair, int64_t> counts;
    for (const auto& word : words)
      for (size_t i = 1; i < word.size(); ++i) ++counts[{word[i - 1], word[i]}];
    for (const Pair& pair : banned) counts.erase(pair);
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == counts.end() || best->second < options.min_frequency) break;
    const auto [left, right] = best->first;
    const std::string token = out.tokens[static_cast<size_t>(left)] + out.tokens[static_cast<size_t>(right)];
    const auto [it, is_new] = ids.emplace(token, static_cast<int32_t>(out.tokens.size()));
    if (it->second < static_cast<int32_t>(out.specials)) {
      banned.push_back(best->first);
      continue;
    }
    if (is_new) out.tokens.push_back(token);
    out.merges.push_back(best->first);
    for (auto& word : words) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        merged.push_back(here ? it->second : word[i]);
        i += here ? 1 : 0;
      }
      word = merged;
    }
  }
  return out;
}

std::string random_text(uint64_t seed, size_t bytes, std::string_view letters) {
  const Random random(seed, "text");
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += letters[random.below(i, letters.size())];
  return text;
}

TEST(BpeTrainer, EqualsTheSlowOne) {
  for (const Scanner scanner : {Scanner::gpt2, Scanner::llama3, Scanner::qwen}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      // Few letters: many ties, runs of one letter, and tokens that two pairs make.
      const std::string text = random_text(seed, 1500, seed % 2 == 0 ? "ab " : "aaab.1 \n");
      const BpeTrainerOptions options{.vocab_size = 380,
                                      .scanner = scanner,
                                      .special_tokens = {"<s>", "aab"},
                                      .min_frequency = static_cast<int64_t>(1 + seed % 3)};
      const TrainedBpe fast = trained({text}, options), slow = slowly_trained(text, options);
      EXPECT_EQ(fast.tokens, slow.tokens);
      EXPECT_EQ(fast.merges, slow.merges);
    }
  }
}

// Trained on the same text by Hugging Face's BpeTrainer.
TEST(BpeTrainer, EqualsHuggingFaces) {
  const auto cases = read_json(std::string(LIGNUM_SOURCE_DIR) + "/src/tokenizer/testdata/cases.json");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  const std::string corpus = (*cases)["corpus"];
  const std::pair<const char*, Scanner> rows[] = {{"gpt2", Scanner::gpt2}, {"llama3", Scanner::llama3}};
  for (const auto& [name, scanner] : rows) {
    for (const nlohmann::json& row : (*cases)["rows"]) {
      if (row["name"] != name) continue;
      const nlohmann::json& model = (*cases)["models"][row["model"].get<size_t>()];
      const TrainedBpe own = trained({corpus}, {.vocab_size = 420,
                                                .scanner = scanner,
                                                .special_tokens = {"<unk>", "<s>", "</s>", "<|end|>"},
                                                .min_frequency = 2});
      for (size_t i = 0; i < own.tokens.size(); ++i)
        EXPECT_EQ(model["vocab"][own.tokens[i]], i) << own.tokens[i];
      EXPECT_EQ(model["vocab"].size(), own.tokens.size());
      ASSERT_EQ(model["merges"].size(), own.merges.size());
      for (size_t i = 0; i < own.merges.size(); ++i) {
        const auto token = [&](int32_t id) { return own.tokens[static_cast<size_t>(id)]; };
        EXPECT_EQ(model["merges"][i],
                  nlohmann::json({token(own.merges[i].first), token(own.merges[i].second)}));
      }
    }
  }
}

TEST(BpeTrainer, ThreadsCutsAndOrderOfTextsChangeNothing) {
  // Long enough to be cut into parts; lines that begin with letters and with others.
  std::string text = random_text(3, 2 << 20, "abcdefgh \n'.1");
  const BpeTrainerOptions options{.vocab_size = 300, .scanner = Scanner::llama3};
  const std::string other = "another text, and another";
  TestThreads pool(3);
  const auto threaded = train_bpe(std::vector<std::string_view>{other, text}, options, pool);
  const TrainedBpe one = trained({text, other}, options);
  EXPECT_EQ(threaded->tokens, one.tokens);
  EXPECT_EQ(threaded->merges, one.merges);
  // The pieces of the whole text, each a text of its own: nothing that a cut could change.
  std::vector<std::string_view> pieces = {other};
  for (size_t i = 0; i < text.size();) {
    const size_t end = scan(options.scanner, text, i);
    pieces.push_back(std::string_view(text).substr(i, end - i));
    i = end;
  }
  EXPECT_EQ(trained(pieces, options).merges, one.merges);
}

TEST(BpeTrainer, WritesATokenizer) {
  const std::string text = "the cat and the dog and the bird: the end.";
  for (const Scanner scanner : {Scanner::gpt2, Scanner::llama3, Scanner::qwen}) {
    const TrainedBpe t =
        trained({text}, {.vocab_size = 270, .scanner = scanner, .special_tokens = {"<|end|>"}});
    const auto tokenizer = Tokenizer::parse(to_json(t), "trained");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ(tokenizer->vocab_size(), static_cast<int64_t>(t.tokens.size()));
    const auto ids = tokenizer->encode(text + "<|end|>\xff");
    ASSERT_TRUE(ids.ok());
    EXPECT_LT(ids->size(), text.size());
    EXPECT_EQ(*tokenizer->decode(*ids), text + "<|end|>\xef\xbf\xbd");
    const auto special = tokenizer->encode(text + "<|end|>", {.allow_special = true});
    EXPECT_EQ(special->back(), 0);
    EXPECT_TRUE(tokenizer->is_special(0));
  }
}

TEST(BpeTrainer, StopsWhereNothingIsLeftAndRefusesWhatCannotBe) {
  EXPECT_EQ(trained({"ab"}, {.vocab_size = 1000, .min_frequency = 1}).tokens.size(), 257);
  EXPECT_EQ(trained({"ab"}, {.vocab_size = 1000}).tokens.size(), 256);
  EXPECT_EQ(trained({}, {.vocab_size = 1000}).tokens.size(), 256);
  Serial serial;
  for (const BpeTrainerOptions& bad :
       std::vector<BpeTrainerOptions>{{.vocab_size = 255},
                                      {.vocab_size = 256, .special_tokens = {"<s>"}},
                                      {.vocab_size = 300, .special_tokens = {"<s>", "<s>"}},
                                      {.vocab_size = 300, .special_tokens = {""}},
                                      {.vocab_size = 300, .special_tokens = {"\xff\xff"}}}) {
    EXPECT_EQ(train_bpe({}, bad, serial).status().code(), Code::user_error);
  }
}

}  // namespace
}  // namespace lignum::tokenizer
