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
  const std::string model = LIGNUM_SOURCE_DIR "/tests/golden/llama_yarn";
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
      {"inspect", "batches", yml},
      {"inspect", "batches", yml, "--output", "/absent/batches.safetensors"},
      {"verify-mesh", yml, "--mesh", "tensor=3"},
      {"verify-mesh", yml, "--mesh", "depth=2"},
      {"verify-mesh", yml, "--mesh", ""},
      {"verify-mesh", yml, "--mesh", "data=1"},
      {"verify-mesh", yml, "--mesh", "data=2,"},
      {"verify-mesh", yml, "--mesh", "data=2,data=2"},
      {"verify-mesh", yml, "--mesh", "data=+2"},
      {"verify-mesh", yml, "--mesh", "data=2,dtype=bfloat16"},
      {"verify-mesh", yml, "--mesh", "data=2", "target=tpu"},
      {"verify-mesh", yml, "--mesh", "data=2", "comm=mpi"},
      {"verify-mesh", yml, "--steps", "0"},
      {"verify-mesh", yml, "--steps", "99999999999999999999"},
      {"verify-mesh", "--list", "absent=3"},
      {"compare", yml, "ici_pipeline_parallelism=2", "use_qwix_quantization=true", "quantization=fp8_full"},
      {"verify-model", "/absent"},
      {"convert", "/absent"},
      {"convert", "/absent", "to"},
      {"convert", f.path(), "to", "dtype=float16"},
      {"verify-model", f.path(), "steps=3"},
      {"generate"},
      {"generate", "/absent", "--prompt", "x"},
      {"generate", f.path(), "--prompt", "x"},
      {"generate", model},
      {"generate", model, "--prompt", "x"},
      {"generate", model, "--ids", ""},
      {"generate", model, "--ids", "1 x"},
      {"generate", model, "--ids", "211"},
      {"generate", model, "--ids", "1", "top_p=0"},
      {"generate", model, "--ids", "1", "temperature=-1"},
      {"generate", model, "--ids", "1", "top_pp=1"},
      {"generate", model, "--ids", "1", "device_memory=1KiB"},
      {"generate", model, model, "--ids", "1"},
      {"generate", model, "--prompt-file", "/absent"},
      {"calibrate", "--seconds", "-1"},
      {"tokenizer"},
      {"tokenizer", "show", "/absent"},
      {"tokenizer", "show", yml + "/x.json"},
      {"tokenizer", "train", "/absent", "--vocab-size", "300", "--output", f / "t.json"},
      {"tokenizer", "train", yml, "--vocab-size", "255", "--output", f / "t.json"},
      {"tokenizer", "train", yml, "--vocab-size", "300", "--output", f / "t.json", "--pattern", "x"},
      {"train", yml, "tokenizer_path=/absent"},
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

// What does not fit is refused with a table of what takes the space.
TEST(Cli, ABudgetThatIsTooSmallIsExplained) {
  const RunFolder f;
  const Ended e = run(f, {"train", f / "tiny.yml", "device_memory=1KiB"});
  EXPECT_EQ(e.code, 2) << e.err;
  EXPECT_TRUE(e.err.starts_with("lignum: device_memory=1024: the step needs")) << e.err;
  for (const char* part : {"weights", "optimizer", "decoder_layer_input", "TOO MUCH"})
    EXPECT_NE(e.err.find(part), std::string::npos) << part << "\n" << e.err;
}

TEST(Cli, OutputThatCannotBeWrittenIsAnError) {
  const RunFolder f;
  for (const std::string& words : {fmt::format("inspect config '{}'", f / "tiny.yml"),
                                   std::string("--version"), std::string("train --help")}) {
    const std::string command = fmt::format("'{}' {} > /dev/full 2> '{}'", LIGNUM_BINARY, words, f / "err");
    const int status = std::system(command.c_str());  // NOLINT(bugprone-command-processor): a redirection
    EXPECT_EQ(WEXITSTATUS(status), 2) << words;
    EXPECT_EQ(read_text(f / "err").value(), "lignum: standard output cannot be written\n") << words;
  }
}

