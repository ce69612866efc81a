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
// bwd_calibration_method, disable_channelwise_axes). Errors name the rule and the key; `name` is the file's.
Result<std::vector<passes::QuantizationRule>> parse_quantization_rules(std::string_view text,
                                                                       const std::string& name);

}  // namespace lignum::plan
