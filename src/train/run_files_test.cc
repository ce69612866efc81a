// The files of a run and the settings that shape it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_folder.h"
#include "train/checkpoint.h"
#include "train/crc32c.h"
#include "train/metrics.h"
#include "train/setup.h"

namespace lignum::train {
namespace {

TEST(Crc32c, PublishedValues) {
  const auto crc = [](std::string_view text) { return crc32c(std::as_bytes(std::span(text))); };
  EXPECT_EQ(crc("123456789"), 0xe3069283U);            // the check value of the CRC catalogue
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc(""), 0U);
  const std::string text = "in two parts of any length";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto bytes = std::as_bytes(std::span(text));
    EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), crc(text)) << cut;
  }
}

TEST(MetricsFile, ResumeDropsWhatIsDoneAgain) {
  const testing::TestFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    auto file = MetricsFile::open(path, 0);
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (int64_t step = 0; step < 4; ++step) {
      StepMetrics m;
      m.step = step;
      ASSERT_TRUE(file->append(to_json(m)).ok());
      EvalMetrics e;
      e.step = step + 1;
      if (step % 2 == 0) continue;
      ASSERT_TRUE(file->append(to_json(e)).ok());
    }
  }
  auto text = read_text(path);
  ASSERT_TRUE(write_file_atomic(path, *text + R"({"step":4,"lo)").ok());  // killed while it wrote
  ASSERT_TRUE(MetricsFile::open(path, 2).ok());
  text = read_text(path);
  std::vector<std::pair<int64_t, bool>> kept;
  for (size_t begin = 0; begin < text->size(); begin = text->find('\n', begin) + 1) {
    const auto j = nlohmann::json::parse(text->substr(begin, text->find('\n', begin) - begin));
    kept.emplace_back(j["step"], j.contains("eval_loss"));
  }
  const std::vector<std::pair<int64_t, bool>> want = {{0, false}, {1, false}, {2, true}};
  EXPECT_EQ(kept, want);
}

TEST(StepMetrics, MfuIsAbsentUntilCalibrated) {
  StepMetrics m;
  EXPECT_FALSE(to_json(m).contains("mfu"));
  m.mfu = m.hfu = 0.5;
  EXPECT_EQ(to_json(m)["mfu"], 0.5);
  std::vector<std::string> keys;
  const nlohmann::ordered_json json = to_json(m);
  for (auto it = json.begin(); it != json.end(); ++it) keys.push_back(it.key());
  EXPECT_EQ(keys,
            (std::vector<std::string>{"step", "loss", "grad_norm", "learning_rate", "tokens", "tokens_per_s",
                                      "tflops", "mfu", "hfu", "memory_bytes", "process_bytes"}));
}

TEST(Setup, MaskNamesWhatIsNotDecayed) {
  const auto config =
      config::Config::parse("model_name: lignum-tiny\n", "test", {"adamw_mask=[norm, lm_head]"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto setup = make_setup(*config, nullptr);
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const auto names = not_decayed(setup->model, setup->step.optimizer);
  for (const std::string& name : names)
    EXPECT_TRUE(name.find("norm") != std::string::npos || name.find("lm_head") != std::string::npos) << name;
  EXPECT_GE(names.size(), 3U);
  EXPECT_FALSE(setup->step.optimizer.decays("model.norm.weight"));
  EXPECT_TRUE(setup->step.optimizer.decays("model.layers.{}.mlp.up_proj.weight"));
}

TEST(Checkpoints, ListTakesStepsOnly) {
  const testing::TestFolder run;
  const auto none = list_checkpoints(run / "absent");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  for (const char* name : {"10", "9", "11.tmp", "x", "-3", "7x"})
    ASSERT_TRUE(make_directories(run / ("checkpoints/" + std::string(name))).ok());
  EXPECT_EQ(list_checkpoints(run.path()).value(), (std::vector<int64_t>{9, 10}));
  ASSERT_TRUE(remove_unfinished(run.path()).ok());
  EXPECT_FALSE(path_exists(run / "checkpoints/11.tmp"));
  EXPECT_TRUE(path_exists(run / "checkpoints/7x"));
}

}  // namespace
}  // namespace lignum::train
