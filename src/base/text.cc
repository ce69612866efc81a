#include "base/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

namespace lignum {

std::string shown(std::string_view text) {
  constexpr size_t kShown = 200;
  size_t cut = std::min(text.size(), kShown);
  // Not inside a character.
  while (cut < text.size() && cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  std::string line(text.substr(0, cut));
  const bool readable = is_utf8(line);
  for (char& c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (byte > 0x7f && !readable)) c = '?';
  }
  return cut == text.size() ? line : line + "...";
}

bool is_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i <= static_cast<size_t>(more)) return false;
    uint32_t code = lead & (0x3fu >> more);
    for (int k = 1; k <= more; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if ((byte & 0xc0) != 0x80) return false;
      code = code << 6 | (byte & 0x3fu);
    }
    const uint32_t least = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    i += static_cast<size_t>(more) + 1;
  }
  return true;
}

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are alive at once: a swap looks two rows back.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::vector<std::string_view> nearest_names(std::string_view name, const std::vector<std::string_view>& names,
                                            size_t limit) {
  constexpr size_t kLongest = 256;
  std::vector<std::tuple<int, size_t, std::string_view>> found;  // distance, place in names
  if (name.empty() || name.size() > kLongest) return {};
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string_view other = names[i];
    if (other.size() > kLongest) continue;
    const size_t longer = std::max(name.size(), other.size()), shorter = std::min(name.size(), other.size());
    const bool contains = shorter >= 4 && (other.find(name) != std::string_view::npos ||
                                           name.find(other) != std::string_view::npos);
    // The difference in length bounds the distance from below: most names need no table.
    if (!contains && longer - shorter > longer / 3) continue;
    const int distance = edit_distance(name, other);
    if (contains || distance <= static_cast<int>(longer / 3)) found.emplace_back(distance, i, other);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string_view> nearest;
  for (size_t i = 0; i < std::min(limit, found.size()); ++i) nearest.push_back(std::get<2>(found[i]));
  return nearest;
}

std::string nearest_hint(std::string_view name, const std::vector<std::string_view>& names) {
  std::string hint;
  for (const std::string_view near : nearest_names(name, names)) {
    hint += fmt::format("{}'{}'", hint.empty() ? "; nearest: " : ", ", near);
  }
  return hint;
}

std::string duration_text(double seconds) {
  constexpr double kMost = 1e13;
  if (!(seconds >= 0 && seconds < kMost)) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t minutes = whole / 60, hours = minutes / 60;
  if (minutes == 0) return fmt::format("{} s", whole);
  if (hours == 0) return fmt::format("{} min {:02} s", minutes, whole % 60);
  if (hours < 24) return fmt::format("{} h {:02} min", hours, minutes % 60);
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

}  // namespace lignum
