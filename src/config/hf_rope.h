// The rotary embedding's part of config.json (hf_config.cc).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "config/hf_fields.h"
#include "config/model_config.h"

namespace lignum::config {

// A family's values where its file has none.
struct RopeDefaults {
  double theta = 10000.0;
  std::optional<double> local_theta;  // of families whose sliding layers have an embedding of their own
};

struct Ropes {
  RopeConfig full;
  std::optional<RopeConfig> local;
};

// Both forms of a file (`rope_parameters`; `rope_scaling`, its key `type` too, with `rope_theta`); where it
// has both they must agree.
Result<Ropes> read_ropes(Fields& fields, const RopeDefaults& defaults, int64_t max_position);
// Both forms, so that old and new readers agree.
void write_ropes(const ModelConfig& model, nlohmann::ordered_json& json);

}  // namespace lignum::config
