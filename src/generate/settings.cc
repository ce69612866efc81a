#include "generate/settings.h"

#include <algorithm>
#include <array>
#include <map>
#include <thread>

#include "base/text.h"
#include "config/keys.h"
#include "train/setup.h"

namespace lignum::generate {
namespace {

using config::Key;
using config::Type;
using config::Value;

Key key(std::string_view name, Type type, double min, double max, std::string_view otherwise,
        std::string_view help) {
  Key k;
  k.name = name;
  k.type = type;
  k.default_text = otherwise;
  k.help = help;
  k.min = min;
  k.max = max;
  return k;
}

constexpr double kMaxTokens = 1 << 24;

const std::vector<Key>& own_keys() {
  static const std::vector<Key> kKeys = {
      key("max_new_tokens", Type::integer, 1, kMaxTokens, "128", "tokens a sequence gets at most"),
      key("temperature", Type::real, 0, 1e6, "1", "divides the logits; 0: the likeliest token, always"),
      key("top_k", Type::integer, 0, kMaxTokens, "0", "draw from the k likeliest tokens; 0: from all"),
      key("top_p", Type::real, 0, 1, "1", "draw from the likeliest tokens that make up this probability"),
      key("seed", Type::integer, 0, 9007199254740992.0, "0", "of the draws"),
      key("eos_ids", Type::list, 0, 0, "[]", "tokens that end a sequence, [2,5] say; not given: the model's"),
      key("prefill_tokens", Type::integer, 1, 1 << 20, "512", "of a prompt read in one step"),
  };
  return kKeys;
}
// Keys of a run's configuration that mean here what they mean there.
constexpr std::array<std::string_view, 4> kShared = {"dtype", "threads", "isa", "device_memory"};

const Key* find_own(std::string_view name) {
  for (const Key& k : own_keys())
    if (k.name == name) return &k;
  return nullptr;
}

Status unknown(std::string_view name) {
  std::vector<std::string_view> names(kShared.begin(), kShared.end());
  std::string all;
  for (const Key& k : own_keys()) names.push_back(k.name);
  for (const std::string_view n : names) all += (all.empty() ? "" : ", ") + std::string(n);
  return user_error("unknown key '{}'{}; generate takes {}", shown(name), nearest_hint(name, names), all);
}

Result<std::vector<int32_t>> ids_of(const std::vector<std::string>& items) {
  const Key id = key("eos_ids", Type::integer, 0, kMaxTokens, "", "");
  std::vector<int32_t> ids;
  for (const std::string& item : items) {
    LIGNUM_ASSIGN_OR_RETURN(const Value value, config::parse_value(id, item));
    ids.push_back(static_cast<int32_t>(std::get<int64_t>(value)));
  }
  return ids;
}

}  // namespace

Result<Settings> read_settings(const std::vector<std::string>& words) {
  std::map<std::string_view, Value> values;
  std::vector<std::string> shared;
  std::map<std::string, bool> seen;
  for (const Key& k : own_keys()) {
    LIGNUM_ASSIGN_OR_RETURN(values[k.name], config::parse_value(k, k.default_text));
  }
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return user_error("'{}': settings are key=value", shown(word));
    const std::string name = word.substr(0, equals);
    if (seen[name]) return user_error("{} is given twice", shown(name));
    seen[name] = true;
    if (const Key* own = find_own(name)) {
      LIGNUM_ASSIGN_OR_RETURN(values[own->name],
                              config::parse_value(*own, std::string_view(word).substr(equals + 1)));
    } else if (std::ranges::find(kShared, name) != kShared.end()) {
      shared.push_back(word);
    } else {
      return unknown(name);
    }
  }
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::load({}, shared));
  const auto integer = [&](std::string_view name) { return std::get<int64_t>(values.at(name)); };
  const auto real = [&](std::string_view name) { return std::get<double>(values.at(name)); };
  Settings s;
  s.generate.max_new_tokens = integer("max_new_tokens");
  s.generate.sampling = {real("temperature"), integer("top_k"), real("top_p"),
                         static_cast<uint64_t>(integer("seed"))};
  LIGNUM_RETURN_IF_ERROR(check(s.generate.sampling));
  if (seen["eos_ids"]) {
    LIGNUM_ASSIGN_OR_RETURN(s.eos_ids, ids_of(std::get<std::vector<std::string>>(values.at("eos_ids"))));
  }
  s.prefill_tokens = integer("prefill_tokens");
  s.dtype = config.text("dtype") == "bfloat16" ? DType::bf16 : DType::f32;
  const int64_t threads = config.integer("threads");
  s.threads = static_cast<int>(threads > 0 ? threads : std::max(1U, std::thread::hardware_concurrency()));
  LIGNUM_ASSIGN_OR_RETURN(s.choice, kernels::choose(kernels::isa_from_name(config.text("isa"))));
  s.device_memory = train::memory_budget(config, nullptr, 1);
  return s;
}

std::string settings_help() {
  std::string text;
  const auto line = [&](std::string_view name, std::string_view otherwise, std::string_view help) {
    text += fmt::format("  {:<16} {:<8} {}\n", name, otherwise, help);
  };
  for (const Key& k : own_keys()) line(k.name, k.name == "eos_ids" ? "" : k.default_text, k.help);
  for (const std::string_view name : kShared) {
    const Key* k = config::find_key(name);
    line(name, k->default_text, k->help);
  }
  return text;
}

}  // namespace lignum::generate
