#include "config/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/test_folder.h"

namespace lignum::config {
namespace {

using Json = nlohmann::json;

// What transformers 5.24 writes for a small Llama.
Json base() {
  return parse_json(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
    "dtype": "float32", "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.02, "intermediate_size": 112, "max_position_embeddings": 256, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": false, "vocab_size": 211})",
                    "base")
      .value();
}

Json with(const Json& changes) {
  Json json = base();
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json;
}

// The old form: no rope_parameters.
Json old_form(const Json& rope_scaling, double theta) {
  Json json = with({{"rope_scaling", rope_scaling}, {"rope_theta", theta}});
  json.erase("rope_parameters");
  return json;
}

Result<ModelConfig> read(const Json& json) { return model_from_hf_json(json.dump(), "config.json"); }

std::string error_of(const Json& json) {
  const auto model = read(json);
  EXPECT_FALSE(model.ok()) << "accepted: " << json.dump();
  return model.ok() ? "" : model.status().message();
}

const Json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};

Json new_form(Json rope, double theta) {
  rope["rope_theta"] = theta;
  return with({{"rope_parameters", rope}});
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 3e-7 * expected[i]) << i;
}

TEST(ModelConfig, ReadsEveryField) {
  const auto m =
      read(with({{"attention_bias", true}, {"tie_word_embeddings", true}, {"eos_token_id", {2, 3}}}));
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->vocab_size, 211);
  EXPECT_EQ(m->hidden, 64);
  EXPECT_EQ(m->layers, 2);
  EXPECT_EQ(m->heads, 4);
  EXPECT_EQ(m->kv_heads, 2);
  EXPECT_EQ(m->head_dim, 16);
  EXPECT_EQ(m->mlp, 112);
  EXPECT_EQ(m->norm_eps, 1e-6);
  EXPECT_TRUE(m->attention_bias);
  EXPECT_FALSE(m->mlp_bias);
  EXPECT_TRUE(m->tie_embeddings);
  EXPECT_EQ(m->max_position, 256);
  EXPECT_EQ(m->bos_token_id, 1);
  EXPECT_EQ(m->eos_token_ids, (std::vector<int64_t>{2, 3}));
}

TEST(ModelConfig, AbsentFieldsTakeLlamasDefaults) {
  Json json = base();
  for (const char* field : {"head_dim", "num_key_value_heads", "rms_norm_eps", "rope_parameters",
                            "eos_token_id", "attention_bias", "model_type", "max_position_embeddings"}) {
    json.erase(field);
  }
  const auto m = read(json);
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->head_dim, 16);
  EXPECT_EQ(m->kv_heads, 4);
  EXPECT_EQ(m->norm_eps, 1e-6);
  EXPECT_EQ(m->rope, RopeConfig());
  EXPECT_EQ(m->max_position, 2048);
  EXPECT_TRUE(m->eos_token_ids.empty());
  EXPECT_EQ(read(with({{"head_dim", nullptr}}))->head_dim, 16);
  EXPECT_EQ(read(with({{"head_dim", 24}}))->head_dim, 24);  // need not be hidden / heads
}

