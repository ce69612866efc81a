#include "base/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/text.h"

namespace lignum {
namespace {

using Json = nlohmann::json;

// What the parse callback throws to leave the parser at once: it never leaves this file.
struct Refused {
  std::string reason;
};

// The library's message without the name and number of its exception.
std::string_view reason(std::string_view what) {
  const size_t end = what.starts_with("[json.exception") ? what.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? what : what.substr(end + 2);
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& what, int max_depth) {
  std::vector<std::set<std::string>> open_keys;  // of the objects around the current place; empty for arrays
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (static_cast<int>(open_keys.size()) >= max_depth) {
          throw Refused{fmt::format("nested deeper than {} levels", max_depth)};
        }
        open_keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_keys.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (!open_keys.back().insert(key).second) {
          throw Refused{fmt::format("key '{}' appears twice in one object", shown(key))};
        }
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Refused& refused) {
    return user_error("{}: {}", what, refused.reason);
  } catch (const Json::exception& error) {
    return user_error("{}: not JSON: {}", what, shown(reason(error.what())));
  }
}

Result<Json> read_json(const std::string& path, int max_depth) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string text, read_text(path));
  return parse_json(text, path, max_depth);
}

}  // namespace lignum
