// The levers of training: optimizers and the dtypes of their moments, z-loss, steps that are skipped, runs
// that end early. Each on against off, on meshes, over a resume.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <limits>

#include "hw/spec.h"
#include "plan/price.h"
#include "process.h"
#include "runs.h"
#include "train/setup.h"

namespace lignum::testing {
namespace {

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

TEST(Levers, OptimizersResumeAndHaveTheSameBitsOnMeshes) {
  const RunFolder f;
  const std::pair<std::string, std::vector<std::string>> optimizers[] = {
      {"sgd", {"opt_type=sgd", "learning_rate=0.5"}},
      {"momentum", {"opt_type=sgd", "learning_rate=0.1", "momentum=0.9", "nesterov=true"}},
      {"bf16_m", {"mu_dtype=bfloat16", "lr_schedule_type=wsd"}},
      {"bf16_m_v", {"mu_dtype=bfloat16", "nu_dtype=bfloat16"}},
  };
  for (const auto& [name, words] : optimizers) {
    const auto train = [&](const std::string& run, std::vector<std::string> more) {
      more.insert(more.end(), words.begin(), words.end());
      more.emplace_back("gradient_clipping_threshold=0");
      return f.train(run + name, std::move(more));
    };
    ASSERT_OK(train("data", {"ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"}));
    ASSERT_OK(train("fsdp", {"steps=3", "ranks=2", "ici_fsdp_parallelism=2"}));
    ASSERT_OK(train("fsdp", {"ranks=2", "ici_fsdp_parallelism=2", "threads=2"}));
    ASSERT_OK(train("accumulation", {"gradient_accumulation_steps=2", "remat_policy=none"}));
    EXPECT_EQ(f.tensors("data" + name, 8), f.tensors("fsdp" + name, 8)) << name;
    EXPECT_EQ(f.tensors("data" + name, 8), f.tensors("accumulation" + name, 8)) << name;
    const auto losses = f.steps("data" + name);
    EXPECT_LT(losses.back()["loss"].get<double>(), losses.front()["loss"].get<double>() - 0.1) << name;
  }
  const auto reader = [&](const std::string& run) {
    return SafetensorsReader::open(f.checkpoint(run, 8) + "/optimizer.safetensors").value();
  };
  EXPECT_TRUE(reader("datasgd").tensors().empty());
  EXPECT_EQ(reader("datamomentum").require("sgd_trace.model.norm.weight").value()->dtype, DType::f32);
  EXPECT_EQ(reader("databf16_m").require("adam_m.model.norm.weight").value()->dtype, DType::bf16);
  EXPECT_EQ(reader("databf16_m").require("adam_v.model.norm.weight").value()->dtype, DType::f32);
  EXPECT_EQ(reader("databf16_m_v").require("adam_v.model.norm.weight").value()->dtype, DType::bf16);

  // Moments of another optimizer are not made up.
  const auto other = f.train("datamomentum", {"steps=9"});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::user_error);
  EXPECT_NE(other.status().message().find("opt_type"), std::string::npos) << other.status().message();
}

// Moments and parameters in RAM or in a file: the same bits, and a checkpoint that either kind of run goes on
// from.
TEST(Levers, StateInHostMemoryResumesAndHasTheSameBits) {
  const RunFolder f;
  const std::vector<std::string> moments = {"optimizer_memory_host_offload=true"},
                                 all = {"optimizer_memory_host_offload=true",
                                        "parameter_memory_host_offload=true", "host_memory=file:" + f.path()};
  const std::vector<std::string> kinds[] = {
      {"mu_dtype=bfloat16", "eval_interval=4"},
      {"opt_type=sgd", "learning_rate=0.1", "momentum=0.9", "dtype=bfloat16", "ranks=2",
       "ici_fsdp_parallelism=2"},
  };
  for (const auto& kind : kinds) {
    const std::string name = std::to_string(&kind - kinds);
    const auto train = [&](const std::string& run, std::vector<std::string> words,
                           const std::vector<std::string>& offload) {
      words.insert(words.end(), kind.begin(), kind.end());
      words.insert(words.end(), offload.begin(), offload.end());
      return f.train(run + name, words);
    };
    ASSERT_OK(train("whole", {}, {}));
    ASSERT_OK(train("parts", {"steps=3"}, moments));
    ASSERT_OK(train("parts", {"steps=5"}, {}));
    ASSERT_OK(train("parts", {}, all));
    EXPECT_EQ(f.tensors("parts" + name, 8), f.tensors("whole" + name, 8));
    // The last step, or the evaluation after it. (Each part is evaluated at its end too.)
    EXPECT_EQ(f.steps("parts" + name).back(), f.steps("whole" + name).back());
  }
}

TEST(Levers, WhatChangedIsSaidInOneLine) {
  const RunFolder f;
  ASSERT_OK(f.train("a", {"steps=2", "mu_dtype=bfloat16"}));
  std::vector<std::string> lines;
  train::TrainOptions options;
  options.log = [&](const std::string& line) { lines.push_back(line); };
  ASSERT_OK(f.train("a",
                    {"steps=3", "learning_rate=0.02", "per_device_batch_size=3", "data_shuffle_seed=7",
                     "nu_dtype=bfloat16"},
                    options));
  const auto said = std::find_if(lines.begin(), lines.end(),
                                 [](const std::string& line) { return line.starts_with("changed since: "); });
  ASSERT_NE(said, lines.end());
  for (const char* change :
       {"learning_rate: 0.01 -> 0.02", "per_device_batch_size: 2 -> 3", "data_shuffle_seed: 0 -> 7",
        "mu_dtype: bfloat16 -> ''", "nu_dtype: float32 -> bfloat16"})
    EXPECT_NE(said->find(change), std::string::npos) << change << " is not in: " << *said;
  EXPECT_NE(
      std::find(lines.begin(), lines.end(), "adamw, moments f32 and bf16; weight decay: every parameter"),
      lines.end());
  const auto moments = SafetensorsReader::open(f.checkpoint("a", 3) + "/optimizer.safetensors");
  ASSERT_OK(moments);
  EXPECT_EQ(moments->require("adam_m.model.norm.weight").value()->dtype, DType::f32);
  EXPECT_EQ(moments->require("adam_v.model.norm.weight").value()->dtype, DType::bf16);
}

TEST(Levers, AMaskThatNeverEndsIsRefused) {
  const RunFolder f;
  const auto s = f.train("a", {"adamw_mask=['(([a-z_.]+)*)*[!?]']"});
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::user_error);
  EXPECT_TRUE(
      s.status().message().starts_with("adamw_mask: the regular expression '(([a-z_.]+)*)*[!?]' gave up"))
      << s.status().message();
}