TEST(ModelConfig, RefusesByFieldName) {
  struct Bad {
    Json changes;
    const char* expected;
  };
  const std::vector<Bad> cases = {
      {{{"quantization_config", {{"bits", 4}}}},
       "config.json: quantization_config={\"bits\":4} is a feature that is not"},
      {{{"sliding_window", 128}}, "config.json: sliding_window=128 is a feature that is not implemented"},
      {{{"hidden_act", "gelu"}},
       "config.json: hidden_act=\"gelu\" must be \"silu\"; nothing else is implemented"},
      {{{"attention_dropout", 0.1}},
       "config.json: attention_dropout=0.1 must be 0; nothing else is implemented"},
      {{{"pretraining_tp", 2}}, "config.json: pretraining_tp=2 must be 1; nothing else is implemented"},
      {{{"model_type", "mistral"}}, "config.json: architectures=[\"LlamaForCausalLM\"] must be [\"Mistral"},
      {{{"model_type", "bert"}}, "config.json: model_type=\"bert\" must be one of \"llama\", \"mistral\", "},
      {{{"architectures", {"Qwen3ForCausalLM"}}},
       "config.json: architectures=[\"Qwen3ForCausalLM\"] must be [\"LlamaForCausalLM\"]"},
      {{{"vocab_size", "211"}}, "config.json: vocab_size=\"211\" must be an integer"},
      {{{"vocab_size", 211.5}}, "config.json: vocab_size=211.5 must be an integer"},
      {{{"vocab_size", 18446744073709551615u}},
       "config.json: vocab_size=18446744073709551615 must be a 64-bit integer"},
      {{{"vocab_size", 0}}, "config.json: vocab_size=0 must be in 1..16777216"},
      {{{"vocab_size", nullptr}}, "config.json: vocab_size is missing"},
      {{{"num_hidden_layers", -1}}, "config.json: num_hidden_layers=-1 must be in 1..65536"},
      {{{"num_key_value_heads", 3}},
       "config.json: num_attention_heads=4 must be a multiple of num_key_value_heads=3"},
      {{{"num_key_value_heads", 0}}, "config.json: num_key_value_heads=0 must be in 1..65536"},
      {{{"head_dim", 15}}, "config.json: head_dim=15 must be even"},
      {{{"num_attention_heads", 0}, {"head_dim", nullptr}},
       "config.json: hidden_size=64 is not a multiple of"},
      {{{"num_attention_heads", 6}, {"head_dim", nullptr}},
       "config.json: hidden_size=64 is not a multiple of"},
      {{{"rms_norm_eps", -1}}, "config.json: rms_norm_eps=-1 must be at least 0 and less than 1"},
      {{{"rms_norm_eps", 1}}, "config.json: rms_norm_eps=1 must be at least 0 and less than 1"},
      {{{"tie_word_embeddings", 1}}, "config.json: tie_word_embeddings=1 must be true or false"},
      {{{"eos_token_id", "2"}}, "config.json: eos_token_id=\"2\" must be a token's number"},
      {{{"bos_token_id", {1, 2}}}, "config.json: bos_token_id=[1,2] must be one token's number"},
      {{{"hidden_size", 16777216}, {"intermediate_size", 16777216}, {"num_hidden_layers", 65536}},
       "config.json: 5.53e+19 parameters, more than"},
  };
  for (const Bad& bad : cases)
    EXPECT_EQ(error_of(with(bad.changes)).find(bad.expected), 0) << error_of(with(bad.changes));
  Json anonymous = base();
  anonymous.erase("model_type");
  anonymous.erase("architectures");
  EXPECT_NE(error_of(anonymous).find("neither model_type nor architectures"), std::string::npos);
  EXPECT_EQ(model_from_hf_json("{\"a\":1,\"a\":2}", "f").status().message(),
            "f: key 'a' appears twice in one object");
  EXPECT_EQ(model_from_hf_json("[]", "f").status().message(), "f: expected an object");
}

// The right values of the published Llama 3.1 rotary scaling, head_dim 128.
TEST(ModelConfig, Llama3RopeInBothForms) {
  const auto plain = read(with({{"head_dim", 128}, {"rope_parameters", {{"rope_theta", 500000.0}}}}));
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  const std::vector<double> unscaled = rope_inv_freq(*plain);
  for (Json json : {old_form(kLlama3, 500000), new_form(kLlama3, 500000)}) {
    json["head_dim"] = 128;
    const auto m = read(json);
    ASSERT_TRUE(m.ok()) << m.status().message();
    const std::vector<double> scaled = rope_inv_freq(*m);
    ASSERT_EQ(scaled.size(), 64);
    for (size_t i = 0; i <= 28; ++i) EXPECT_EQ(scaled[i], unscaled[i]) << i;
    const double expected[] = {0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211};
    for (size_t i = 29; i <= 34; ++i) EXPECT_NEAR(scaled[i] / unscaled[i], expected[i - 29], 1e-6) << i;
    for (size_t i = 35; i < 64; ++i) EXPECT_EQ(scaled[i], unscaled[i] * 0.125) << i;
    EXPECT_NEAR(scaled[32], 5.248462e-4, 1e-6 * 5.248462e-4);
    EXPECT_EQ(rope_attention_scaling(*m), 1.0);
  }
}

TEST(ModelConfig, OldLinearAndNull) {
  const std::vector<double> plain = rope_inv_freq(*read(old_form(nullptr, 500000)));
  const auto linear = read(old_form({{"type", "linear"}, {"factor", 2}}, 500000));
  ASSERT_TRUE(linear.ok()) << linear.status().message();
  const std::vector<double> half = rope_inv_freq(*linear);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(half[i], plain[i] * 0.5);
  EXPECT_EQ(plain[0], 1.0);
  EXPECT_NEAR(plain[4], 1 / std::sqrt(500000.0), 1e-9);
}

