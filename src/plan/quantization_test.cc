#include "plan/quantization.h"

#include <gtest/gtest.h>

#include <map>

#include "plan/program.h"

namespace lignum::plan {
namespace {

std::vector<std::string> with_model(std::vector<std::string> words) {
  words.insert(words.end(), {"model_name=lignum-tiny", "dtype=bfloat16", "max_target_length=32",
                             "per_device_batch_size=2"});
  return words;
}

std::vector<passes::QuantizationRule> rules_of(std::vector<std::string> words) {
  words.emplace_back("use_qwix_quantization=true");
  const auto rules = quantization_rules(config::Config::load(std::nullopt, words).value());
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  return rules.ok() ? *rules : std::vector<passes::QuantizationRule>{};
}

TEST(Quantization, IsWhatMaxTextMakesOfTheKey) {
  constexpr DType e4m3 = DType::f8e4m3fn, e5m2 = DType::f8e5m2;
  for (const auto& [key, act, bwd] :
       {std::tuple("fp8_full", e4m3, e5m2), std::tuple("fp8", e4m3, e4m3), std::tuple("fp8_e4m3", e4m3, e4m3),
        std::tuple("fp8_e5m2", e5m2, e5m2)}) {
    const auto rules = rules_of({fmt::format("quantization={}", key),
                                 "act_quantization_calibration_method=rms,7", "quantization_scales=tensor"});
    ASSERT_EQ(rules.size(), 1U) << key;
    EXPECT_EQ(rules[0].module_path, "decoder/.*layers.*");
    EXPECT_EQ(rules[0].weight_dtype, act);
    EXPECT_EQ(rules[0].act_dtype, act);
    EXPECT_EQ(rules[0].bwd_dtype, bwd);
    EXPECT_EQ(rules[0].act.text(), key == std::string("fp8_full") ? "rms,7" : "absmax");
    EXPECT_FALSE(rules[0].channelwise);
  }
  const auto bad = quantization_rules(
      config::Config::load(std::nullopt, {"use_qwix_quantization=true", "quantization=fp8_full",
                                          "bwd_quantization_calibration_method=minmax"})
          .value());
  EXPECT_EQ(bad.status().code(), Code::user_error);
  EXPECT_EQ(bad.status().message().find("bwd_quantization_calibration_method: 'minmax'"), 0U);
}

TEST(Quantization, RulesAreReadStrictly) {
  const auto rules = parse_quantization_rules(
      R"([{"module_path": "a/.*"},
          {"op_names": ["dot_general"], "weight_qtype": "float8_e4m3fn", "act_qtype": null, "bwd_qtype": "float8_e5m2",
           "weight_calibration_method": "fixed,-2,2", "disable_channelwise_axes": true}])",
      "rules.json");
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  ASSERT_EQ(rules->size(), 2U);
  EXPECT_EQ(rules->at(0).module_path, "a/.*");
  EXPECT_FALSE(rules->at(0).weight_dtype || rules->at(1).act_dtype || rules->at(1).channelwise);
  EXPECT_EQ(rules->at(1).weight.text(), "fixed,-2,2");
  const auto error = [](std::string_view text) {
    return parse_quantization_rules(text, "r").status().message();
  };
  EXPECT_EQ(error("{}"), "r: a list of rules is wanted");
  EXPECT_EQ(error("[3]"), "r: rule 1: an object is wanted");
  EXPECT_NE(error(R"([{}, {"weight_qtyp": "x"}])")
                .find("r: rule 2: weight_qtyp: there is no such key; nearest: "
                      "'weight_qtype'"),
            std::string::npos);
  EXPECT_NE(error(R"([{"act_qtype": "int8"}])").find("float8_e4m3fn or float8_e5m2"), std::string::npos);
  EXPECT_NE(error(R"([{"act_static": true}])").find("no such key"), std::string::npos);
  EXPECT_NE(error(R"([{"act_calibration_method": 3}])").find("a text (\"absmax\" say) is wanted"),
            std::string::npos);
}

