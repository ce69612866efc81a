#include "plan/quantization.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace lignum::plan {
namespace {

using passes::QuantizationRule;

constexpr uint64_t kMostBytes = 1 << 20;       // of a file of rules
constexpr uint64_t kMostRangeBytes = 1 << 26;  // of recorded ranges
constexpr int64_t kBlock = 128;                // of quantization_scales=blockwise

Result<DType> format_of(const nlohmann::json& v) {
  const auto* name = v.get_ptr<const std::string*>();
  if (name != nullptr) {
    if (*name == "float8_e4m3fn" || *name == "f8e4m3fn") return DType::f8e4m3fn;
    if (*name == "float8_e5m2" || *name == "f8e5m2") return DType::f8e5m2;
  }
  return user_error("{}: float8_e4m3fn or float8_e5m2 is allowed", shown(v.dump()));
}

constexpr std::string_view kKeys[] = {"module_path",
                                      "op_names",
                                      "weight_qtype",
                                      "act_qtype",
                                      "bwd_qtype",
                                      "weight_calibration_method",
                                      "act_calibration_method",
                                      "bwd_calibration_method",
                                      "act_static_scale",
                                      "disable_channelwise_axes",
                                      "tile_size",
                                      "bwd_weight_grad_tile_size",
                                      "weight_block_size",
                                      "bwd_stochastic_rounding"};

Status set_text(std::string& to, const nlohmann::json& v, std::string_view wanted) {
  if (!v.is_string()) return user_error("{}: {} is wanted", shown(v.dump()), wanted);
  to = v.get<std::string>();
  return {};
}

Status set_flag(bool& to, const nlohmann::json& v) {
  if (!v.is_boolean()) return user_error("{}: true or false is wanted", shown(v.dump()));
  to = v.get<bool>();
  return {};
}

Status set_format(std::optional<DType>& to, const nlohmann::json& v) {
  if (v.is_null()) return {};
  LIGNUM_ASSIGN_OR_RETURN(to, format_of(v));
  return {};
}

Status set_calibration(ops::Calibration& to, const nlohmann::json& v) {
  std::string text;
  LIGNUM_RETURN_IF_ERROR(set_text(text, v, "a text (\"absmax\" say)"));
  LIGNUM_ASSIGN_OR_RETURN(to, ops::parse_calibration(text));
  return {};
}

constexpr int64_t kMostTile = int64_t{1} << 40;

// 1 is a tile of one index, 1.0 all of the dim.
Status set_tile(passes::TileSize& to, const nlohmann::json& v) {
  if (v.is_null()) return {};
  if (v.is_number_integer() && v > 0 && v <= kMostTile) {
    to.size = v.get<int64_t>();
  } else if (v.is_number_float() && v > 0 && v <= 1) {
    to.part = v.get<double>();
  } else {
    return user_error(
        "{}: a tile has 1 or more indices (128 say), or is a part of the dim above 0 and up to 1.0 (0.25 "
        "say)",
        shown(v.dump()));
  }
  return {};
}

Status set_block(int64_t& to, const nlohmann::json& v) {
  if (v.is_null()) return {};
  if (!v.is_array() || v.size() != 2 || v[0] != v[1] || !v[0].is_number_integer() || v[0] < 1 ||
      v[0] > kMostTile)
    return user_error(
        "{}: two equal numbers of 1 or more are wanted, [128, 128] say: blocks of weights are squares",
        shown(v.dump()));
  to = v[0].get<int64_t>();
  return {};
}

Status set_rounding(std::optional<uint64_t>& to, const nlohmann::json& v) {
  if (v.is_null()) return {};
  if (v != "uniform")
    return user_error(
        "{}: uniform is implemented, 24 random bits for each element (low_bit_uniform has 8 for a row)",
        shown(v.dump()));
  to = 0;
  return {};
}

Status set(QuantizationRule& rule, const std::string& key, const nlohmann::json& v) {
  if (key == "weight_qtype") return set_format(rule.weight_dtype, v);
  if (key == "act_qtype") return set_format(rule.act_dtype, v);
  if (key == "bwd_qtype") return set_format(rule.bwd_dtype, v);
  if (key == "weight_calibration_method") return set_calibration(rule.weight, v);
  if (key == "act_calibration_method") return set_calibration(rule.act, v);
  if (key == "bwd_calibration_method") return set_calibration(rule.bwd, v);
  if (key == "tile_size") return set_tile(rule.tile, v);
  if (key == "bwd_weight_grad_tile_size") return set_tile(rule.weight_grad_tile, v);
  if (key == "weight_block_size") return set_block(rule.block, v);
  if (key == "bwd_stochastic_rounding") return set_rounding(rule.rounding_seed, v);
  if (key == "module_path") return set_text(rule.module_path, v, "a regular expression");
  if (key == "disable_channelwise_axes") {
    bool disabled = false;
    LIGNUM_RETURN_IF_ERROR(set_flag(disabled, v));
    rule.channelwise = !disabled;
    return {};
  }
  if (key == "act_static_scale") {
    bool recorded = false;
    LIGNUM_RETURN_IF_ERROR(set_flag(recorded, v));
    if (recorded) rule.act = {ops::Calibration::Method::recorded};
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
  return user_error("there is no such key{}", nearest_hint(key, {std::begin(kKeys), std::end(kKeys)}));
}

// Keys of one rule that exclude each other.
Status check(const QuantizationRule& rule) {
  if (rule.block == 0) return {};
  if (rule.tile.given() || rule.weight_grad_tile.given() || !rule.channelwise)
    return user_error(
        "weight_block_size=[{}, {}] says what tile_size, bwd_weight_grad_tile_size and "
        "disable_channelwise_axes "
        "say: give it, or these",
        rule.block, rule.block);
  return {};
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
    if (list[i].contains("act_static_scale") && list[i].contains("act_calibration_method"))
      return user_error("{}: rule {}: act_static_scale and act_calibration_method: give one", name, i + 1);
    QuantizationRule rule;
    for (const auto& [key, value] : list[i].items())
      LIGNUM_RETURN_IF_ERROR(
          set(rule, key, value).with_context(fmt::format("{}: rule {}: {}", name, i + 1, key)));
    if (list[i].value("act_static_scale", false) && !rule.act_dtype)
      return user_error("{}: rule {}: act_static_scale needs an act_qtype", name, i + 1);
    LIGNUM_RETURN_IF_ERROR(check(rule).with_context(fmt::format("{}: rule {}", name, i + 1)));
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
  const auto seed = static_cast<uint64_t>(c.integer("stochastic_rounding_seed"));
  for (QuantizationRule& rule : rules)
    if (rule.rounding_seed) rule.rounding_seed = seed;
  const std::string& kind = c.text("quantization");
  if (kind.empty()) return rules;
  QuantizationRule rule;
  rule.module_path = "decoder/.*layers.*";
  rule.op_names = {"dot_general"};
  rule.weight_dtype = rule.act_dtype = kind == "fp8_e5m2" ? DType::f8e5m2 : DType::f8e4m3fn;
  rule.bwd_dtype = kind == "fp8_full" || kind == "fp8_e5m2" ? DType::f8e5m2 : DType::f8e4m3fn;
  rule.channelwise = c.text("quantization_scales") != "tensor";
  if (c.text("quantization_scales") == "blockwise") rule.block = kBlock;
  if (c.text("bwd_stochastic_rounding") == "uniform") rule.rounding_seed = seed;
  if (kind == "fp8_full") {
    rule.op_names.insert({"gmm", "ragged_dot"});
    LIGNUM_ASSIGN_OR_RETURN(rule.weight, calibration(c, "weight_quantization_calibration_method"));
    LIGNUM_ASSIGN_OR_RETURN(rule.act, calibration(c, "act_quantization_calibration_method"));
    LIGNUM_ASSIGN_OR_RETURN(rule.bwd, calibration(c, "bwd_quantization_calibration_method"));
  }
  rules.push_back(std::move(rule));
  return rules;
}

Result<passes::QuantizationRanges> parse_quantization_ranges(std::string_view text, const std::string& name,
                                                             int64_t layers) {
  LIGNUM_ASSIGN_OR_RETURN(const nlohmann::json file, parse_json(text, name));
  const auto refuse = [&](const std::string& why) {
    return user_error("{}: {}; a run with save_quant_stats_path writes such a file", name, why);
  };
  const auto is_object = [](const nlohmann::json& v) { return v.is_object(); };
  if (!is_object(file) || !file.contains("quant_stats") || !is_object(file["quant_stats"]))
    return refuse("an object quant_stats is wanted");
  passes::QuantizationRanges ranges;
  for (const auto& [path, operands] : file["quant_stats"].items()) {
    if (!is_object(operands)) return refuse(fmt::format("{}: an object is wanted", path));
    for (const auto& [operand, stats] : operands.items()) {
      const std::string where = fmt::format("{} of {}", operand, path);
      if (operand != "weight" && operand != "act" && operand != "bwd")
        return refuse(fmt::format("{}: operands are weight, act and bwd", where));
      if (!is_object(stats) || !stats.contains("mean") || !stats["mean"].is_array())
        return refuse(fmt::format("{}: a list `mean` is wanted", where));
      const nlohmann::json& mean = stats["mean"];
      if (mean.size() != 1 && static_cast<int64_t>(mean.size()) != layers)
        return refuse(
            fmt::format("{}: ranges of {} layers, and this model has {}", where, mean.size(), layers));
      for (const nlohmann::json& number : mean) {
        if (number.is_null()) {
          ranges[path][operand].push_back(-1);
          continue;
        }
        if (!number.is_number() || !(number.get<double>() >= 0) || !(number.get<double>() <= 3e38))
          return refuse(fmt::format("{}: {} is no range", where, shown(number.dump())));
        ranges[path][operand].push_back(number.get<double>());
      }
    }
  }
  return ranges;
}

Result<passes::QuantizationRanges> quantization_ranges(const config::Config& c,
                                                       const std::vector<QuantizationRule>& rules,
                                                       int64_t layers) {
  const auto recorded = [](const ops::Calibration& c) {
    return c.method == ops::Calibration::Method::recorded;
  };
  const auto is_static = [&](const QuantizationRule& r) {
    return r.weight_dtype && (recorded(r.weight) || recorded(r.act) || recorded(r.bwd));
  };
  if (std::none_of(rules.begin(), rules.end(), is_static)) return passes::QuantizationRanges();
  const std::string& path = c.text("load_quant_stats_path");
  if (path.empty())
    return user_error(
        "static quantization needs recorded ranges: set load_quant_stats_path to what a run with "
        "save_quant_stats_path wrote");
  auto text = read_text(path, kMostRangeBytes);
  if (!text.ok()) return text.status().with_context("load_quant_stats_path");
  return parse_quantization_ranges(*text, path, layers);
}

}  // namespace lignum::plan