// Added to what is trained on, and not to the loss that is shown.
TEST(Levers, ZLossIsLoggedApartAndHasTheSameBitsOnMeshes) {
  const RunFolder f;
  const auto train = [&](const std::string& run, std::vector<std::string> more) {
    for (const char* word : {"z_loss_multiplier=0.01", "steps=3", "gradient_clipping_threshold=0"})
      more.emplace_back(word);
    return f.train(run, std::move(more));
  };
  ASSERT_OK(train("data", {"ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"}));
  ASSERT_OK(train("fsdp", {"ranks=2", "ici_fsdp_parallelism=2", "num_vocab_tiling=1"}));
  ASSERT_OK(train("accumulation", {"gradient_accumulation_steps=2"}));
  EXPECT_EQ(f.tensors("data", 3), f.tensors("fsdp", 3));
  EXPECT_EQ(f.tensors("data", 3), f.tensors("accumulation", 3));
  ASSERT_OK(
      f.train("without", {"steps=3", "gradient_clipping_threshold=0", "gradient_accumulation_steps=2"}));
  const auto with = f.steps("data"), without = f.steps("without");
  EXPECT_EQ(with[0]["loss"], without[0]["loss"]);
  EXPECT_NE(with[0]["grad_norm"], without[0]["grad_norm"]);
  EXPECT_FALSE(without[0].contains("z_loss"));
}