TEST(Quantization, TilesAndBlocks) {
  const auto rules = parse_quantization_rules(
      R"([{"tile_size": 128, "bwd_weight_grad_tile_size": 0.25}, {"tile_size": 1.0}, {"tile_size": null},
          {"weight_block_size": [64, 64]}])",
      "r");
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_EQ(rules->at(0).tile.of(384), 128);
  EXPECT_EQ(rules->at(0).tile.of(320), 0);
  EXPECT_EQ(rules->at(0).weight_grad_tile.of(96), 24);
  EXPECT_EQ(rules->at(1).tile.of(320), 320);
  EXPECT_FALSE(rules->at(2).tile.given());
  EXPECT_EQ(rules->at(3).block, 64);
  EXPECT_EQ(rules_of({"quantization=fp8_full", "quantization_scales=blockwise"})[0].block, 128);
  const auto by_chance = parse_quantization_rules(R"([{"bwd_stochastic_rounding": "uniform"}, {}])", "r");
  EXPECT_TRUE(by_chance->at(0).rounding_seed && !by_chance->at(1).rounding_seed);
  EXPECT_EQ(rules_of({"quantization=fp8", "bwd_stochastic_rounding=uniform", "stochastic_rounding_seed=7"})[0]
                .rounding_seed,
            7U);
  EXPECT_FALSE(rules_of({"quantization=fp8"})[0].rounding_seed);
  const auto error = [](std::string_view text) {
    return parse_quantization_rules(text, "r").status().message();
  };
  EXPECT_NE(error(R"([{"bwd_stochastic_rounding": "low_bit_uniform"}])").find("uniform is implemented"),
            std::string::npos);
  for (const char* bad : {"0", "-1", "1.5", "true", "\"128\""})
    EXPECT_NE(error(fmt::format("[{{\"tile_size\": {}}}]", bad)).find("128 say"), std::string::npos) << bad;
  EXPECT_NE(error(R"([{"weight_block_size": [128, 64]}])").find("squares"), std::string::npos);
  EXPECT_NE(error(R"([{"weight_block_size": [128, 128], "tile_size": 8}])").find("give it, or these"),
            std::string::npos);
}

// A step of lignum-tiny with the rules of that text instead of the keys'.
Result<Program> quantised_step(std::vector<std::string> words, const std::string& rules = "") {
  words.insert(words.end(), {"use_qwix_quantization=true", "quantization=fp8_full"});
  LIGNUM_ASSIGN_OR_RETURN(const config::Config c,
                          config::Config::load(std::nullopt, with_model(std::move(words))));
  LIGNUM_ASSIGN_OR_RETURN(const config::ModelConfig m, config::model_from_config(c));
  LIGNUM_ASSIGN_OR_RETURN(ProgramOptions o, program_options(c, m, 1));
  if (!rules.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(o.quantization, parse_quantization_rules(rules, "r"));
  }
  return make_program(o);
}

// Quantised forward dots, by their path; in a loop's body one counts for each of its layers.
std::map<std::string, int64_t> quantised_dots(const Program& p) {
  std::map<std::string, int64_t> dots;
  for (const ir::Node& outer : p.global.nodes()) {
    if (outer.kind == "scaled_matmul" && outer.tag.role == ir::Role::forward) ++dots[outer.tag.path];
    if (outer.kind != "scan" || outer.tag.role != ir::Role::forward) continue;
    for (const ir::Node& n : outer.body->nodes())
      if (n.kind == "scaled_matmul") dots[n.tag.path] += ir::scan_of(outer).trip;
  }
  return dots;
}

TEST(Quantization, FirstAndLastLayersStayAsTheyAre) {
  const int64_t layers = config::preset("lignum-tiny")->layers;
  const auto all = quantised_step({});
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(quantised_dots(*all)["decoder/layers/mlp/wo"], layers);
  const auto some = quantised_step({"num_layers_at_start_in_bf16=1", "num_layers_at_end_in_bf16=1"});
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_EQ(quantised_dots(*some)["decoder/layers/mlp/wo"], layers - 2);
  const auto none = quantised_step({"num_layers_at_start_in_bf16=" + std::to_string(layers)});
  EXPECT_TRUE(quantised_dots(*none).empty());
  EXPECT_EQ(none->notes.size(), 1U);
  EXPECT_EQ(
      quantised_step({"num_layers_at_start_in_bf16=1", "num_layers_at_end_in_bf16=" + std::to_string(layers)})
          .status()
          .message(),
      fmt::format(
          "num_layers_at_start_in_bf16=1 and num_layers_at_end_in_bf16={}: model_name=lignum-tiny has "
          "{} layers; lower one of them",
          layers, layers));
}

TEST(Quantization, ARuleMayNameTheHeadButNoEmbedding) {
  const std::string rule =
      R"([{"module_path": "PATH", "weight_qtype": "float8_e4m3fn", "act_qtype": "float8_e4m3fn",
                                "bwd_qtype": "float8_e5m2", "tile_size": TILE}])";
  const auto with = [&](std::string path, const std::string& tile) {
    std::string text = rule;
    text.replace(text.find("PATH"), 4, path);
    text.replace(text.find("TILE"), 4, tile);
    return quantised_step({"num_vocab_tiling=2"}, text);
  };
  const auto head = with("decoder/logits_dense", "null");
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(quantised_dots(*head), (std::map<std::string, int64_t>{{"decoder/logits_dense", 1}}));
  ASSERT_EQ(head->notes.size(), 1U);
  EXPECT_EQ(head->notes[0], "num_vocab_tiling=2: no effect, the logits of a quantised head are held whole");
  EXPECT_NE(with("token_embedder", "null").status().message().find("looks rows up"), std::string::npos);
  const std::string hidden = std::to_string(config::preset("lignum-tiny")->hidden);
  EXPECT_EQ(with("decoder/logits_dense", "7")
                .status()
                .message()
                .find("quantization rule 1 (module_path decoder/logits_dense), decoder/logits_dense: "
                      "tile_size=7 does not divide " +
                      hidden),
            0U);
}

}  // namespace
}  // namespace lignum::plan
