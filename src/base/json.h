// JSON from outside, read with suspicion: a duplicate key, nesting beyond max_depth, bytes that are not UTF-8
// and text after the value are errors with a byte position. (The library alone keeps the last of two equal
// keys.)
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lignum {

// `what` stands at the head of the error: a path, mostly.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& what, int max_depth = 64);
Result<nlohmann::json> read_json(const std::string& path, int max_depth = 64);

}  // namespace lignum
