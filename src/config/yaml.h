// The part of YAML that a configuration needs: one flat map of scalars and lists, with line numbers. Anchors,
// aliases, tags, duplicate keys and nested maps are refused, so no input grows beyond its own size.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lignum::config {

struct YamlValue {
  bool is_scalar = false;
  bool is_flat_list = false;       // of scalars
  std::string text;                // of a scalar; null is ""
  std::vector<std::string> items;  // of a flat list
  // Equal for equal values however they are written: 1e-5 and 1.e-05, True and true, 'a' and "a", null and
  // "".
  std::string canonical;
};

struct YamlEntry {
  std::string key;
  int line = 0;  // from 1
  YamlValue value;
};

// `name` stands at the head of errors: name:line: ...
Result<std::vector<YamlEntry>> read_flat_yaml(std::string_view text, const std::string& name);
// One value, as it may stand behind `key: `.
Result<YamlValue> read_yaml_value(std::string_view text);

}  // namespace lignum::config
