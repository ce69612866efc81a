#include "plan/quantization.h"

#include <gtest/gtest.h>

namespace lignum::plan {
namespace {

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
  EXPECT_NE(error(R"([{"tile_size": 128}])").find("no such key"), std::string::npos);
  EXPECT_NE(error(R"([{"act_calibration_method": 3}])").find("a text is wanted"), std::string::npos);
}

}  // namespace
}  // namespace lignum::plan
