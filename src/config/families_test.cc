// Families other than Llama: what transformers writes for them, old and new, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "config/model_config.h"

namespace lignum::config {
namespace {

using Json = nlohmann::json;

Json with(const std::string& text, const Json& changes) {
  Json json = parse_json(text, "base").value();
  for (const auto& [key, value] : changes.items()) {
    if (value == "absent") {
      json.erase(key);
    } else {
      json[key] = value;
    }
  }
  return json;
}

Result<ModelConfig> read_model(const Json& json) { return model_from_hf_json(json.dump(), "config.json"); }

// transformers 5.24; the shapes are small.
const char* kShape = R"("attention_dropout": 0.0, "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2,
  "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 112, "max_position_embeddings": 256,
  "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
  "rms_norm_eps": 1e-06, "transformers_version": "5.24.0", "use_cache": false, "vocab_size": 211)";

std::string mistral() {
  return std::string("{") + kShape + R"(, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
    "head_dim": 16, "hidden_act": "silu", "sliding_window": 7, "tie_word_embeddings": false,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})";
}
std::string qwen3() {
  return std::string("{") + kShape + R"(, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "attention_bias": false, "head_dim": 24, "hidden_act": "silu", "max_window_layers": 28,
    "layer_types": ["full_attention", "full_attention", "full_attention"], "sliding_window": null,
    "tie_word_embeddings": true, "use_sliding_window": false,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})";
}
std::string gemma2() {
  return std::string("{") + kShape + R"(, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
    "attention_bias": false, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0, "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": true,
    "use_bidirectional_attention": null,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})";
}
std::string gemma3() {
  return std::string("{") + kShape + R"(, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
    "_sliding_window_pattern": 6, "attention_bias": false, "attn_logit_softcapping": null,
    "final_logit_softcapping": null, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 16,
    "sliding_window": 8, "tie_word_embeddings": true, "use_bidirectional_attention": false,
    "rope_parameters": {"full_attention": {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 8.0},
                        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}})";
}

// transformers 5.24, with the dropout that published files have.
std::string gpt2() {
  return R"({"activation_function": "gelu_new", "add_cross_attention": false, "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 210, "dtype": "float32", "embd_pdrop": 0.1, "eos_token_id": 210,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 60, "n_head": 4,
    "n_inner": null, "n_layer": 3, "n_positions": 48, "pad_token_id": null, "reorder_and_upcast_attn": false,
    "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
    "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
    "summary_type": "cls_index", "summary_use_proj": true, "tie_word_embeddings": true,
    "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 211})";
}

TEST(Families, Gpt2HasWordsOfItsOwn) {
  const auto m = read_model(with(gpt2(), {}));
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_TRUE(m->learnt_positions && m->attention_bias && m->mlp_bias && m->tie_embeddings && !m->gated_mlp);
  EXPECT_EQ(m->norm, Norm::layer);
  EXPECT_EQ(m->activation, Activation::gelu_tanh);
  EXPECT_EQ(m->head_dim, 15);
  EXPECT_EQ(m->kv_heads, 4);
  EXPECT_EQ(m->mlp, 240);
  EXPECT_EQ(m->max_position, 48);
  EXPECT_EQ(*m, *read_model(with(gpt2(), {{"n_ctx", 48}, {"activation_function", "gelu_pytorch_tanh"}})));
  EXPECT_EQ(read_model(with(gpt2(), {{"n_inner", 112}}))->mlp, 112);
  const auto error = [](const Json& changes) { return read_model(with(gpt2(), changes)).status().message(); };
  EXPECT_EQ(error({{"n_head", 7}}), "config.json: n_embd=60 is not a multiple of n_head=7");
  EXPECT_EQ(error({{"n_layer", 0}}), "config.json: n_layer=0 must be in 1..65536");
  EXPECT_EQ(error({{"n_ctx", 32}}), "config.json: n_ctx=32 must be 48; nothing else is implemented");
  EXPECT_EQ(
      error({{"activation_function", "relu"}}).find("config.json: activation_function=\"relu\" must be"), 0);
  EXPECT_EQ(error({{"scale_attn_by_inverse_layer_idx", true}}).find("config.json: scale_attn_by_inverse"), 0);
  EXPECT_EQ(
      error({{"add_cross_attention", true}}).find("config.json: add_cross_attention=true must be false"), 0);
  EXPECT_EQ(error({{"resid_pdrop", 1.5}}), "config.json: resid_pdrop=1.5 must be at least 0 and less than 1");
  EXPECT_EQ(error({{"rope_theta", 1e4}}).find("config.json: rope_theta=10000.0 is a feature that is not"), 0);
}

