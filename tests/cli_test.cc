// The binary as a person or a script runs it: exit codes, one message on stderr, signals, kill -9.
#include <chrono>
#include <thread>

#include "process.h"
#include "runs.h"
#include "train/checkpoint.h"

namespace lignum::testing {
namespace {

int64_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Cli, ExitCodesAndOneMessage) {
  const RunFolder f;
  const std::string yml = f / "tiny.yml";
  const std::vector<std::vector<std::string>> mistakes = {
      {},
      {"trian"},
      {"train", f / "absent.yml"},
      {"train", yml, "stepz=3"},
      {"train", yml, "steps=three"},
      {"train", yml, yml},
      {"train", yml, "--jsn"},
      {"train", yml, "per_device_batch_size=1.5"},
      {"train", yml, "ranks=2", "ici_fsdp_parallelism=3"},
      {"train", yml, "target=pjrt"},
      {"train", yml, "train_files=[/absent/*.txt]"},
      {"train", yml, "adamw_mask=['[']"},
      {"train", yml, "model_path=/absent"},
      {"train", yml, "device_memory=1KiB"},
      {"train", yml, "adam_eps=1"},
      {"train", yml, "normalization_layer_epsilon=1"},
      {"train", yml, "ranks=65536", "ici_fsdp_parallelism=65536"},
      {"train", yml, "per_device_batch_size=1000000", "max_target_length=1048576"},
      {"train", yml, "per_device_batch_size=1000000", "gradient_accumulation_steps=1000000"},
      {"plan", yml, "compile_topology=tpu7x:1024x1024x1024", "ici_fsdp_parallelism=-1"},
      {"eval", yml},
      {"eval", yml, "run_name=absent"},
      {"plan", yml, "spec=absent"},
      {"plan", yml, "spec=/dev/zero"},
      {"plan", yml, "spec=" + f.path()},
      {"compile", yml},
      {"inspect"},
      {"inspect", "graph", yml, "--stage", "absent"},
      {"inspect", "key", "absent"},
      {"inspect", "checkpoint", "/absent"},
      {"verify-model", "/absent"},
      {"verify-model", f.path(), "steps=3"},
      {"calibrate", "--seconds", "-1"},
  };
  for (const auto& words : mistakes) {
    const Ended e = run(f, words);
    std::string said;
    for (const std::string& w : words) said += w + " ";
    EXPECT_EQ(e.code, 2) << said << e.err;
    EXPECT_EQ(lines(e.err), 1) << said << e.err;
    EXPECT_TRUE(e.err.starts_with("lignum: ")) << said << e.err;
  }
}

TEST(Cli, OutputThatCannotBeWrittenIsAnError) {
  const RunFolder f;
  for (const std::string& words : {fmt::format("inspect config '{}'", f / "tiny.yml"),
                                   std::string("--version"), std::string("train --help")}) {
    const std::string command = fmt::format("'{}' {} > /dev/full 2> '{}'", LIGNUM_BINARY, words, f / "err");
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << words;
    EXPECT_EQ(read_text(f / "err").value(), "lignum: standard output cannot be written\n") << words;
  }
}

TEST(Cli, HelpOfEveryVerbHasExamples) {
  const TestFolder f;
  for (const std::string verb :
       {"train", "eval", "plan", "compile", "calibrate", "inspect", "verify-model"}) {
    const Ended e = run(f, {verb, "--help"});
    EXPECT_EQ(e.code, 0);
    EXPECT_NE(e.out.find("Examples:\n  lignum " + verb), std::string::npos) << e.out;
  }
  EXPECT_EQ(run(f, {"--version"}).code, 0);
}

TEST(Cli, TrainEvalInspect) {
  const RunFolder f;
  const std::string yml = f / "tiny.yml";
  const Ended t = run(f, {"train", yml, "run_name=a", "eval_interval=8", "--json"});
  ASSERT_EQ(t.code, 0) << t.err;
  EXPECT_EQ(lines(t.out), 10);  // 8 steps, an evaluation, the summary
  const auto summary = nlohmann::json::parse(t.out.substr(t.out.rfind('\n', t.out.size() - 2) + 1));
  EXPECT_EQ(summary["steps"], 8);
  const Ended e = run(f, {"eval", yml, "run_name=a", "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(nlohmann::json::parse(e.out)["eval_loss"], summary["eval_loss"]);
  for (const char* stage :
       {"forward", "autodiff", "remat", "accumulate", "update", "partition", "schedule", "memory"}) {
    const Ended g = run(f, {"inspect", "graph", yml, "--stage", stage});
    EXPECT_EQ(g.code, 0) << g.err;
    EXPECT_GT(lines(g.out), 10) << stage;
    EXPECT_TRUE(nlohmann::json::accept(run(f, {"inspect", "graph", yml, "--stage", stage, "--json"}).out));
  }
  const Ended c = run(f, {"inspect", "checkpoint", f.checkpoint("a", 8), "--json"});
  ASSERT_EQ(c.code, 0) << c.err;
  EXPECT_EQ(nlohmann::json::parse(c.out)["step"], 8);
  const Ended k = run(f, {"inspect", "config", yml, "steps=5"});
  EXPECT_NE(k.out.find("steps: 5"), std::string::npos) << k.out;
}

TEST(Cli, PlanOfATpu) {
  const RunFolder f;
  const Ended p = run(f, {"plan", f / "tiny.yml", "dtype=bfloat16", "compile_topology=tpu7x:2x2x1",
                          "ici_fsdp_parallelism=8", "--json"});
  ASSERT_EQ(p.code, 0) << p.err;
  const auto json = nlohmann::json::parse(p.out);
  EXPECT_GT(json["time"]["step_seconds"].get<double>(), 0);
  EXPECT_GT(json["memory"]["arena_bytes"].get<int64_t>(), 0);
}

TEST(Cli, VerifyModel) {
  const TestFolder f;
  const std::string folder = std::string(LIGNUM_SOURCE_DIR) + "/tests/golden/llama_yarn";
  const Ended good = run(f, {"verify-model", folder, "threads=2", "--json"});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(nlohmann::json::parse(good.out)["failed"], 0);
}

// Waits until the run has saved a checkpoint of `step` or a later one.
void wait_for_checkpoint(const RunFolder& f, const std::string& name, int64_t step) {
  for (int i = 0; i < 6000; ++i) {
    const auto steps = train::list_checkpoints(f.run(name));
    if (steps.ok() && !steps->empty() && steps->back() >= step) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL() << "no checkpoint in 30 seconds";
}

TEST(Cli, SigtermSavesAndSigkillLosesNoCheckpoint) {
  const RunFolder f;
  const std::string yml = f / "tiny.yml";
  // Saving is most of the time of such a run: a kill meets a save more often than not.
  const std::vector<std::string> many = {"train", yml, "run_name=a", "steps=100000", "checkpoint_period=1"};
  for (const auto delay : {0, 3, 7, 12, 20}) {
    const auto before = train::list_checkpoints(f.run("a"));
    Process p(f, many);
    wait_for_checkpoint(f, "a", before->empty() ? 1 : before->back() + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    p.send(SIGKILL);
    EXPECT_EQ(p.wait().code, 128 + SIGKILL);
    const auto steps = train::list_checkpoints(f.run("a"));
    ASSERT_FALSE(steps->empty());
    const auto newest = train::open_checkpoint(f.checkpoint("a", steps->back()));
    ASSERT_TRUE(newest.ok()) << newest.status().message();
  }
  const auto before = train::list_checkpoints(f.run("a"));
  Process p(f, {"train", yml, "run_name=a", "steps=100000", "checkpoint_period=2"});
  wait_for_checkpoint(f, "a", before->back() + 1);
  p.send(SIGTERM);
  const Ended stopped = p.wait();
  EXPECT_EQ(stopped.code, 143) << stopped.err;
  const int64_t at = train::list_checkpoints(f.run("a"))->back();

  const Ended last = run(f, {"train", yml, "run_name=a", fmt::format("steps={}", at + 3)});
  EXPECT_EQ(last.code, 0) << last.err;
  ASSERT_TRUE(f.train("whole", {fmt::format("steps={}", at + 3)}).ok());
  EXPECT_EQ(f.steps("a"), f.steps("whole"));
  EXPECT_EQ(f.tensors("a", at + 3), f.tensors("whole", at + 3));
}

}  // namespace
}  // namespace lignum::testing
