#include "report/html.h"

#include <fmt/core.h>

#include "base/text.h"

namespace lignum::report {
namespace {

// Length of the UTF-8 character at the start of text; 0 where there is none.
size_t character(std::string_view text) {
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length)
    if (is_utf8(text.substr(0, length))) return length;
  return 0;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = character(text);
    const char c = text[0];
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (length > 1) {
      out += text.substr(0, length);
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      out += '?';
    } else {
      out += c;
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string to_html(const Table& table) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  const auto words = [&](size_t column) { return column <= table.left; };
  for (size_t i = 0; i < table.head.size(); ++i)
    out += fmt::format("<th{}>{}</th>", words(i) ? " class=\"word\"" : "", escaped(table.head[i]));
  out += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += i == 0 ? fmt::format("<th class=\"word\">{}</th>", escaped(row[i]))
                    : fmt::format("<td{}>{}</td>", words(i) ? " class=\"word\"" : "", escaped(row[i]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string_view page_style() {
  return R"css(
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #ffffff; --ink: #1c2024; --soft: #5d656f; --grid: #e7e8ea; --edge: #dcdee1;
  --c1: #2a6fb0; --c2: #d8722c; --c3: #3c8d5a; --c4: #8a5cb0; --c5: #bb4a5f; --c6: #7b8794; --c7: #a08423; --c8: #2a9299;
  --c9: #5a6acf; --good: #2f7d4d; --bad: #b4412f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #121519; --card: #1a1e24; --ink: #e7e9ec; --soft: #9ba4af; --grid: #2a3038; --edge: #313843;
    --c1: #6fabe8; --c2: #efa063; --c3: #74c390; --c4: #bb99e0; --c5: #e8838f; --c6: #8e9aa8; --c7: #d3bb5c; --c8: #62c6cb;
    --c9: #98a4f2; --good: #74c390; --bad: #ef8a76;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(134px, 1fr)); gap: 12px; margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; }
.tile { padding: 12px 14px; }
.tile b { display: block; font-size: 21px; font-weight: 600; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tile span { display: block; color: var(--soft); font-size: 13px; }
.grid { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px; }
section { padding: 16px 18px 12px; min-width: 0; }
@media (min-width: 860px) {
  .grid { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .wide { grid-column: 1 / -1; }
}
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "DejaVu Sans", sans-serif; overflow: visible; }
svg text { fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .strong { fill: var(--ink); }
svg .tick { stroke: var(--grid); }
svg .frame { stroke: var(--soft); }
svg polyline, svg .roof { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg .hair { stroke: var(--soft); stroke-dasharray: 3 3; visibility: hidden; }
svg .mark { stroke: var(--ink); stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 4px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.legend i.dot { border-radius: 50%; }
.legend i.mark { width: 3px; border-radius: 0; background: var(--ink); }
details { margin: 8px 0 2px; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 10px; border-bottom: 1px solid var(--grid); white-space: nowrap; font-weight: normal; }
thead th { color: var(--soft); font-weight: 600; border-bottom-color: var(--edge); }
th.word, td.word { text-align: left; padding-left: 0; }
pre { overflow-x: auto; font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
#tip { position: fixed; pointer-events: none; visibility: hidden; background: var(--ink); color: var(--card);
  border-radius: 6px; padding: 4px 9px; font-size: 12.5px; white-space: pre; font-variant-numeric: tabular-nums; }
@media print { body { background: none; } section, .tile { break-inside: avoid; } }
)css";
}

// The nearest point of every line under the pointer, beside it.
std::string_view page_script() {
  return R"js(
const tip = document.getElementById('tip');
const numbers = (line, name) => line.getAttribute(name).split(' ').map(Number);
const show = (event, text) => {
  tip.textContent = text;
  tip.style.visibility = 'visible';
  const width = tip.offsetWidth;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4)) + 'px';
  tip.style.top = event.clientY + 14 + 'px';
};
for (const svg of document.querySelectorAll('svg[data-x]')) {
  const hair = svg.querySelector('.hair');
  const lines = [...svg.querySelectorAll('polyline')].map(
      line => ({line, x: numbers(line, 'data-x'), y: numbers(line, 'data-y'), name: line.getAttribute('data-name')}));
  svg.addEventListener('pointermove', event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const found = lines.map(({line, x, y, name}) => {
      let best = 0;
      for (let i = 1; i < x.length; ++i)
        if (Math.abs(line.points[i].x - at.x) < Math.abs(line.points[best].x - at.x)) best = i;
      return {place: line.points[best].x, step: x[best], text: name + '  ' + y[best]};
    });
    const first = found[0];
    if (!first) return;
    hair.setAttribute('x1', first.place);
    hair.setAttribute('x2', first.place);
    hair.style.visibility = 'visible';
    show(event, svg.dataset.x + ' ' + first.step + '\n' +
        found.map(f => f.text + (f.step === first.step ? '' : ' (' + svg.dataset.x + ' ' + f.step + ')')).join('\n'));
  });
  svg.addEventListener('pointerleave', () => {
    hair.style.visibility = 'hidden';
    tip.style.visibility = 'hidden';
  });
}
for (const mark of document.querySelectorAll('svg [data-tip]')) {
  mark.addEventListener('pointermove', event => show(event, mark.dataset.tip));
  mark.addEventListener('pointerleave', () => { tip.style.visibility = 'hidden'; });
}
)js";
}

}  // namespace lignum::report
