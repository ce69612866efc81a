// GPT-2's part of config.json (hf_config.cc): words of its own, where the other families share theirs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "config/model_config.h"

namespace lignum::config {

class Fields;

void read_gpt2(Fields& fields, ModelConfig& model);
void write_gpt2(const ModelConfig& model, nlohmann::ordered_json& json);

// The family's word for a field that has the name `common` in other families' files.
std::string_view hf_field(const ModelConfig& model, std::string_view common);

}  // namespace lignum::config
