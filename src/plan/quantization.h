// Which dots a configuration quantises, and how.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "passes/quantise.h"

namespace lignum::plan {

// Of the file quantization_rules, in its order, then of `quantization` as MaxText has it: the dots of decoder
// layers. Empty where nothing is quantised.
Result<std::vector<passes::QuantizationRule>> quantization_rules(const config::Config& config);

// The rules of a file's text: a JSON list of objects with the names of Qwix's QtRule (module_path, op_names,
// weight_qtype, act_qtype, bwd_qtype, weight_calibration_method, act_calibration_method,
// bwd_calibration_method, act_static_scale, disable_channelwise_axes, tile_size, bwd_weight_grad_tile_size,
// bwd_stochastic_rounding), and weight_block_size [n, n] as Hugging Face's descriptions of FP8 models have
// it. Errors name the rule and the key; `name` is the file's.
Result<std::vector<passes::QuantizationRule>> parse_quantization_rules(std::string_view text,
                                                                       const std::string& name);

// What load_quant_stats_path holds: ranges that a run recorded. Empty where no rule is static. Errors: a rule
// that is static and no file; a file that is none, or of another number of layers.
Result<passes::QuantizationRanges> quantization_ranges(const config::Config& config,
                                                       const std::vector<passes::QuantizationRule>& rules,
                                                       int64_t layers);

// Of such a file's text: {"steps": n, "quant_stats": {PATH: {OPERAND: {"mean": [a number a layer], "max":
// [..]}}}}. A range is the mean over steps, as Qwix's. `name` is the file's.
Result<passes::QuantizationRanges> parse_quantization_ranges(std::string_view text, const std::string& name,
                                                             int64_t layers);

}  // namespace lignum::plan