// Computed apart, in Python with each float32 operation rounded, for the models of the golden references.
TEST(ModelConfig, RopeOfTheGoldenModels) {
  Json llama3 = kLlama3;
  llama3["original_max_position_embeddings"] = 64;
  expect_near(rope_inv_freq(*read(new_form(llama3, 500000))),
              {1.0, 0.07940301299095154, 0.004700753837823868, 0.0009115831344388425, 0.00017677668074611574,
               3.428102354519069e-05, 6.647869668086059e-06, 1.289173155782919e-06});
  expect_near(rope_inv_freq(*read(new_form({{"rope_type", "linear"}, {"factor", 2.0}}, 10000))),
              {0.5, 0.15811388194561005, 0.05000000074505806, 0.015811389312148094, 0.004999999888241291,
               0.0015811389312148094, 0.0005000000237487257, 0.00015811389312148094});
  Json yarn = {{"rope_type", "yarn"},
               {"factor", 4.0},
               {"original_max_position_embeddings", 64},
               {"beta_fast", 32.0},
               {"beta_slow", 1.0}};
  const auto m = read(new_form(yarn, 10000));
  expect_near(rope_inv_freq(*m),
              {1.0, 0.23717081546783447, 0.04999999701976776, 0.007905694656074047, 0.0024999999441206455,
               0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05});
  EXPECT_NEAR(rope_attention_scaling(*m), 1.138629436111989, 1e-15);
  yarn["truncate"] = false;
  expect_near(rope_inv_freq(*read(new_form(yarn, 10000))),
              {1.0, 0.19858352839946747, 0.025595249608159065, 0.007905694656074047, 0.0024999999441206455,
               0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05});
}

