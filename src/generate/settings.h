// The words of `lignum generate`: key=value, keys of its own and some of a run's configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "generate/generate.h"
#include "kernels/isa.h"

namespace lignum::generate {

struct Settings {
  GenerateOptions generate;
  std::optional<std::vector<int32_t>> eos_ids;  // absent: the model's
  int64_t prefill_tokens = 512;
  DType dtype = DType::f32;
  int threads = 1;
  kernels::Choice choice;
  int64_t device_memory = 0;  // budget in bytes: what was given, or this machine's memory
};

// Unknown keys come with the nearest ones; values out of range with what is allowed.
Result<Settings> read_settings(const std::vector<std::string>& words);
// One line a key: name, default, meaning.
std::string settings_help();

}  // namespace lignum::generate