// Where the head's weight is zero every logit is, and with multiplier c, V tokens, lse = log V: a row of the
// head that is no target has the gradient (1 + 2 c lse) / V times the mean of the hidden states.
TEST(Levers, ZLossIsThatOfItsFormula) {
  const RunFolder f;
  ASSERT_OK(f.train("source", {"steps=1", "learning_rate=0"}));
  copy_model(f.checkpoint("source", 1), f / "zero", "lm_head.weight",
             [](std::span<float> w) { std::fill(w.begin(), w.end(), 0.0F); });
  const std::string yaml = fmt::format(
      "dataset_type: text\ntrain_files: [{0}/train.txt]\nbase_output_directory: {0}/runs\nmodel_path: "
      "{0}/zero\n"
      "max_target_length: 16\nper_device_batch_size: 2\nsteps: 1\nthreads: 1\nopt_type: sgd\n"
      "learning_rate: 1\nwarmup_steps_fraction: 0\ngradient_clipping_threshold: 0\n",
      f.path());
  constexpr double kC = 0.125;
  const double lse = std::log(256.0);
  const auto row = [&](const std::string& name, std::vector<std::string> words) {
    words.push_back("run_name=" + name);
    const auto config = config::Config::parse(yaml, "zero.yml", words);
    EXPECT_TRUE(config.ok()) << config.status().message();
    const auto s = train::train(*config, {});
    EXPECT_TRUE(s.ok()) << s.status().message();
    if (!s.ok()) return std::vector<float>(32);
    EXPECT_FLOAT_EQ(static_cast<float>(s->last->loss), static_cast<float>(lse));
    EXPECT_EQ(s->last->z_loss.has_value(), words.size() > 1);
    if (words.size() > 1) {
      EXPECT_FLOAT_EQ(static_cast<float>(s->last->z_loss.value_or(0)), static_cast<float>(kC * lse * lse));
    }
    const auto weights = SafetensorsReader::open(f.checkpoint(name, 1) + "/model.safetensors");
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    std::vector<float> out(32);
    EXPECT_TRUE(
        weights->read_as_f32("lm_head.weight", out.data(), int64_t{'A'} * 32, 32).ok());  // not in the text
    return out;
  };
  const std::vector<float> plain = row("plain", {});
  double largest = 0;
  for (const float x : plain) largest = std::max(largest, std::abs(static_cast<double>(x)));
  EXPECT_GT(largest, 1e-4);
  const std::string c = fmt::format("z_loss_multiplier={}", kC);
  for (const auto& row_with :
       {row("whole", {c, "num_vocab_tiling=1"}), row("tiled", {c, "num_vocab_tiling=4"})})
    for (size_t i = 0; i < plain.size(); ++i)
      EXPECT_NEAR(row_with[i], (1 + 2 * kC * lse) * static_cast<double>(plain[i]), 1e-5 * largest) << i;
}

