#include "config/config.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_folder.h"
#include "config/keys.h"
#include "config/yaml.h"

namespace lignum::config {
namespace {

Result<Config> of(const std::vector<std::string>& overrides) { return Config::parse("", "", overrides); }
Result<Config> of_yaml(std::string_view yaml) { return Config::parse(yaml, "c.yml", {}); }

std::string error_of(const Result<Config>& result) {
  EXPECT_FALSE(result.ok()) << "accepted";
  EXPECT_TRUE(result.ok() || result.status().code() == Code::user_error);
  return result.ok() ? "" : result.status().message();
}

TEST(Config, DefaultsAreMaxTextsButForTheListedExceptions) {
  const auto config = of({});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->integer("steps"), 150001);
  EXPECT_EQ(config->real("learning_rate"), 3e-5);
  EXPECT_EQ(config->real("adam_b2"), 0.95);
  EXPECT_EQ(config->real("adam_eps_root"), 0);
  EXPECT_EQ(config->integer("vocab_size"), 32000);
  EXPECT_EQ(config->real("normalization_layer_epsilon"), 1e-5);
  EXPECT_EQ(config->real("rope_max_timescale"), 10000);
  EXPECT_EQ(config->text("remat_policy"), "full");
  EXPECT_EQ(config->text("run_name"), "");
  EXPECT_EQ(config->text("model_name"), "default");
  EXPECT_EQ(config->integer("ici_fsdp_parallelism"), -1);
  EXPECT_TRUE(config->list("adamw_mask").empty());
  EXPECT_EQ(config->real("per_device_batch_size"), 12);
  EXPECT_EQ(config->schedule_steps(), 150001);
  EXPECT_EQ(config->origin("steps"), Origin::default_value);
  std::vector<std::string_view> exceptions;
  for (const Key& key : key_table()) {
    if (key.source == Source::maxtext && key.support == Support::implemented &&
        explain(key.name)->find("its default there is") != std::string::npos) {
      exceptions.push_back(key.name);
    }
  }
  EXPECT_EQ(exceptions,
            (std::vector<std::string_view>{"base_output_directory", "dataset_type", "tokenizer_type",
                                           "packing", "grain_worker_count", "num_vocab_tiling", "dtype"}));
}

TEST(Config, CommandLineOverFileOverDefault) {
  const testing::TestFolder folder;
  ASSERT_TRUE(
      write_file_atomic(folder / "c.yml", "steps: 10\nlearning_rate: 1.e-3  # peak\nrun_name: r\n").ok());
  const auto config = Config::load(folder / "c.yml", {"steps=20", "train_files=a.txt,b/*.txt"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->integer("steps"), 20);
  EXPECT_EQ(config->origin("steps"), Origin::command_line);
  EXPECT_EQ(config->real("learning_rate"), 1e-3);
  EXPECT_EQ(config->origin("learning_rate"), Origin::yaml);
  EXPECT_FALSE(config->is_set("adam_b1"));
  EXPECT_EQ(config->list("train_files"), (std::vector<std::string>{"a.txt", "b/*.txt"}));
  EXPECT_EQ(error_of(Config::load(folder / "none.yml", {})),
            (folder / "none.yml") + ": cannot open: No such file or directory");
}

TEST(Config, UnknownKeysShowTheNearest) {
  EXPECT_EQ(error_of(of({"learning_rat=1"})).substr(0, 74),
            "command line: unknown key 'learning_rat'; nearest: 'learning_rate', 'learn");
  EXPECT_NE(error_of(of_yaml("steps: 1\nstepz: 2\n")).find("c.yml:2: unknown key 'stepz'; nearest: 'steps'"),
            std::string::npos);
  EXPECT_EQ(error_of(of({"qqqqqqqqqqqqqqqqqqqqq=1"})), "command line: unknown key 'qqqqqqqqqqqqqqqqqqqqq'");
}

TEST(Config, KeysOfMaxTextThatAreNotImplemented) {
  EXPECT_EQ(error_of(of({"use_iota_embed=true"})),
            "command line: MaxText's key 'use_iota_embed' is known but not implemented in Lignum; remove it, "
            "or leave "
            "it at MaxText's default, false");
  // At MaxText's default, however it is written, they pass and are noted.
  const auto config = of_yaml(
      "use_iota_embed: False\nadam_b1: 0.9\nmax_corpus_chars: 10000000\nmlp_activations: ['silu', linear]\n"
      "grad_dtype: float32\nquantization: ''\nmu_dtype:\nvllm_hf_overrides: {}\nrope_type: default\n"
      "muon_consistent_rms: null\nmscale: 1\n");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->notes().size(), 8);
  EXPECT_EQ(config->notes()[0],
            "use_iota_embed is not implemented; its value is MaxText's default and has no effect");
  EXPECT_NE(error_of(of_yaml("mlp_activations: [gelu]")).find("c.yml:1: MaxText's key 'mlp_activations'"),
            std::string::npos);
  EXPECT_NE(error_of(of_yaml("logical_axis_rules: [['norm', 'fsdp']]")).find("known but not implemented"),
            std::string::npos);
  EXPECT_NE(error_of(of({"vllm_hf_overrides={a: 1}"})).find("known but not implemented"), std::string::npos);
}

TEST(Config, OptimizerAndScheduleThatDoNotFit) {
  EXPECT_TRUE(of({"lr_schedule_type=wsd", "warmup_steps_fraction=0.5", "wsd_decay_steps_fraction=0.5"}).ok());
  EXPECT_EQ(
      error_of(of({"lr_schedule_type=wsd", "warmup_steps_fraction=0.5", "wsd_decay_steps_fraction=0.6"})),
      "warmup_steps_fraction=0.5 and wsd_decay_steps_fraction=0.6: together at most 1");
  EXPECT_TRUE(of({"warmup_steps_fraction=0.5", "wsd_decay_steps_fraction=0.6"}).ok());
  EXPECT_EQ(error_of(of({"opt_type=sgd", "nesterov=true"})),
            "nesterov=true needs a momentum; set opt_type=sgd momentum=0.9, say");
  EXPECT_EQ(error_of(of({"momentum=0.9"})),
            "momentum=0.9 is that of opt_type=sgd; set that, or adam_b1 for opt_type=adamw");
  EXPECT_TRUE(of({"opt_type=sgd", "momentum=0.9", "nesterov=true"}).ok());
  EXPECT_EQ(error_of(of({"eval_patience=2"})), "eval_patience=2 needs evaluations: set eval_interval");
  EXPECT_EQ(error_of(of({"target_eval_loss=2.5"})),
            "target_eval_loss=2.5 needs evaluations: set eval_interval");
  EXPECT_TRUE(of({"eval_patience=2", "target_eval_loss=2.5", "eval_interval=10"}).ok());
  EXPECT_NE(error_of(of({"nu_dtype=bfloat16", "adam_b2=0.999"})).find("adam_b2=0.999"), std::string::npos);
  EXPECT_TRUE(of({"nu_dtype=bfloat16", "mu_dtype=bfloat16"}).ok());
}

TEST(Config, QuantizationNeedsBothKeys) {
  EXPECT_EQ(error_of(of({"use_qwix_quantization=true"})),
            "use_qwix_quantization=true quantises nothing by itself; set quantization=fp8_full, or a file of "
            "quantization_rules");
  EXPECT_EQ(
      error_of(of({"quantization=fp8_full"})),
      "quantization=fp8_full needs Qwix's rules, the only ones there are: set use_qwix_quantization=true");
  EXPECT_EQ(error_of(of({"quantization=int8", "use_qwix_quantization=true"})),
            "quantization=int8: fp8_full, fp8, fp8_e4m3 and fp8_e5m2 are implemented");
  const auto full = of({"quantization=fp8_full", "use_qwix_quantization=true",
                        "act_quantization_calibration_method=fixed,-224,224"});
  ASSERT_TRUE(full.ok()) << full.status().message();
  EXPECT_TRUE(full->notes().empty());
  const auto fp8 = of({"quantization=fp8", "use_qwix_quantization=true",
                       "act_quantization_calibration_method=fixed,-224,224"});
  ASSERT_TRUE(fp8.ok());
  ASSERT_EQ(fp8->notes().size(), 1);
  EXPECT_EQ(
      fp8->notes()[0],
      "act_quantization_calibration_method has no effect with quantization=fp8: only fp8_full reads it");
  const auto nothing = of({"quantization_metrics=true"});
  ASSERT_EQ(nothing->notes().size(), 1U);
  EXPECT_EQ(nothing->notes()[0], "quantization_metrics has no effect: nothing is quantised");
}

TEST(Config, ValuesAreTypedAndInRange) {
  struct Bad {
    const char* word;
    const char* expected;
  };
  for (const Bad& bad : {
           Bad{"steps=0", "steps=0: expected an integer in 1..1000000000000"},
           Bad{"steps=-1", "steps=-1: expected an integer in 1..1000000000000"},
           Bad{"steps=1e3", "steps=1e3: expected an integer in 1..1000000000000"},
           Bad{"steps=10.0", "steps=10.0: expected an integer in 1..1000000000000"},
           Bad{"steps=", "steps=: expected an integer in 1..1000000000000"},
           Bad{"steps= 5", "steps= 5: expected an integer in 1..1000000000000"},
           Bad{"steps=+-5", "steps=+-5: expected an integer in 1..1000000000000"},
           Bad{"steps=1__0", "steps=1__0: expected an integer in 1..1000000000000"},
           Bad{"steps=99999999999999999999999", "steps=99999999999999999999999: expected an integer in 1.."},
           Bad{"steps=0x10", "steps=0x10: expected an integer in 1..1000000000000"},
           Bad{"eval_interval=0", "eval_interval=0: expected an integer in 1..1000000000000, or -1"},
           Bad{"learning_rate=nan", "learning_rate=nan: expected a number in 0..1000"},
           Bad{"learning_rate=inf", "learning_rate=inf: expected a number in 0..1000"},
           Bad{"learning_rate=1e999", "learning_rate=1e999: expected a number in 0..1000"},
           Bad{"learning_rate=-1e-9", "learning_rate=-1e-9: expected a number in 0..1000"},
           Bad{"learning_rate=0x1p3", "learning_rate=0x1p3: expected a number in 0..1000"},
           Bad{"learning_rate=fast", "learning_rate=fast: expected a number in 0..1000"},
           Bad{"adam_b1=1", "adam_b1=1: expected a number in 0.."},
           Bad{"adam_eps=1", "adam_eps=1: expected a number in 0.."},
           Bad{"adam_eps_root=1", "adam_eps_root=1: expected a number in 0.."},
           Bad{"adam_weight_decay=1000", "adam_weight_decay=1000: expected a number in 0.."},
           Bad{"normalization_layer_epsilon=1", "normalization_layer_epsilon=1: expected a number in 0.."},
           Bad{"enable_checkpointing=yes", "enable_checkpointing=yes: expected true or false"},
           Bad{"enable_checkpointing=1", "enable_checkpointing=1: expected true or false"},
           Bad{"enable_checkpointing=on", "enable_checkpointing=on: expected true or false"},
           Bad{"overlap=true", "overlap=true: expected one of on, off"},
           Bad{"remat_policy=some",
               "remat_policy=some: expected one of none, full, minimal, minimal_with_context"},
           Bad{"dtype=float16", "dtype=float16: expected one of float32, bfloat16"},
           Bad{"opt_type=muon", "opt_type=muon: expected one of adamw, sgd"},
           Bad{"mu_dtype=f16", "mu_dtype=f16: expected one of '', float32, bfloat16"},
           Bad{"nu_dtype=", "nu_dtype=: expected one of float32, bfloat16"},
           Bad{"momentum=1", "momentum=1: expected a number in 0.."},
           Bad{"z_loss_multiplier=-1", "z_loss_multiplier=-1: expected a number in 0..1000"},
           Bad{"skip_step_interval=1", "skip_step_interval=1: expected an integer in 2.."},
           Bad{"skip_step_scaling_factor=-1", "skip_step_scaling_factor=-1: expected a number in 0.."},
           Bad{"abort_on_nan_loss=no!", "abort_on_nan_loss=no!: expected"},
           Bad{"eval_patience=-1", "eval_patience=-1: expected an integer in 0.."},
           Bad{"device_memory=8GB", "device_memory=8GB: expected whole bytes"},
           Bad{"device_memory=0.3KiB", "device_memory=0.3KiB: expected whole bytes"},
           Bad{"device_memory=9e999GiB", "device_memory=9e999GiB: expected whole bytes"},
           Bad{"device_memory=-1", "device_memory=-1: expected whole bytes"},
           Bad{"train_files=a,,b", "train_files=a,,b: an item of train_files is empty"},
           Bad{"train_files=[a", "train_files=[a: value:"},
           Bad{"train_files=[[a]]", "train_files=[[a]]: a list holds texts only"},
           Bad{"run_name=\xff", "run_name=?: not UTF-8 text"},
           Bad{"nothing", "'nothing' is not key=value"},
           Bad{"=1", "'=1' is not key=value"},
           Bad{"", "'' is not key=value"},
       }) {
    EXPECT_EQ(error_of(of({bad.word})).find(std::string("command line: ") + bad.expected), 0)
        << bad.word << "\n"
        << error_of(of({bad.word}));
  }
  const auto good =
      of({"steps=10_000", "learning_rate=3.e-5", "device_memory=1.5 GiB", "enable_checkpointing=False",
          "train_files=[\"a,b\", c]", "overlap=off", "adam_b2=0.", "run_name=a=b"});
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->integer("steps"), 10000);
  EXPECT_EQ(good->integer("device_memory"), int64_t{3} << 29);
  EXPECT_FALSE(good->boolean("enable_checkpointing"));
  EXPECT_EQ(good->list("train_files"), (std::vector<std::string>{"a,b", "c"}));
  EXPECT_EQ(good->text("run_name"), "a=b");
}

