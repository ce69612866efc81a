#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "config/keys.h"
#include "config/yaml.h"

namespace lignum::config {
namespace {

// 10_000 as Python writes it: underscores between digits are dropped, any other stays and fails later.
std::string without_separators(std::string_view text) {
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    out += text[i];
  }
  return out;
}

// The whole text as a number, or nothing.
template <class T>
std::optional<T> whole_number(std::string_view text) {
  const std::string clean = without_separators(text);
  const char* begin = clean.data();
  const char* end = begin + clean.size();
  if (clean.size() > 1 && *begin == '+' && begin[1] != '-') ++begin;
  T value{};
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end) return {};
  return value;
}

// 8GiB, 1.5 MiB, 4096: whole bytes.
std::optional<int64_t> byte_number(std::string_view text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  for (const auto& [unit, scale] : kUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    const std::optional<double> number = whole_number<double>(text);
    if (!number || !(std::fabs(*number) <= 0x1p53)) return {};
    const double bytes = *number * scale;
    if (bytes != std::floor(bytes) || bytes > 0x1p62) return {};
    return static_cast<int64_t>(bytes);
  }
  return whole_number<int64_t>(text);
}

std::string number_text(double value) {
  return value == std::floor(value) && std::fabs(value) < 1e15
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{}", value);
}

template <class T>
bool in_range(const Key& key, T value) {
  const auto x = static_cast<double>(value);
  return (x >= key.min && x <= key.max) || (key.minus_one && x == -1);
}

Result<Value> parse_list(const Key& key, std::string_view text) {
  std::vector<std::string> items;
  if (text.starts_with('[')) {
    LIGNUM_ASSIGN_OR_RETURN(const YamlValue value, read_yaml_value(text));
    if (!value.is_flat_list) return user_error("a list holds texts only");
    items = value.items;
  } else {
    while (!text.empty()) {
      const size_t end = std::min(text.find(','), text.size());
      items.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  for (const std::string& item : items) {
    if (item.empty()) return user_error("an item of {} is empty", key.name);
  }
  return Value(std::move(items));
}

Result<Value> parse_unnamed(const Key& key, std::string_view text) {
  const auto refuse = [&] {
    return user_error("expected {}{}{}", allowed_text(key), key.because.empty() ? "" : ": ", key.because);
  };
  switch (key.type) {
    case Type::boolean:
      if (text == "true" || text == "True") return Value(true);
      if (text == "false" || text == "False") return Value(false);
      return refuse();
    case Type::integer:
    case Type::bytes: {
      const auto value = key.type == Type::bytes ? byte_number(text) : whole_number<int64_t>(text);
      if (!value || !in_range(key, *value)) return refuse();
      return Value(*value);
    }
    case Type::real: {
      const auto value = whole_number<double>(text);
      if (!value || !std::isfinite(*value) || !in_range(key, *value)) return refuse();
      return Value(*value);
    }
    case Type::text:
      if (!key.allowed.empty() &&
          std::find(key.allowed.begin(), key.allowed.end(), text) == key.allowed.end()) {
        return refuse();
      }
      return Value(std::string(text));
    case Type::list:
      return parse_list(key, text);
  }
  LIGNUM_CHECK(false, "type {}", static_cast<int>(key.type));
  return refuse();
}

}  // namespace

std::string_view type_name(Type type) {
  switch (type) {
    case Type::boolean:
      return "boolean";
    case Type::integer:
      return "integer";
    case Type::real:
      return "real";
    case Type::text:
      return "text";
    case Type::list:
      return "list";
    case Type::bytes:
      return "bytes";
  }
  return "";
}

std::string allowed_text(const Key& key) {
  const auto range = [&](std::string_view what) {
    if (key.min == key.max && !key.minus_one) return number_text(key.min);
    return fmt::format("{} in {}..{}{}", what, number_text(key.min), number_text(key.max),
                       key.minus_one ? ", or -1" : "");
  };
  switch (key.type) {
    case Type::boolean:
      return "true or false";
    case Type::integer:
      return range("an integer");
    case Type::real:
      return range("a number");
    case Type::bytes:
      return range("whole bytes, with KiB, MiB, GiB or TiB if wanted,");
    case Type::list:
      return "a list: [a, b], or a,b";
    case Type::text: {
      if (key.allowed.empty()) return "a text";
      std::string words = key.allowed.size() == 1 ? "" : "one of ";
      for (size_t i = 0; i < key.allowed.size(); ++i)
        words += fmt::format("{}{}", i == 0 ? "" : ", ", key.allowed[i].empty() ? "''" : key.allowed[i]);
      return words;
    }
  }
  return "";
}

Result<Value> parse_value(const Key& key, std::string_view text) {
  if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
    return user_error("{}={}: not UTF-8 text", key.name, shown(text));
  }
  auto value = parse_unnamed(key, text);
  if (!value.ok()) return value.status().with_context(fmt::format("{}={}", key.name, shown(text)));
  return value;
}

std::string value_to_text(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&value)) return fmt::format("{}", *i);
  if (const auto* r = std::get_if<double>(&value)) return fmt::format("{}", *r);
  if (const auto* s = std::get_if<std::string>(&value)) return *s;
  // JSON's strings and lists are YAML's.
  return nlohmann::json(std::get<std::vector<std::string>>(value)).dump();
}

}  // namespace lignum::config