TEST(Levers, SpikesAreSkippedAndAResumeDecidesAlike) {
  const RunFolder f;
  std::vector<std::string> lines;
  train::TrainOptions options;
  options.log = [&](const std::string& line) { lines.push_back(line); };
  // Whatever is above the mean of the steps before.
  const auto train = [&](const std::string& run, std::vector<std::string> more) {
    for (const char* word : {"skip_step_on_spikes=true", "skip_step_interval=4", "skip_step_scaling_factor=0",
                             "checkpoint_period=1"})
      more.emplace_back(word);
    return f.train(run, std::move(more), options);
  };
  const auto whole = train("whole", {});
  ASSERT_OK(whole);
  const auto is_skip = [](const std::string& line) { return line.find("is skipped") != std::string::npos; };
  const auto said = std::count_if(lines.begin(), lines.end(), is_skip);
  ASSERT_OK(train("again", {"steps=6"}));
  ASSERT_OK(train("again", {"threads=2"}));
  const auto records = f.steps("whole");
  EXPECT_EQ(records, f.steps("again"));
  EXPECT_EQ(f.tensors("whole", 8), f.tensors("again", 8));
  int64_t skipped = 0;
  for (int64_t k = 0; k < 8; ++k) {
    const bool left_out = records[static_cast<size_t>(k)].contains("skipped");
    if (k > 0) {
      EXPECT_EQ(f.tensors("whole", k) == f.tensors("whole", k + 1), left_out) << k;
    }
    skipped += left_out ? 1 : 0;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 6);
  EXPECT_EQ(said, skipped);
  EXPECT_EQ(whole->skipped_steps, skipped);
  const auto state = read_json(f.checkpoint("whole", 8) + "/state.json");
  ASSERT_OK(state);
  EXPECT_EQ((*state)["policy"]["skipped"].size(), static_cast<size_t>(skipped));
}

TEST(Levers, LimitsThatNothingReachesChangeNoBit) {
  const RunFolder f;
  ASSERT_OK(f.train("off", {}));
  ASSERT_OK(
      f.train("on", {"skip_step_on_spikes=true", "skip_step_interval=4", "skip_step_scaling_factor=1000"}));
  EXPECT_EQ(f.tensors("off", 8), f.tensors("on", 8));
  EXPECT_EQ(f.steps("off"), f.steps("on"));
}

TEST(Levers, HeldOutLossEndsARunAndAResumeKnows) {
  const RunFolder f;
  const auto reached = f.train("reached", {"eval_interval=2", "target_eval_loss=5.4"});
  ASSERT_OK(reached);
  EXPECT_LT(reached->steps, 8);
  EXPECT_LE(reached->eval->loss, 5.4);
  EXPECT_NE(reached->ended_early.find("target_eval_loss=5.4"), std::string::npos);
  EXPECT_EQ(reached->checkpoint, f.checkpoint("reached", reached->steps));
  const auto over = f.train("reached", {"eval_interval=2", "target_eval_loss=5.4"});
  ASSERT_OK(over);
  EXPECT_EQ(over->steps, 0);
  EXPECT_EQ(over->ended_early, reached->ended_early);
  ASSERT_OK(f.train("reached", {"eval_interval=2"}));

  // Nothing is learnt, so that the second and third evaluation are no better than the first.
  const std::vector<std::string> stuck = {"learning_rate=0", "eval_interval=2", "eval_patience=2"};
  const auto patient = f.train("patient", stuck);
  ASSERT_OK(patient);
  EXPECT_EQ(patient->steps, 6);
  ASSERT_OK(f.train("parts", {stuck[0], stuck[1], stuck[2], "steps=4"}));
  const auto second = f.train("parts", stuck);
  ASSERT_OK(second);
  EXPECT_EQ(second->steps, 2);
  EXPECT_EQ(f.steps("parts"), f.steps("patient"));
}

// A signal after step 4 comes before its evaluation, which the resume makes up for.
TEST(Levers, AResumeOwesTheEvaluationThatASignalCameBefore) {
  const RunFolder f;
  const std::vector<std::string> words = {"learning_rate=0", "eval_interval=2", "eval_patience=2"};
  ASSERT_OK(f.train("whole", words));
  std::atomic<int> stop{0};
  train::TrainOptions options;
  options.stop = &stop;
  options.record = [&](const nlohmann::ordered_json& record) {
    if (record["step"] == 3 && record.contains("loss")) stop = SIGTERM;
  };
  const auto first = f.train("parts", words, options);
  ASSERT_OK(first);
  EXPECT_EQ(first->steps, 4);
  const auto second = f.train("parts", words);
  ASSERT_OK(second);
  EXPECT_EQ(second->steps, 2);
  EXPECT_EQ(f.steps("parts"), f.steps("whole"));
}

struct Planned {
  int64_t optimizer_bytes = 0;
  double update_bytes = 0, step_seconds = 0;  // on tpu7x
};

