#include "plan/quantization.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace lignum::plan {
namespace {

using passes::QuantizationRule;

constexpr uint64_t kMostBytes = 1 << 20;  // of a file of rules

Result<DType> format_of(const nlohmann::json& v) {
  const auto* name = v.get_ptr<const std::string*>();
  if (name != nullptr) {
    if (*name == "float8_e4m3fn" || *name == "f8e4m3fn") return DType::f8e4m3fn;
    if (*name == "float8_e5m2" || *name == "f8e5m2") return DType::f8e5m2;
  }
  return user_error("{}: float8_e4m3fn or float8_e5m2 is allowed", shown(v.dump()));
}

Status set(QuantizationRule& rule, const std::string& key, const nlohmann::json& v) {
  const auto set_format = [&](std::optional<DType>& to) -> Status {
    if (v.is_null()) return {};
    LIGNUM_ASSIGN_OR_RETURN(to, format_of(v));
    return {};
  };
  const auto set_calibration = [&](ops::Calibration& to) -> Status {
    if (!v.is_string()) return user_error("{}: a text is wanted, \"absmax\" say", shown(v.dump()));
    LIGNUM_ASSIGN_OR_RETURN(to, ops::parse_calibration(v.get_ref<const std::string&>()));
    return {};
  };
  if (key == "weight_qtype") return set_format(rule.weight_dtype);
  if (key == "act_qtype") return set_format(rule.act_dtype);
  if (key == "bwd_qtype") return set_format(rule.bwd_dtype);
  if (key == "weight_calibration_method") return set_calibration(rule.weight);
  if (key == "act_calibration_method") return set_calibration(rule.act);
  if (key == "bwd_calibration_method") return set_calibration(rule.bwd);
  if (key == "module_path") {
    if (!v.is_string()) return user_error("{}: a regular expression is wanted", shown(v.dump()));
    rule.module_path = v.get<std::string>();
    return {};
  }
  if (key == "disable_channelwise_axes") {
    if (!v.is_boolean()) return user_error("{}: true or false is wanted", shown(v.dump()));
    rule.channelwise = !v.get<bool>();
    return {};
  }
  if (key == "op_names") {
    if (!v.is_array()) return user_error("{}: a list of names is wanted", shown(v.dump()));
    for (const nlohmann::json& name : v) {
      if (!name.is_string()) return user_error("{}: a name is wanted", shown(name.dump()));
      rule.op_names.insert(name.get<std::string>());
    }
    return {};
  }
  return user_error("there is no such key{}",
                    nearest_hint(key, {"module_path", "op_names", "weight_qtype", "act_qtype", "bwd_qtype",
                                       "weight_calibration_method", "act_calibration_method",
                                       "bwd_calibration_method", "disable_channelwise_axes"}));
}

Result<ops::Calibration> calibration(const config::Config& c, std::string_view key) {
  auto parsed = ops::parse_calibration(c.text(key));
  if (!parsed.ok()) return parsed.status().with_context(std::string(key));
  return parsed;
}

}  // namespace

Result<std::vector<QuantizationRule>> parse_quantization_rules(std::string_view text,
                                                               const std::string& name) {
  LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json list, parse_json(text, name));
  if (!list.is_array()) return user_error("{}: a list of rules is wanted", name);
  std::vector<QuantizationRule> rules;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) return user_error("{}: rule {}: an object is wanted", name, i + 1);
    QuantizationRule rule;
    for (const auto& [key, value] : list[i].items())
      LIGNUM_RETURN_IF_ERROR(
          set(rule, key, value).with_context(fmt::format("{}: rule {}: {}", name, i + 1, key)));
    rules.push_back(std::move(rule));
  }
  return rules;
}

Result<std::vector<QuantizationRule>> quantization_rules(const config::Config& c) {
  std::vector<QuantizationRule> rules;
  if (!c.boolean("use_qwix_quantization")) return rules;
  if (const std::string& file = c.text("quantization_rules"); !file.empty()) {
    auto text = read_text(file, kMostBytes);
    if (!text.ok()) return text.status().with_context("quantization_rules");
    LIGNUM_ASSIGN_OR_RETURN(rules, parse_quantization_rules(*text, file));
  }
  const std::string& kind = c.text("quantization");
  if (kind.empty()) return rules;
  QuantizationRule rule;
  rule.module_path = "decoder/.*layers.*";
  rule.op_names = {"dot_general"};
  rule.weight_dtype = rule.act_dtype = kind == "fp8_e5m2" ? DType::f8e5m2 : DType::f8e4m3fn;
  rule.bwd_dtype = kind == "fp8_full" || kind == "fp8_e5m2" ? DType::f8e5m2 : DType::f8e4m3fn;
  rule.channelwise = c.text("quantization_scales") == "axis";
  if (kind == "fp8_full") {
    rule.op_names.insert({"gmm", "ragged_dot"});
    LIGNUM_ASSIGN_OR_RETURN(rule.weight, calibration(c, "weight_quantization_calibration_method"));
    LIGNUM_ASSIGN_OR_RETURN(rule.act, calibration(c, "act_quantization_calibration_method"));
    LIGNUM_ASSIGN_OR_RETURN(rule.bwd, calibration(c, "bwd_quantization_calibration_method"));
  }
  rules.push_back(std::move(rule));
  return rules;
}

}  // namespace lignum::plan