TEST(Config, TheSameKeyTwice) {
  EXPECT_EQ(error_of(of({"steps=1", "steps=2"})), "command line: 'steps' is given twice");
  EXPECT_EQ(error_of(of_yaml("steps: 1\n\nrun_name: x\nsteps: 2\n")),
            "c.yml:4: key 'steps' stands on line 1 too");
}

TEST(Config, HostileYaml) {
  EXPECT_TRUE(of_yaml("").ok());
  EXPECT_TRUE(of_yaml("# only a comment\n").ok());
  EXPECT_TRUE(of_yaml("---\nsteps: 5\n...\n").ok());
  EXPECT_EQ(error_of(of_yaml("steps:\n  more: 1\n")),
            "c.yml:1: steps: expected an integer in 1..1000000000000, not a nested value");
  EXPECT_EQ(error_of(of_yaml("train_files: {a: b}\n")).find("c.yml:1: train_files: expected a list"), 0);
  EXPECT_EQ(error_of(of_yaml("- steps\n- 3\n")), "c.yml: expected lines of `key: value`");
  EXPECT_EQ(error_of(of_yaml("just words")), "c.yml: expected lines of `key: value`");
  EXPECT_EQ(error_of(of_yaml("a: &x [1]\n")), "c.yml:1: an anchor is not taken here; write the value out");
  EXPECT_EQ(error_of(of_yaml("steps: *x\n")).find("c.yml:1: "), 0);
  EXPECT_EQ(error_of(of_yaml("steps: !!int 5\n")), "c.yml:1: a tag is not taken here; write the value out");
  EXPECT_EQ(error_of(of_yaml("[a, b]: 5\n")),
            "c.yml:1: a key that is not a word is not taken here; write the value out");
  EXPECT_EQ(error_of(of_yaml("steps: 1\n---\nsteps: 2\n")), "c.yml: holds more than one document");
  EXPECT_EQ(error_of(of_yaml("run_name: \xff\n")), "c.yml: not UTF-8 text");
  EXPECT_EQ(error_of(of_yaml(std::string_view("run_name: a\0b\n", 14))), "c.yml: not UTF-8 text");
  EXPECT_NE(error_of(of_yaml("steps: [1, 2\n")).find("not YAML"), std::string::npos);
  EXPECT_NE(error_of(of_yaml("a: b: c\n")).find("c.yml:1: not YAML"), std::string::npos);
  EXPECT_EQ(error_of(of_yaml(std::string((1 << 20) + 1, ' '))),
            "c.yml: 1048577 bytes, at most 1048576 are taken");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of(of_yaml("a: " + std::string(20, '[') + std::string(20, ']'))),
            "c.yml:1: nested deeper than 8 levels");
  EXPECT_EQ(error_of(of_yaml("a: " + std::string(100000, '['))).find("c.yml:1: "), 0);
  std::string laughs = "a0: &a0 lol\n";
  for (int i = 1; i < 30; ++i) laughs += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", i, i - 1);
  EXPECT_EQ(error_of(of_yaml(laughs)), "c.yml:1: an anchor is not taken here; write the value out");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Config, YamlBooleansAreWords) {
  EXPECT_EQ(of_yaml("overlap: off")->text("overlap"), "off");
  EXPECT_TRUE(of_yaml("logits_via_embedding: True")->boolean("logits_via_embedding"));
  EXPECT_EQ(error_of(of_yaml("logits_via_embedding: yes")),
            "c.yml:1: logits_via_embedding=yes: expected true or false");
  EXPECT_EQ(of_yaml("run_name: null")->text("run_name"), "");
  EXPECT_EQ(of_yaml("run_name: 'null'")->text("run_name"), "null");
  EXPECT_EQ(of_yaml("run_name: 007")->text("run_name"), "007");
}

