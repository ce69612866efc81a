// The room's own view of the table of keys: how texts become values.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "config/config.h"

namespace lignum::config {

// The text of specs/maxtext_keys.csv: a comment line, a heading, then `key,default` with CSV quoting.
extern const std::string_view kMaxTextKeysCsv;

// A text as a value of that key, in type and range; the error begins with "key=text".
Result<Value> parse_value(const Key& key, std::string_view text);
std::string value_to_text(const Value& value);
// "one of a, b", "an integer in 1..8, or -1", ...
std::string allowed_text(const Key& key);
std::string_view type_name(Type type);

// The error of a key that is not in the table, with the nearest names.
Status unknown_key(std::string_view name);

}  // namespace lignum::config
