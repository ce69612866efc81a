#include "config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "base/text.h"

namespace lignum::config {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxDepth = 8;

// What a handler throws to leave the parser: it never leaves this file.
struct Refused {
  int line;
  std::string reason;
};

std::string canonical_scalar(const std::string& text, bool plain) {
  if (!plain) return text;
  if (text == "~" || text == "null" || text == "Null" || text == "NULL" || text == "None") return "";
  if (text == "True" || text == "TRUE") return "true";
  if (text == "False" || text == "FALSE") return "false";
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  double number = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc() && stop == digits.data() + digits.size() && std::isfinite(number);
  return whole ? fmt::format("{}", number) : text;
}

// Collects one document: values by events, a stack of the containers around the current place.
class Collector final : public YAML::EventHandler {
 public:
  std::vector<YamlValue> roots;
  std::vector<YamlEntry> entries;  // of the root where that is a map
  bool root_is_map = false;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string&) override { refuse(mark, "an anchor"); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "an alias"); }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add_scalar(mark, "", anchor, "", true);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // The parser gives "?" to a plain scalar and "!" to a quoted one.
    if (tag != "?" && tag != "!" && !tag.empty()) refuse(mark, "a tag");
    add_scalar(mark, value, anchor, value, tag != "!");
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, /*is_map=*/false);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, /*is_map=*/true);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Container {
    bool is_map;
    bool has_key = false;  // of a map: the key was read, its value comes
    int line;
    std::string key;
    YamlValue value;
  };

  [[noreturn]] static void refuse(const YAML::Mark& mark, std::string_view what) {
    throw Refused{mark.line + 1, fmt::format("{} is not taken here; write the value out", what)};
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, bool is_map) {
    if (anchor != YAML::NullAnchor) refuse(mark, "an anchor");
    if (tag != "?" && tag != "!" && !tag.empty()) refuse(mark, "a tag");
    if (static_cast<int>(stack_.size()) >= kMaxDepth) {
      throw Refused{mark.line + 1, fmt::format("nested deeper than {} levels", kMaxDepth)};
    }
    if (!stack_.empty() && stack_.back().is_map && !stack_.back().has_key)
      refuse(mark, "a key that is not a word");
    Container container{is_map, false, mark.line + 1, {}, {}};
    container.value.is_flat_list = !is_map;
    stack_.push_back(std::move(container));
    if (stack_.size() == 1) root_is_map = is_map;
  }

  void close() {
    Container done = std::move(stack_.back());
    stack_.pop_back();
    done.value.canonical = (done.is_map ? "{" : "[") + done.value.canonical + (done.is_map ? "}" : "]");
    add(std::move(done.value));
  }

  void add_scalar(const YAML::Mark& mark, std::string text, YAML::anchor_t anchor, const std::string& raw,
                  bool plain) {
    if (anchor != YAML::NullAnchor) refuse(mark, "an anchor");
    if (!stack_.empty() && stack_.back().is_map && !stack_.back().has_key) {
      if (text.empty()) refuse(mark, "an empty key");
      stack_.back().key = std::move(text);
      stack_.back().has_key = true;
      stack_.back().line = mark.line + 1;
      return;
    }
    YamlValue value;
    value.is_scalar = true;
    value.canonical = canonical_scalar(raw, plain);
    // A plain null word is no text: `run_name: null` means no name.
    if (plain && value.canonical.empty()) text.clear();
    value.text = std::move(text);
    add(std::move(value));
  }

  void add(YamlValue value) {
    if (stack_.empty()) {
      roots.push_back(std::move(value));
      return;
    }
    Container& around = stack_.back();
    std::string& canonical = around.value.canonical;
    if (!canonical.empty()) canonical += ", ";
    if (!around.is_map) {
      around.value.is_flat_list = around.value.is_flat_list && value.is_scalar;
      canonical += value.canonical.empty() ? "''" : value.canonical;
      if (value.is_scalar) around.value.items.push_back(std::move(value.text));
      return;
    }
    around.has_key = false;
    canonical += around.key + ": " + value.canonical;
    if (stack_.size() > 1) return;
    const auto [first, is_new] = lines_.emplace(around.key, around.line);
    if (!is_new) {
      throw Refused{around.line,
                    fmt::format("key '{}' stands on line {} too", shown(around.key), first->second)};
    }
    entries.push_back({around.key, around.line, std::move(value)});
  }

  std::vector<Container> stack_;
  std::map<std::string, int> lines_;
};

Result<Collector> collect(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFileBytes)
    return user_error("{}: {} bytes, at most {} are taken", name, text.size(), kMaxFileBytes);
  if (!is_utf8(text) || text.find('\0') != text.npos) return user_error("{}: not UTF-8 text", name);
  Collector collector;
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    parser.HandleNextDocument(collector);
    Collector rest;
    if (parser.HandleNextDocument(rest)) return user_error("{}: holds more than one document", name);
  } catch (const Refused& refused) {
    return user_error("{}:{}: {}", name, refused.line, refused.reason);
  } catch (const YAML::Exception& error) {
    return user_error("{}:{}: not YAML: {}", name, error.mark.line + 1, shown(error.msg));
  }
  return collector;
}

}  // namespace

Result<std::vector<YamlEntry>> read_flat_yaml(std::string_view text, const std::string& name) {
  LIGNUM_ASSIGN_OR_RETURN(Collector collector, collect(text, name));
  const bool empty =
      collector.roots.empty() || (collector.roots[0].is_scalar && collector.roots[0].text.empty());
  if (!empty && !collector.root_is_map) return user_error("{}: expected lines of `key: value`", name);
  return std::move(collector.entries);
}

Result<YamlValue> read_yaml_value(std::string_view text) {
  LIGNUM_ASSIGN_OR_RETURN(Collector collector, collect(text, "value"));
  if (collector.roots.empty()) {
    YamlValue nothing;
    nothing.is_scalar = true;
    return nothing;
  }
  return std::move(collector.roots[0]);
}

}  // namespace lignum::config