TEST(Families, AreReadAsTransformersWritesThem) {
  const auto m = read_model(with(mistral(), {}));
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->window, 7);
  EXPECT_EQ(m->sliding, std::vector<bool>(3, true));
  const auto q = read_model(with(qwen3(), {}));
  ASSERT_TRUE(q.ok()) << q.status().message();
  EXPECT_TRUE(q->qk_norm && q->sliding.empty() && q->window == 0 && !q->norm_plus_one);
  const auto g2 = read_model(with(gemma2(), {}));
  ASSERT_TRUE(g2.ok()) << g2.status().message();
  EXPECT_EQ(g2->sliding, (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(g2->norm_plus_one && g2->post_norms && g2->scaled_embeddings && !g2->qk_norm);
  EXPECT_EQ(g2->activation, Activation::gelu_tanh);
  EXPECT_EQ(g2->attention_softcap, 5);
  EXPECT_EQ(g2->logit_softcap, 4);
  EXPECT_EQ(g2->query_pre_attn_scalar, 24);
  const auto g3 = read_model(with(gemma3(), {}));
  ASSERT_TRUE(g3.ok()) << g3.status().message();
  EXPECT_TRUE(g3->qk_norm);
  EXPECT_EQ(g3->attention_softcap, 0);
  EXPECT_EQ(g3->rope_of(0).theta, 1e4);
  EXPECT_EQ(g3->rope_of(1).theta, 1e6);
  EXPECT_EQ(g3->rope_of(1).factor, 8);
}

TEST(Families, OlderFilesMeanTheSame) {
  const auto same = [](const std::string& now, const Json& changes) {
    const auto a = read_model(with(now, {})), b = read_model(with(now, changes));
    ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
    EXPECT_EQ(*a, *b) << changes.dump();
  };
  same(gemma3(), {{"rope_parameters", "absent"},
                  {"rope_theta", 1e6},
                  {"rope_local_base_freq", 1e4},
                  {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}});
  same(gemma3(),
       {{"layer_types", "absent"}, {"_sliding_window_pattern", "absent"}, {"sliding_window_pattern", 2}});
  same(gemma2(),
       {{"layer_types", "absent"}, {"tie_word_embeddings", "absent"}, {"cache_implementation", "hybrid"}});
  same(gemma2(), {{"hidden_act", "gelu_pytorch_tanh"}});
  same(qwen3(), {{"layer_types", "absent"}, {"max_window_layers", 2}});
  same(mistral(), {{"head_dim", "absent"}, {"num_key_value_heads", 2}});
}

TEST(Families, AbsentAndNullFieldsAreTransformers) {
  EXPECT_EQ(read_model(with(mistral(), {{"sliding_window", "absent"}}))->window, 4096);
  EXPECT_TRUE(read_model(with(mistral(), {{"sliding_window", nullptr}}))->sliding.empty());
  EXPECT_EQ(
      read_model(with(mistral(), {{"num_attention_heads", 8}, {"num_key_value_heads", "absent"}}))->kv_heads,
      8);
  EXPECT_EQ(read_model(with(qwen3(), {{"head_dim", "absent"}}))->head_dim, 128);
  EXPECT_EQ(read_model(with(gemma2(), {{"attn_logit_softcapping", "absent"}}))->attention_softcap, 50);
  EXPECT_EQ(read_model(with(gemma2(), {{"final_logit_softcapping", nullptr}}))->logit_softcap, 0);
  const auto sliding = read_model(with(qwen3(), {{"use_sliding_window", true},
                                                 {"sliding_window", 9},
                                                 {"layer_types", "absent"},
                                                 {"max_window_layers", 1}}));
  ASSERT_TRUE(sliding.ok()) << sliding.status().message();
  EXPECT_EQ(sliding->sliding, (std::vector<bool>{false, true, true}));
}

TEST(Families, OthersFeaturesAreRefusedByName) {
  const auto refused = [](const std::string& text, const Json& changes, const char* expected) {
    const auto m = read_model(with(text, changes));
    ASSERT_FALSE(m.ok()) << changes.dump();
    EXPECT_NE(m.status().message().find(expected), std::string::npos) << m.status().message();
  };
  refused(mistral(), {{"mlp_bias", true}}, "mlp_bias=true is a feature that is not implemented");
  refused(mistral(), {{"attn_logit_softcapping", 5.0}}, "attn_logit_softcapping=5.0 is a feature");
  refused(mistral(), {{"sliding_window", 0}, {"layer_types", {"full_attention"}}}, "layer_types=");
  refused(qwen3(), {{"layer_types", {"full_attention"}}},
          "layer_types=[\"full_attention\"] must be a list of num_hid");
  refused(gemma3(), {{"layer_types", {"a", "b", "c"}}}, "layer_types=");
  refused(gemma3(), {{"sliding_window_pattern", 0}}, "sliding_window_pattern=0 must be positive");
  refused(gemma3(), {{"sliding_window", -4}}, "sliding_window=-4 must be positive");
  refused(gemma3(), {{"use_bidirectional_attention", true}},
          "use_bidirectional_attention=true must be false");
  refused(gemma3(), {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
          "sliding_attention is missing");
  refused(gemma3(), {{"rope_theta", 5.0}}, "rope_theta=5 and full_attention's rope_theta=1000000 differ");
  refused(gemma2(), {{"hidden_activation", "gelu"}},
          "hidden_activation=\"gelu\" must be \"gelu_pytorch_tanh\"");
  refused(gemma2(), {{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar=0 must be positive");
  refused(gemma2(), {{"num_hidden_layers", 1 << 20}}, "num_hidden_layers=1048576 must be in 1..65536");
}

TEST(Families, WriteWhatTheyRead) {
  for (const std::string& text : {mistral(), qwen3(), gemma2(), gemma3(), gpt2()}) {
    const auto m = read_model(with(text, {}));
    const std::string written = model_to_hf_json(*m);
    const auto again = model_from_hf_json(written, "again");
    ASSERT_TRUE(again.ok()) << again.status().message() << written;
    EXPECT_EQ(*again, *m) << written;
    const auto old = read_model(with(written, {{"rope_parameters", "absent"}}));
    ASSERT_TRUE(old.ok()) << old.status().message();
    EXPECT_EQ(*old, *m) << written;
  }
}

// NumPy, float32 where transformers has float32.
TEST(Families, DynamicAndLongRope) {
  const Json dynamic = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  const auto d = read_model(with(mistral(), {{"rope_parameters", "absent"}, {"rope_scaling", dynamic}}));
  ASSERT_TRUE(d.ok()) << d.status().message();
  const auto frequency = [&](const ModelConfig& m, size_t pair, int64_t sequence) {
    return rope_frequencies(m.rope, m.head_dim, m.max_position, sequence).inv_freq[pair];
  };
  EXPECT_EQ(frequency(*d, 7, 256),
            frequency(*read_model(with(mistral(), {})), 7, 256));  // no longer than the model's
  EXPECT_NEAR(frequency(*d, 1, 1024), 0.2394813746213913, 3e-8);
  EXPECT_NEAR(frequency(*d, 7, 1024), 4.517539491644129e-05, 1e-11);

  Json longrope = {{"rope_type", "longrope"}, {"original_max_position_embeddings", 128}};
  longrope["short_factor"] = std::vector<double>(8, 1.0);
  longrope["long_factor"] = {1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5};
  const auto l = read_model(with(mistral(), {{"rope_parameters", "absent"}, {"rope_scaling", longrope}}));
  ASSERT_TRUE(l.ok()) << l.status().message();
  EXPECT_EQ(frequency(*l, 7, 128), frequency(*read_model(with(mistral(), {})), 7, 128));
  EXPECT_NEAR(frequency(*l, 7, 129) * 4.5, frequency(*l, 7, 128), 1e-10);
  EXPECT_NEAR(rope_attention_scaling(*l), std::sqrt(1 + std::log(256.0 / 128) / std::log(128.0)), 1e-15);
  // The original length beside the object, as files of before transformers 5 have it.
  longrope.erase("original_max_position_embeddings");
  const auto beside = read_model(with(mistral(), {{"rope_parameters", "absent"},
                                                  {"original_max_position_embeddings", 128},
                                                  {"rope_scaling", longrope}}));
  ASSERT_TRUE(beside.ok()) << beside.status().message();
  EXPECT_EQ(*beside, *l);
  longrope["long_factor"] = {1.0};
  const auto bad = read_model(with(mistral(), {{"rope_parameters", "absent"}, {"rope_scaling", longrope}}));
  EXPECT_EQ(bad.status().message(), "config.json: rope long_factor has 1 numbers; head_dim=16 needs 8");
}

}  // namespace
}  // namespace lignum::config
