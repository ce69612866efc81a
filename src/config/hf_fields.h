// The fields of a JSON object that describes a model, read one by one: what nobody read is refused by name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/text.h"

namespace lignum::config {

// An object whose fields are read one by one; the first error is kept, and fields that nobody read are found.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string what) : object_(object), what_(std::move(what)) {}

  const Status& status() const { return status_; }
  const std::string& what() const { return what_; }
  const nlohmann::json& object() const { return object_; }
  // A field that is null counts as absent.
  bool has(const char* name) const { return object_.contains(name) && !object_.at(name).is_null(); }
  const nlohmann::json& get(const char* name) {
    read_.insert(name);
    return object_.at(name);
  }

  int64_t integer(const char* name, std::optional<int64_t> fallback) {
    if (!present(name, fallback.has_value())) return fallback.value_or(0);
    const nlohmann::json& value = get(name);
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return refuse(name, "a 64-bit integer"), 0;
    }
    if (!value.is_number_integer()) return refuse(name, "an integer"), 0;
    return value.get<int64_t>();
  }
  double real(const char* name, std::optional<double> fallback) {
    if (!present(name, fallback.has_value())) return fallback.value_or(0);
    const nlohmann::json& value = get(name);
    if (!value.is_number()) return refuse(name, "a number"), 0;
    return value.get<double>();
  }
  std::optional<double> optional_real(const char* name) {
    if (!has(name)) return {};
    return real(name, {});
  }
  std::vector<double> reals(const char* name) {  // a list that must be there
    std::vector<double> values;
    if (!present(name, false)) return values;
    const nlohmann::json& list = get(name);
    if (!list.is_array()) return refuse(name, "a list of numbers"), values;
    for (const nlohmann::json& value : list) {
      if (!value.is_number()) return refuse(name, "a list of numbers"), std::vector<double>();
      values.push_back(value.get<double>());
    }
    return values;
  }
  std::string text(const char* name, const std::optional<std::string>& fallback) {
    if (!present(name, fallback.has_value())) return fallback.value_or("");
    if (!get(name).is_string()) return refuse(name, "a text"), "";
    return get(name).get<std::string>();
  }
  // The objects of a list that must be there.
  std::vector<nlohmann::json> objects(const char* name) {
    if (!present(name, false)) return {};
    const nlohmann::json& list = get(name);
    const auto is_object = [](const nlohmann::json& item) { return item.is_object(); };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_object))
      return refuse(name, "a list of objects"), std::vector<nlohmann::json>();
    return {list.begin(), list.end()};
  }
  bool boolean(const char* name, bool fallback) {
    if (!present(name, true)) return fallback;
    if (!get(name).is_boolean()) return refuse(name, "true or false"), fallback;
    return get(name).get<bool>();
  }
  // A field whose null means none, and whose absence means `fallback`.
  std::optional<int64_t> nullable_integer(const char* name, std::optional<int64_t> fallback) {
    read_.insert(name);
    if (!object_.contains(name)) return fallback;
    if (object_.at(name).is_null()) return {};
    return integer(name, {});
  }
  std::optional<double> nullable_real(const char* name, std::optional<double> fallback) {
    read_.insert(name);
    if (!object_.contains(name)) return fallback;
    return optional_real(name);
  }
  // A field that Lignum takes with one value only.
  void only(const char* name, const nlohmann::json& value) {
    if (present(name, true) && get(name) != value)
      refuse(name, value.dump() + "; nothing else is implemented");
  }
  void refuse(const char* name, const std::string& expected) {
    fail(user_error("{}: {}={} must be {}", what_, name,
                    shown(object_.at(name).dump(-1, ' ', false, kReplace)), expected));
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Every field that is neither read, nor null, nor harmless.
  template <class Harmless>
  void refuse_unread(const Harmless& harmless) {
    for (const auto& [name, value] : object_.items()) {
      if (value.is_null() || read_.contains(name)) continue;
      if (std::find(harmless.begin(), harmless.end(), name) != harmless.end()) continue;
      fail(user_error("{}: {}={} is a feature that is not implemented", what_, shown(name),
                      shown(value.dump(-1, ' ', false, kReplace))));
    }
  }

 private:
  static constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

  bool present(const char* name, bool optional) {
    read_.insert(name);
    if (has(name)) return true;
    if (!optional) fail(user_error("{}: {} is missing", what_, name));
    return false;
  }

  const nlohmann::json& object_;
  std::string what_;
  std::set<std::string, std::less<>> read_;
  Status status_;
};

}  // namespace lignum::config
