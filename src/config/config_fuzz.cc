// libFuzzer target: any bytes are a configuration, a config.json, or errors; what is accepted survives its
// own text.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"
#include "config/model_config.h"

namespace {

using namespace lignum;
using namespace lignum::config;

void check_error(const Status& status) {
  if (status.code() != Code::user_error || status.message().empty()) std::abort();
}

void check_config(const Result<Config>& config) {
  if (!config.ok()) return check_error(config.status());
  const auto again = Config::parse(config->to_yaml(), "again", {});
  if (!again.ok() || again->to_json() != config->to_json()) std::abort();
  // A path would be read from the disk.
  if (config->text("model_path").empty()) {
    const auto model = model_from_config(*config);
    if (!model.ok()) check_error(model.status());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      check_config(Config::parse(text, "fuzz.yml", {}));
      break;
    case 1:
      check_config(Config::parse("", "", {text}));
      break;
    default: {
      const auto model = model_from_hf_json(text, "fuzz.json");
      if (!model.ok()) {
        check_error(model.status());
      } else if (const auto again = model_from_hf_json(model_to_hf_json(*model), "again");
                 !again.ok() || !(*again == *model)) {
        std::abort();
      } else if (model->head_dim <= 1024 && !rope_inv_freq(*model).empty() &&
                 rope_attention_scaling(*model) < 0) {
        std::abort();
      }
    }
  }
  return 0;
}