TEST(ModelConfig, YarnAttentionScaling) {
  Json yarn = {{"rope_type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 4096}};
  const auto scaling = [&] { return rope_attention_scaling(*read(new_form(yarn, 10000))); };
  EXPECT_NEAR(scaling(), 0.1 * std::log(40.0) + 1, 1e-15);
  yarn["mscale"] = 0.707;
  EXPECT_NEAR(scaling(), 0.1 * std::log(40.0) + 1, 1e-15);  // both or neither
  yarn["mscale_all_dim"] = 1.0;
  EXPECT_NEAR(scaling(), (0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1), 1e-15);
  yarn["attention_factor"] = 1.25;
  EXPECT_EQ(scaling(), 1.25);
}

TEST(ModelConfig, RopeErrorsNameKeyAndAllowedValues) {
  EXPECT_EQ(error_of(old_form({{"rope_type", "foo"}}, 1e4)),
            "config.json: rope_scaling: rope_type='foo' is not implemented; default, linear, dynamic, "
            "llama3, yarn and "
            "longrope are");
  Json incomplete = kLlama3;
  incomplete.erase("low_freq_factor");
  const std::string needs = "; llama3 needs low_freq_factor, positive, and high_freq_factor, above it";
  EXPECT_EQ(error_of(old_form(incomplete, 1e4)),
            "config.json: rope_scaling: low_freq_factor is missing" + needs);
  EXPECT_EQ(error_of(new_form(incomplete, 1e4)),
            "config.json: rope_parameters: low_freq_factor is missing" + needs);
  EXPECT_EQ(error_of(old_form({{"type", "linear"}}, 1e4)), "config.json: rope_scaling: factor is missing");
  EXPECT_EQ(error_of(old_form({{"type", "linear"}, {"factor", 0.5}}, 1e4)),
            "config.json: rope factor=0.5 must be in 1..1000000");
  EXPECT_EQ(error_of(old_form({{"type", "linear"}, {"factor", 2}, {"beta", 1}}, 1e4)),
            "config.json: rope_scaling: beta=1 is a feature that is not implemented");
  EXPECT_EQ(error_of(old_form({{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 2}}, 1e4)),
            "config.json: rope_scaling: type=\"linear\" and rope_type=\"yarn\" differ");
  EXPECT_EQ(
      error_of(with({{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}})),
      "config.json: rope_parameters: partial_rotary_factor=0.5 must be 1.0; nothing else is implemented");
  EXPECT_EQ(error_of(with({{"rope_parameters", 7}})), "config.json: rope_parameters must be an object");
  EXPECT_EQ(error_of(with({{"rope_theta", 5e5}})),
            "config.json: rope_theta=500000 and rope_parameters' rope_theta=10000 differ");
  Json both = new_form(kLlama3, 5e5);
  both["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2}};
  EXPECT_EQ(error_of(both),
            "config.json: rope_scaling and rope_parameters describe different embeddings; remove one");
  EXPECT_EQ(error_of(old_form(nullptr, 1.0)), "config.json: rope rope_theta=1 must be above 1");
  EXPECT_EQ(error_of(old_form(nullptr, -5)), "config.json: rope rope_theta=-5 must be above 1");
}

TEST(ModelConfig, WritesWhatItReads) {
  Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0},         {"original_max_position_embeddings", 64},
               {"mscale", 0.7},       {"mscale_all_dim", 1.0}, {"attention_factor", 1.5},
               {"truncate", false}};
  for (const Json& json :
       {base(), new_form(kLlama3, 5e5), new_form(yarn, 1e4), with({{"eos_token_id", {4, 5}}}),
        with({{"eos_token_id", nullptr}, {"bos_token_id", nullptr}, {"mlp_bias", true}})}) {
    const auto m = read(json);
    ASSERT_TRUE(m.ok()) << m.status().message();
    const std::string text = model_to_hf_json(*m);
    const auto again = model_from_hf_json(text, "again");
    ASSERT_TRUE(again.ok()) << again.status().message() << text;
    EXPECT_EQ(*again, *m) << text;
    // A reader of the old form alone finds the same.
    Json old = parse_json(text, "old").value();
    old.erase("rope_parameters");
    EXPECT_EQ(*read(old), *m) << text;
  }
}

TEST(ModelConfig, PresetsHaveThePublishedSizes) {
  const std::pair<const char*, double> sizes[] = {
      {"llama2-7b", 6.74},     {"mistral-7b", 7.24},     {"qwen3-0.6b", 0.596}, {"qwen3-1.7b", 1.72},
      {"qwen3-4b", 4.02},      {"qwen3-8b", 8.19},       {"qwen3-14b", 14.77},  {"qwen3-32b", 32.76},
      {"gemma2-2b", 2.61},     {"gemma2-9b", 9.24},      {"gemma2-27b", 27.23}, {"gemma3-4b", 3.88},
      {"gpt2", 0.124},         {"gpt2-medium", 0.355},   {"gpt2-large", 0.774}, {"gpt2-xl", 1.558},
      {"gemma3-12b", 11.77},   {"gemma3-27b", 27.01},    {"llama2-70b", 68.98}, {"llama3.1-8b", 8.03},
      {"llama3.1-70b", 70.55}, {"llama3.1-405b", 405.85}};
  for (const auto& [name, billions] : sizes) {
    const auto m = preset(name);
    ASSERT_TRUE(m.ok());
    EXPECT_NEAR(static_cast<double>(m->parameters()) / 1e9, billions, 0.006) << name;
  }
  EXPECT_EQ(preset("lignum-61m")->parameters(), 60913728);
  EXPECT_NEAR(static_cast<double>(preset("lignum-10m")->parameters()) / 1e6, 10, 0.2);
  for (const std::string_view name : preset_names()) {
    EXPECT_TRUE(validate(*preset(name), "preset").ok()) << name;
    EXPECT_EQ(*model_from_hf_json(model_to_hf_json(*preset(name)), "x"), *preset(name)) << name;
  }
}

TEST(ModelConfig, FromConfiguration) {
  const auto model = [](const std::vector<std::string>& words) {
    const auto config = Config::parse("", "", words);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return model_from_config(*config);
  };
  const auto keys = model({"base_emb_dim=128", "logits_via_embedding=true", "rope_max_timescale=500000",
                           "base_num_kv_heads=4", "vocab_size=256", "max_target_length=512"});
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->hidden, 128);
  EXPECT_EQ(keys->heads, 16);  // MaxText's default
  EXPECT_EQ(keys->kv_heads, 4);
  EXPECT_EQ(keys->mlp, 7168);
  EXPECT_TRUE(keys->tie_embeddings);
  EXPECT_EQ(keys->rope.theta, 500000);
  EXPECT_EQ(keys->max_position, 512);
  EXPECT_EQ(*model({"model_name=lignum-61m"}), *preset("lignum-61m"));
  EXPECT_EQ(
      model({"model_name=lignum-61m", "vocab_size=256"}).status().message(),
      "vocab_size=256 beside model_name=lignum-61m: set override_model_config=true to change the preset");
  const auto changed = model({"model_name=lignum-61m", "vocab_size=256", "override_model_config=true"});
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(changed->vocab_size, 256);
  EXPECT_EQ(changed->hidden, 576);
  EXPECT_EQ(model({"base_num_kv_heads=3"}).status().message(),
            "model_name=default: num_attention_heads=16 must be a multiple of num_key_value_heads=3");

  const testing::TestFolder folder;
  ASSERT_TRUE(write_file_atomic(folder / "config.json", base().dump()).ok());
  EXPECT_EQ(model({"model_path=" + folder.path()})->vocab_size, 211);
  EXPECT_EQ(
      model({"model_path=" + folder.path(), "vocab_size=5"}).status().message().find("vocab_size=5 beside"),
      0);
  EXPECT_NE(model({"model_path=" + (folder / "no")}).status().message().find("config.json: cannot open"),
            std::string::npos);
}

}  // namespace
}  // namespace lignum::config