TEST(Cli, HelpOfEveryVerbHasExamples) {
  const TestFolder f;
  for (const std::string verb : {"train", "report", "eval", "generate", "plan", "compile", "calibrate",
                                 "convert", "inspect", "tokenizer", "verify-mesh", "verify-model"}) {
    const Ended e = run(f, {verb, "--help"});
    EXPECT_EQ(e.code, 0);
    EXPECT_NE(e.out.find("Examples:\n  lignum " + verb), std::string::npos) << e.out;
  }
  EXPECT_EQ(run(f, {"--version"}).code, 0);
}

TEST(Cli, TokenizerTrainsEncodesDecodes) {
  const RunFolder f;
  const std::string file = f / "tokenizer.json", text = "line 7 of a text<|end|>";
  const Ended t = run(f, {"tokenizer", "train", f / "train.txt", "--vocab-size", "300", "--special",
                          "<|end|>", "--output", file, "--json"});
  ASSERT_EQ(t.code, 0) << t.err;
  EXPECT_EQ(nlohmann::json::parse(t.out)["vocab_size"], 300);
  const Ended e = run(f, {"tokenizer", "encode", file, text, "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  const nlohmann::json encoded = nlohmann::json::parse(e.out);
  EXPECT_LT(encoded["ids"].size(), text.size());
  std::vector<std::string> words = {"tokenizer", "decode", file};
  for (const int id : encoded["ids"]) words.push_back(std::to_string(id));
  EXPECT_EQ(run(f, words).out, text + "\n");
  const Ended special = run(f, {"tokenizer", "encode", f.path(), "<|end|>", "--allow-special"});
  EXPECT_EQ(special.out, "0\n") << special.err;
  const Ended shown = run(f, {"tokenizer", "show", file, "--file", f / "held_out.txt", "--json"});
  EXPECT_GT(nlohmann::json::parse(shown.out)["bytes_per_token"], 1.0) << shown.err;
  EXPECT_EQ(run(f, {"tokenizer", "decode", file, "300"}).code, 2);
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
  const Ended whole = run(f, {"inspect", "checkpoint", f.run("a")});
  EXPECT_EQ(whole.code, 2);
  EXPECT_NE(whole.err.find("; " + f.checkpoint("a", 8) + " is wanted"), std::string::npos) << whole.err;
  const Ended b = run(f, {"inspect", "batches", yml, "steps=3", "--output", f / "b.safetensors", "--json"});
  ASSERT_EQ(b.code, 0) << b.err;
  EXPECT_EQ(nlohmann::json::parse(b.out)["steps"], 3);
  EXPECT_GT(read_text(f / "b.safetensors")->size(), size_t{3} * 2 * 16 * 2 * sizeof(int32_t));
  const Ended k = run(f, {"inspect", "config", yml, "steps=5"});
  EXPECT_NE(k.out.find("steps: 5"), std::string::npos) << k.out;

  const std::vector<std::string> sample = {"generate", f.run("a"), "--prompt",
                                           "To ",      "--prompt", "be, or not",
                                           "seed=4",   "top_k=50", "max_new_tokens=6"};  // 16 positions
  const auto generated = [&](std::vector<std::string> more) {
    more.insert(more.begin(), sample.begin(), sample.end());
    more.emplace_back("--json");
    const Ended g = run(f, more);
    EXPECT_EQ(g.code, 0) << g.err;
    return nlohmann::json::parse(g.out);
  };
  const auto one = generated({"threads=1"});
  EXPECT_EQ(one["model"], f.checkpoint("a", 8));
  ASSERT_EQ(one["sequences"].size(), 2u);
  EXPECT_EQ(one["sequences"][1]["prompt"], "be, or not");
  EXPECT_EQ(one["sequences"][0]["ids"].size(), 6u);
  EXPECT_EQ(one["prefill"]["tokens"], 13);
  EXPECT_EQ(one["decode"]["tokens"], 10);
  EXPECT_EQ(generated({"threads=2", "prefill_tokens=3"})["sequences"], one["sequences"]);
  const Ended shown = run(f, sample);
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_TRUE(shown.out.starts_with("== prompt 1 (max_new_tokens)\nTo ")) << shown.out;
  const Ended greedy =
      run(f, {"generate", f.run("a"), "--prompt", "To be", "temperature=0", "max_new_tokens=5"});
  EXPECT_EQ(greedy.code, 0) << greedy.err;
  EXPECT_TRUE(greedy.out.starts_with("To be")) << greedy.out;
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
