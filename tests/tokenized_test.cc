// Runs that read text through a tokenizer.
#include <stdlib.h>

#include "base/parallel.h"
#include "runs.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/tokenizer.h"
#include "train/evaluate.h"

namespace lignum {
namespace {

using testing::RunFolder;

// A run folder with a tokenizer of 300 tokens, and a token cache of its own.
class TokenizedFolder : public RunFolder {
 public:
  TokenizedFolder() {
    ::setenv("XDG_CACHE_HOME", (*this / "cache").c_str(), 1);
    write_tokenizer("tokenizer.json", 300);
  }
  ~TokenizedFolder() { ::unsetenv("XDG_CACHE_HOME"); }

  void write_tokenizer(const std::string& name, int64_t vocab_size) const {
    const Result<std::string> text = read_text(*this / "train.txt");
    ASSERT_TRUE(text.ok()) << text.status().message();
    Serial serial;
    const std::string_view texts[] = {*text};
    const auto trained = tokenizer::train_bpe(texts, {.vocab_size = vocab_size}, serial);
    ASSERT_TRUE(trained.ok()) << trained.status().message();
    ASSERT_TRUE(write_file_atomic(*this / name, tokenizer::to_json(*trained)).ok());
  }
  std::vector<std::string> settings() const {
    return {"vocab_size=320", "tokenizer_path=" + (*this / "tokenizer.json"), "steps=4",
            "checkpoint_period=2", "eval_interval=4"};
  }
  Result<train::EvalMetrics> eval(const std::string& name, int64_t step,
                                  std::vector<std::string> words) const {
    words.push_back("run_name=" + name);
    LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::parse(yaml(), "tiny.yml", words));
    return train::evaluate(config, checkpoint(name, step), step);
  }
};

TEST(Tokenized, ARunKeepsItsTokenizerAndResumes) {
  const TokenizedFolder f;
  const auto whole = f.train("a", f.settings());
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(*read_text(f.checkpoint("a", 4) + "/tokenizer.json"), *read_text(f / "tokenizer.json"));
  auto settings = f.settings();
  settings[2] = "steps=2";
  settings.emplace_back("learning_rate_schedule_steps=4");
  ASSERT_TRUE(f.train("b", settings).ok());
  const auto resumed = f.train("b", f.settings());
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_EQ(resumed->first_step, 2);
  // Another tokenizer reads other rows.
  f.write_tokenizer("other.json", 280);
  settings = f.settings();
  settings[1] = "tokenizer_path=" + (f / "other.json");
  settings[2] = "steps=6";
  const auto other = f.train("a", settings);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("other rows"), std::string::npos) << other.status().message();
}

TEST(Tokenized, EvaluationUsesTheWeightsTokenizerAndCountsBytes) {
  const TokenizedFolder f;
  const auto run = f.train("a", f.settings());
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(run->eval && run->eval->loss_per_byte);
  const auto t = tokenizer::Tokenizer::load(f / "tokenizer.json");
  const std::string held_out = *read_text(f / "held_out.txt");
  const double bytes_per_token =
      static_cast<double>(held_out.size()) / static_cast<double>(t->encode(held_out)->size());
  EXPECT_GT(bytes_per_token, 1.3);
  EXPECT_NEAR(*run->eval->loss_per_byte, run->eval->loss / bytes_per_token, 1e-12);
  // Without tokenizer_path: the checkpoint's.
  const auto own = f.eval("a", 4, {"vocab_size=320"});
  ASSERT_TRUE(own.ok()) << own.status().message();
  EXPECT_EQ(own->loss, run->eval->loss);
  EXPECT_EQ(own->loss_per_byte, run->eval->loss_per_byte);
  f.write_tokenizer("other.json", 280);
  const auto other = f.eval("a", 4, {"vocab_size=320", "tokenizer_path=" + (f / "other.json")});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("is not the tokenizer"), std::string::npos)
      << other.status().message();
}

TEST(Tokenized, AVocabularyThatDoesNotFitIsAnError) {
  const TokenizedFolder f;
  auto settings = f.settings();
  settings[0] = "vocab_size=299";
  const auto small = f.train("a", settings);
  ASSERT_FALSE(small.ok());
  EXPECT_NE(small.status().message().find("set vocab_size=300"), std::string::npos)
      << small.status().message();
  settings = f.settings();
  settings.emplace_back("tokenizer_type=bytes");
  const auto both = f.train("a", settings);
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.status().message().find("tokenizer_path"), std::string::npos) << both.status().message();
}

}  // namespace
}  // namespace lignum
