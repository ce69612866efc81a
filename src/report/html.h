// Text of HTML and SVG. What comes from outside (names, paths, settings) goes through escaped().
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lignum::report {

// As the content of an element or inside a quoted attribute: & < > " ' become entities, control characters
// but tab and newline '?', bytes that are not UTF-8 the replacement character.
std::string escaped(std::string_view text);

// A table of plain texts: escaped here. The first column is a head; `left`: columns after it that are words.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  size_t left = 0;
};
std::string to_html(const Table& table);

// The page's own style and script, inlined.
std::string_view page_style();
std::string_view page_script();

}  // namespace lignum::report
