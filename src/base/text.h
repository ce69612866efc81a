// Text in messages: names that came from outside, and the nearest names of an unknown one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lignum {

// What a line can hold of a text from a file or the command line: control characters as '?', at most 200
// bytes.
std::string shown(std::string_view text);

// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// Insertions, deletions, replacements and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);

// Those of `names` that a typing error could have turned into `name`, nearest first (ties in the given
// order): distance at most a third of the longer name, or one contains the other. Names over 256 bytes have
// none.
std::vector<std::string_view> nearest_names(std::string_view name, const std::vector<std::string_view>& names,
                                            size_t limit = 3);

// "; nearest: 'a', 'b'", or nothing where there is none.
std::string nearest_hint(std::string_view name, const std::vector<std::string_view>& names);

// How long: "45 s", "3 min 12 s", "2 h 05 min", "3 d 04 h"; two units at most.
std::string duration_text(double seconds);

}  // namespace lignum