TEST(Config, MeshAndRanks) {
  EXPECT_EQ(of({})->ranks(), 1);
  EXPECT_EQ(of({"ranks=4"})->mesh(4)->size("fsdp"), 4);
  const auto both = of({"ranks=4", "ici_data_parallelism=2"});
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->mesh(4)->size("data"), 2);
  EXPECT_EQ(both->mesh(4)->size("fsdp"), 2);
  EXPECT_EQ(of({"ici_data_parallelism=2", "ici_fsdp_parallelism=3"})->ranks(), 6);
  EXPECT_EQ(of({"ici_data_parallelism=-1", "ici_fsdp_parallelism=2", "ranks=6"})->mesh(6)->size("data"), 3);
  EXPECT_EQ(error_of(of({"ranks=4", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"})),
            "ici_data_parallelism=2, ici_fsdp_parallelism=1: the mesh has 2 x 1 = 2 devices, but there are 4 "
            "(ranks); "
            "make one axis -1 to fit");
  EXPECT_EQ(
      error_of(of({"ranks=5", "ici_data_parallelism=2"})),
      "ici_data_parallelism=2, ici_fsdp_parallelism=-1: 5 devices (ranks) cannot be parted by 2; make it a "
      "multiple of that");
  EXPECT_EQ(error_of(of({"ici_data_parallelism=-1"})),
            "ici_data_parallelism=-1, ici_fsdp_parallelism=-1: only one axis may be -1; set the others");
  EXPECT_NE(
      error_of(of({"ici_data_parallelism=65536", "ici_fsdp_parallelism=65536"})).find("the mesh has 65536 x"),
      std::string::npos);
  // With a topology its devices count, not the ranks of this machine.
  const auto tpu = of({"compile_topology=tpu7x-8", "ici_fsdp_parallelism=8"});
  ASSERT_TRUE(tpu.ok()) << tpu.status().message();
  EXPECT_EQ(tpu->mesh(8)->devices(), 8);
  EXPECT_FALSE(tpu->mesh(4).ok());
}

TEST(Config, AxesOfAMesh) {
  const auto c = of({"ici_fsdp_parallelism=2", "ici_fsdp_transpose_parallelism=3", "ici_tensor_parallelism=4",
                     "per_device_batch_size=0.5"});
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->ranks(), 24);
  const Result<Mesh> mesh = c->mesh(24);
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->sizes, (std::array<int64_t, 6>{1, 1, 2, 3, 1, 4}));
  EXPECT_EQ(mesh->row_groups(), 6);
  EXPECT_EQ(c->rows(*mesh).value(), 12);
  // Ranks of a context axis share rows too.
  const auto context =
      of({"ici_fsdp_parallelism=2", "ici_context_parallelism=4", "per_device_batch_size=0.25"});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ(context->mesh(8)->row_groups(), 2);
  EXPECT_EQ(context->rows(*context->mesh(8)).value(), 2);
  EXPECT_EQ(of({"ici_fsdp_parallelism=2", "ici_tensor_parallelism=-1", "ranks=8"})->mesh(8)->size("tensor"),
            4);
  // 12 rows over 8 devices, of which 4 see rows of their own: 3 each; 10 are not.
  EXPECT_TRUE(of({"ici_fsdp_parallelism=4", "ici_tensor_parallelism=2", "per_device_batch_size=1.5"}).ok());
  EXPECT_NE(error_of(of({"ici_fsdp_parallelism=4", "ici_tensor_parallelism=2", "per_device_batch_size=1.25"}))
                .find("a multiple of 0.5 is"),
            std::string::npos);
}