Planned planned(const RunFolder& f, const std::vector<std::string>& words) {
  Planned out;
  const auto config = config::Config::parse(f.yaml(), "tiny.yml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto setup = train::make_setup(*config, nullptr);
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  const auto program = plan::make_program(setup->step);
  EXPECT_TRUE(program.ok()) << program.status().message();
  for (const passes::MemoryPart& p : program->memory.parts)
    if (p.name == "optimizer") out.optimizer_bytes = p.bytes;
  const auto spec = hw::Spec::load("tpu7x");
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  const auto price = plan::price(*program, setup->step, *spec);
  EXPECT_TRUE(price.ok()) << price.status().message();
  out.step_seconds = price->step_seconds;
  for (const plan::NodePrice& n : price->nodes)
    if (n.kind.ends_with("_update")) out.update_bytes += n.bytes * static_cast<double>(n.count);
  return out;
}

TEST(Levers, APlanHoldsAndPricesTheMoments) {
  const RunFolder f;
  const auto setup = planned(f, {});
  const Planned m = planned(f, {"mu_dtype=bfloat16"}),
                both = planned(f, {"mu_dtype=bfloat16", "nu_dtype=bfloat16"}),
                momentum = planned(f, {"opt_type=sgd", "momentum=0.9"}), sgd = planned(f, {"opt_type=sgd"});
  EXPECT_GT(setup.optimizer_bytes, 0);
  EXPECT_EQ(m.optimizer_bytes * 4, setup.optimizer_bytes * 3);
  EXPECT_EQ(both.optimizer_bytes * 2, setup.optimizer_bytes);
  EXPECT_EQ(momentum.optimizer_bytes * 2, setup.optimizer_bytes);
  EXPECT_EQ(sgd.optimizer_bytes, 0);
  // A moment is read and written, in four bytes or in two.
  EXPECT_NEAR(setup.update_bytes - both.update_bytes, static_cast<double>(setup.optimizer_bytes),
              1e-3 * setup.update_bytes);
  EXPECT_LT(both.step_seconds, setup.step_seconds);
  EXPECT_LT(sgd.step_seconds, momentum.step_seconds);

  // In host memory they take nothing of the device, but for a layer's on their way.
  const Planned host = planned(f, {"optimizer_memory_host_offload=true"});
  EXPECT_EQ(host.optimizer_bytes, 0);
  EXPECT_GT(host.step_seconds, setup.step_seconds);

  const Ended plan = run(f, {"plan", f / "tiny.yml", "mu_dtype=bfloat16", "spec=tpu7x"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("; adamw, moments bf16 and f32\n"), std::string::npos) << plan.out;
}

TEST(Levers, ANaNEndsTheProgramWithOneMessage) {
  const RunFolder f;
  ASSERT_OK(f.train("source", {"steps=1"}));
  copy_model(f.checkpoint("source", 1), f / "planted", "model.norm.weight",
             [](std::span<float> w) { w[3] = std::numeric_limits<float>::infinity(); });
  const std::vector<std::string> words = {
      "train",
      "dataset_type=text",
      "train_files=" + (f / "train.txt"),
      "base_output_directory=" + (f / "runs"),
      "model_path=" + (f / "planted"),
      "max_target_length=16",
      "per_device_batch_size=2",
      "steps=2",
      "threads=1",
  };
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run(f, std::move(more));
  };
  const Ended aborted = with({"run_name=abort"});
  EXPECT_EQ(aborted.code, 1) << aborted.err;
  EXPECT_NE(aborted.err.find("step 0: loss"), std::string::npos) << aborted.err;
  EXPECT_NE(aborted.err.find("parameters and moments are those before this step"), std::string::npos);
  const Ended skipped = with({"run_name=skip", "abort_on_nan_loss=false", "abort_on_inf_loss=false"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_EQ(f.tensors("skip", 2), f.tensors("abort", 0));
}

}  // namespace
}  // namespace lignum::testing