TEST(Config, AxesOverSlices) {
  // Ranks of this machine: dcn and ici multiply, and dcn_data_parallelism=-1 leaves nothing over.
  const auto ranks = of({"dcn_fsdp_parallelism=2", "ici_fsdp_parallelism=3", "ici_tensor_parallelism=2",
                         "per_device_batch_size=0.5"});
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  EXPECT_EQ(ranks->ranks(), 12);
  EXPECT_EQ(ranks->slices(), 2);
  const Result<Mesh> mesh = ranks->mesh(12);
  ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  EXPECT_EQ(mesh->sizes, (std::array<int64_t, 6>{1, 1, 6, 1, 1, 2}));
  EXPECT_EQ(mesh->dcn, (std::array<int64_t, 6>{1, 1, 2, 1, 1, 1}));
  EXPECT_EQ(mesh->said("fsdp"), "dcn_fsdp_parallelism=2 x ici_fsdp_parallelism=3");
  EXPECT_EQ(mesh->said("tensor"), "ici_tensor_parallelism=2");
  EXPECT_EQ(of({"ranks=8", "dcn_data_parallelism=2"})->mesh(8)->sizes,
            (std::array<int64_t, 6>{2, 1, 4, 1, 1, 1}));

  // As many slices as the topology is said to have; the -1 of each set takes the rest of its own.
  const auto slices = of({"compile_topology=tpu7x-8", "compile_topology_num_slices=4",
                          "dcn_pipeline_parallelism=2", "ici_tensor_parallelism=2"});
  ASSERT_TRUE(slices.ok()) << slices.status().message();
  EXPECT_EQ(slices->mesh(32)->sizes, (std::array<int64_t, 6>{2, 2, 4, 1, 1, 2}));
  EXPECT_EQ(slices->mesh(32)->dcn, (std::array<int64_t, 6>{2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(slices->mesh(32)->said("pipeline"), "dcn_pipeline_parallelism=2");
}

TEST(Config, RefusesAxesOverSlicesThatDoNotFit) {
  const auto ahead = [](std::vector<std::string> words, int64_t devices) {
    words.emplace_back("compile_topology=tpu7x-8");
    const auto c = of(words);
    EXPECT_TRUE(c.ok()) << c.status().message();
    return c.ok() ? std::string(c->mesh(devices).status().message()) : "";
  };
  EXPECT_EQ(ahead({"dcn_pipeline_parallelism=2"}, 8),
            "dcn_data_parallelism=-1, dcn_pipeline_parallelism=2: 1 slice (compile_topology_num_slices=-1) "
            "cannot be parted by 2; make it a multiple of that");
  EXPECT_EQ(
      ahead({"dcn_pipeline_parallelism=2", "dcn_data_parallelism=1", "compile_topology_num_slices=4"}, 32),
      "dcn_data_parallelism=1, dcn_pipeline_parallelism=2: the mesh has 1 x 2 = 2 slices, but there are 4 "
      "(compile_topology_num_slices=4); make one axis -1 to fit");
  EXPECT_EQ(ahead({"dcn_fsdp_parallelism=-1", "compile_topology_num_slices=2"}, 16),
            "dcn_data_parallelism=-1, dcn_fsdp_parallelism=-1: only one axis may be -1; set the others");
  EXPECT_EQ(
      ahead({"ici_fsdp_parallelism=16", "compile_topology_num_slices=2"}, 16),
      "ici_data_parallelism=1, ici_fsdp_parallelism=16: the mesh has 1 x 16 = 16 devices, but there are 8 "
      "(compile_topology, each slice); make one axis -1 to fit");
  EXPECT_EQ(error_of(of({"ranks=5", "dcn_fsdp_parallelism=2"})),
            "ranks=5: not a multiple of the 2 slices that the dcn_* axes make; set it to one");
  EXPECT_EQ(error_of(of({"dcn_expert_parallelism=2"})),
            "command line: dcn_expert_parallelism=2: expected 1: no model here has experts that ranks could "
            "share; leave it out");
  EXPECT_TRUE(of({"dcn_expert_parallelism=1", "ici_expert_parallelism=1"}).ok());
  EXPECT_EQ(
      of({"compile_topology_num_slices=2"})->notes(),
      (std::vector<std::string>{"compile_topology_num_slices=2 has no effect without compile_topology"}));
}

TEST(Config, RunsStayBelowTheirFolder) {
  for (const char* name :
       {"..", "../a", "a/../../b", "a/..", "/a", ".", "./a", "a/.", "a//b", "a/", "a\nb", "\x1b[2J", "a\x7f"})
    EXPECT_NE(error_of(of({"run_name=" + std::string(name)})).find("below base_output_directory"),
              std::string::npos)
        << name;
  for (const char* name : {"", "a", "sweep/a", "a..b", "..a", "été 1"})
    EXPECT_TRUE(of({"run_name=" + std::string(name)}).ok()) << name;
}

TEST(Config, ChecksOverSeveralKeys) {
  EXPECT_NE(error_of(of({"per_device_batch_size=1.5"})).find("per_device_batch_size=1.5: "),
            std::string::npos);
  EXPECT_EQ(error_of(of({"model_path=/m", "model_name=llama2-7b"})),
            "model_path=/m and model_name=llama2-7b both name a model; give one");
  EXPECT_EQ(error_of(of({"model_name=llama2-8b"}))
                .find("model_name=llama2-8b: no such preset; nearest: 'llama2-7b'"),
            0);
  EXPECT_EQ(error_of(of({"dataset_type=text", "train_files=a", "eval_interval=5"})),
            "eval_interval=5 needs held-out files: set eval_files, or eval_interval=-1");
  EXPECT_EQ(error_of(of({"adam_eps=0"})).find("adam_eps=0 and adam_eps_root=0: "), 0);
  EXPECT_TRUE(of({"adam_eps=0", "adam_eps_root=1e-12"}).ok() && of({"adam_eps=0", "opt_type=sgd"}).ok());
  EXPECT_EQ(of({"steps=7"})->schedule_steps(), 7);
  EXPECT_EQ(of({"steps=7", "learning_rate_schedule_steps=5"})->schedule_steps(), 5);
}

TEST(Config, JsonAndYamlSayTheSame) {
  const auto config = of({"steps=12", "run_name=a \"b\" ü: #c", "train_files=[\"x, y\", 'z']",
                          "learning_rate=1e-3", "device_memory=1MiB", "model_name=lignum-tiny"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto again = Config::parse(config->to_yaml(), "again.yml", {});
  ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << config->to_yaml();
  EXPECT_EQ(again->to_json(), config->to_json());
  EXPECT_EQ(again->origin("steps"), Origin::yaml);
  EXPECT_FALSE(again->is_set("vocab_size"));  // a default stays one, and does not argue with the preset
  const auto json = config->to_json();
  EXPECT_EQ(json["steps"], 12);
  EXPECT_EQ(json["train_files"], (std::vector<std::string>{"x, y", "z"}));
  EXPECT_EQ(json["enable_checkpointing"], true);
  EXPECT_EQ(config->value_text("learning_rate"), "0.001");
}

TEST(Config, Explain) {
  EXPECT_EQ(*explain("overlap"),
            "overlap: communication under compute\n  one of on, off, default on\n  Lignum's own key\n");
  EXPECT_NE(explain("dtype")->find("its default there is \"bfloat16\""), std::string::npos);
  EXPECT_NE(explain("adam_b1")->find("MaxText's key and default"), std::string::npos);
  EXPECT_NE(explain("use_iota_embed")->find("does not implement"), std::string::npos);
  EXPECT_EQ(explain("overlp").status().message(), "unknown key 'overlp'; nearest: 'overlap'");
}

TEST(Config, TheTableIsWhole) {
  size_t known = 0;
  for (const Key& key : key_table()) {
    EXPECT_EQ(find_key(key.name), &key) << key.name;  // no name twice
    if (key.support == Support::implemented) {
      EXPECT_FALSE(key.help.empty()) << key.name;
    } else {
      ++known;
    }
  }
  EXPECT_GT(known, 500);
}

TEST(ConfigDeathTest, KeysThatAreNotThereAbort) {
  const auto config = of({});
  EXPECT_DEATH(config->integer("stepz"), "'stepz' is not an implemented key");
  EXPECT_DEATH(config->integer("learning_rate"), "'learning_rate' is of type real");
  EXPECT_DEATH(config->text("use_iota_embed"), "is not an implemented key");
}

}  // namespace
}  // namespace lignum::config
