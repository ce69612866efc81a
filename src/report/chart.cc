#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/axis.h"
#include "report/html.h"

namespace lignum::report {
namespace {

// The plot area inside a viewBox, y upwards.
struct Area {
  double left = 0, right = 0, top = 0, bottom = 0;
  double x(const Axis& axis, double value) const { return left + axis.share(value) * (right - left); }
  double y(const Axis& axis, double value) const { return bottom - axis.share(value) * (bottom - top); }
};

std::string open_svg(const std::string& id, int width, double height, const std::string& what,
                     const std::string& more = "") {
  return fmt::format("<svg id=\"{}\" viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\"{}>\n",
                     escaped(id), width, height, escaped(what), more);
}

std::string text_at(double x, double y, const char* anchor, const std::string& css, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y,
                     anchor, css, escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* css) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, css);
}

std::string x_axis(const Area& area, const Axis& axis, const std::string& label, bool lines) {
  std::string out;
  for (size_t i = 0; i < axis.ticks.size(); ++i) {
    const double x = area.x(axis, axis.ticks[i]);
    if (lines) out += line_at(x, area.top, x, area.bottom, "tick");
    out += text_at(x, area.bottom + 17, "middle", "x-tick", axis.labels[i]);
  }
  out += line_at(area.left, area.bottom, area.right, area.bottom, "frame");
  return out + text_at((area.left + area.right) / 2, area.bottom + 36, "middle", "x-label", label);
}

// The label stands above the axis, level: it is read without turning the head.
std::string y_axis(const Area& area, const Axis& axis, const std::string& label) {
  std::string out;
  for (size_t i = 0; i < axis.ticks.size(); ++i) {
    const double y = area.y(axis, axis.ticks[i]);
    out += line_at(area.left, y, area.right, y, "tick");
    out += text_at(area.left - 7, y + 4, "end", "y-tick", axis.labels[i]);
  }
  return out + text_at(2, 12, "start", "y-label", label);
}

double label_width(const std::vector<std::string>& labels) {
  size_t longest = 0;
  for (const std::string& label : labels) longest = std::max(longest, label.size());
  return 7.0 * static_cast<double>(longest);
}

std::string polyline(const Series& series, const Area& area, const Axis& xs, const Axis& ys) {
  std::string points, x, y;
  for (const Point& p : series.points) {
    points += fmt::format("{:.2f},{:.2f} ", area.x(xs, p.x), area.y(ys, p.y));
    x += fmt::format("{} ", p.x);
    y += fmt::format("{:.5g} ", p.y);
  }
  for (std::string* text : {&points, &x, &y})
    if (!text->empty()) text->pop_back();
  return fmt::format(
      "<polyline points=\"{}\" data-x=\"{}\" data-y=\"{}\" data-name=\"{}\" style=\"stroke: var(--{})\"/>\n",
      points, x, y, escaped(series.name), series.color);
}

// Along the memory's slope, above its line.
std::string memory_name(const RooflineChart& chart, const Area& area, const Axis& xs, const Axis& ys) {
  if (!chart.memory_rate || chart.roofs.empty()) return "";
  const double from = std::max(xs.low, ys.low / *chart.memory_rate),
               to = std::min(xs.high, chart.roofs.front().flops / *chart.memory_rate);
  if (!(to > from)) return "";
  const double x1 = area.x(xs, from), y1 = area.y(ys, from * *chart.memory_rate), x2 = area.x(xs, to),
               y2 = area.y(ys, to * *chart.memory_rate);
  const double x = x1 + 0.55 * (x2 - x1), y = y1 + 0.55 * (y2 - y1), kTurn = 180 / std::acos(-1.0);
  return fmt::format(
      "<text transform=\"translate({:.1f} {:.1f}) rotate({:.2f})\" y=\"-7\" text-anchor=\"middle\" "
      "class=\"strong roof-name\">memory, {:.3g} GB/s</text>\n",
      x, y, kTurn * std::atan2(y2 - y1, x2 - x1), *chart.memory_rate * 1e-9);
}

}  // namespace

std::string to_svg(const LineChart& chart) {
  double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  for (const Series& s : chart.series) {
    for (const Point& p : s.points) {
      low_x = std::min(low_x, p.x);
      high_x = std::max(high_x, p.x);
      low_y = std::min(low_y, p.y);
      high_y = std::max(high_y, p.y);
    }
  }
  if (!(low_x <= high_x)) return "<p class=\"soft\">No step has been recorded yet.</p>\n";
  if (chart.from_zero) low_y = std::min(low_y, 0.0);
  const Axis ys = linear_axis(low_y, high_y, std::max(3, chart.height / 50));
  Axis xs = linear_axis(low_x, high_x, std::max(4, chart.width / 90));
  // Lines fill the width: the axis ends where the data do.
  if (high_x > low_x) {
    while (xs.ticks.back() > high_x) {
      xs.ticks.pop_back();
      xs.labels.pop_back();
    }
    while (xs.ticks.front() < low_x) {
      xs.ticks.erase(xs.ticks.begin());
      xs.labels.erase(xs.labels.begin());
    }
    xs.low = low_x;
    xs.high = high_x;
  }
  const Area area{label_width(ys.labels) + 12, chart.width - 14.0, 28, chart.height - 44.0};
  std::string out = open_svg(chart.id, chart.width, chart.height, chart.y_label + " over " + chart.x_label,
                             fmt::format(" data-x=\"{}\"", escaped(chart.x_label)));
  out += y_axis(area, ys, chart.y_label) + x_axis(area, xs, chart.x_label, false);
  for (const Series& s : chart.series) {
    out += polyline(s, area, xs, ys);
    if (!s.dots && s.points.size() > 1) continue;
    for (const Point& p : s.points)
      out += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4\" style=\"fill: var(--{})\"/>\n",
                         area.x(xs, p.x), area.y(ys, p.y), s.color);
  }
  out += line_at(area.left, area.top, area.left, area.bottom, "hair");
  return out + fmt::format(
                   "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                   "fill=\"transparent\"/></svg>\n",
                   area.left, area.top, area.right - area.left, area.bottom - area.top);
}

std::string to_svg(const BarChart& chart) {
  constexpr double kRow = 25, kBar = 16;
  double most = 0;
  std::vector<std::string> labels, texts;
  for (const BarChart::Row& row : chart.rows) {
    double sum = 0;
    for (const double v : row.values) sum += v;
    most = std::max({most, sum, row.mark.value_or(0)});
    labels.push_back(row.label);
    texts.push_back(row.text);
  }
  if (chart.rows.empty() || most <= 0) return "<p class=\"soft\">Nothing was measured.</p>\n";
  const Axis xs = linear_axis(0, most, 6);
  const double height = static_cast<double>(chart.rows.size()) * kRow + 58;
  const Area area{label_width(labels) + 8, chart.width - label_width(texts) - 14, 8, height - 44};
  std::string out =
      open_svg(chart.id, chart.width, height, chart.x_label) + x_axis(area, xs, chart.x_label, true);
  for (size_t i = 0; i < chart.rows.size(); ++i) {
    const BarChart::Row& row = chart.rows[i];
    const double top = area.top + static_cast<double>(i) * kRow + (kRow - kBar) / 2,
                 middle = top + kBar / 2 + 4;
    out += text_at(area.left - 8, middle, "end", "strong row", row.label);
    double sum = 0;
    for (size_t p = 0; p < row.values.size(); ++p) {
      if (row.values[p] <= 0) continue;
      const double from = area.x(xs, sum), to = area.x(xs, sum + row.values[p]);
      sum += row.values[p];
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" data-value=\"{:.6g}\" "
          "data-tip=\"{}\" "
          "style=\"fill: var(--{})\"/>\n",
          from, top, to - from, kBar, row.values[p],
          escaped(fmt::format("{}, {}: {} {}", row.label, chart.parts[p].name, number_text(row.values[p]),
                              chart.x_label)),
          chart.parts[p].color);
    }
    double end = area.x(xs, sum);
    if (row.mark) {
      const double x = area.x(xs, *row.mark);
      out += line_at(x, top - 3, x, top + kBar + 3, "mark");
      end = std::max(end, x);
    }
    out += text_at(end + 8, middle, "start", "value", row.text);
  }
  out += "</svg>\n";
  std::vector<LegendEntry> entries;
  if (chart.parts.size() > 1)
    for (const BarChart::Part& part : chart.parts) entries.push_back({part.name, part.color, ""});
  if (!chart.mark_name.empty()) entries.push_back({chart.mark_name, "", "mark"});
  return entries.empty() ? out : legend(entries) + out;
}

std::string to_svg(const RooflineChart& chart) {
  if (chart.marks.empty()) return "<p class=\"soft\">No operation was traced.</p>\n";
  double low_x = INFINITY, high_x = 0, low_y = INFINITY, high_y = 0;
  for (const RooflineChart::Mark& m : chart.marks) {
    low_x = std::min(low_x, m.intensity);
    high_x = std::max(high_x, m.intensity);
    low_y = std::min(low_y, m.rate);
    high_y = std::max(high_y, m.rate);
  }
  for (const RooflineChart::Roof& roof : chart.roofs) {
    high_y = std::max(high_y, roof.flops);
    if (chart.memory_rate) high_x = std::max(high_x, 2 * roof.flops / *chart.memory_rate);  // past the bend
  }
  const Axis xs = log_axis(low_x, high_x), ys = log_axis(low_y, high_y * 1.2);
  const Area area{label_width(ys.labels) + 12, chart.width - 14.0, 28, chart.height - 44.0};
  std::string out = open_svg(chart.id, chart.width, chart.height, "roofline of operations");
  out +=
      y_axis(area, ys, "achieved rate (FLOP/s)") + x_axis(area, xs, "arithmetic intensity (FLOP/byte)", true);
  for (size_t i = 0; i < chart.roofs.size(); ++i) {
    const RooflineChart::Roof& roof = chart.roofs[i];
    std::string points;
    const auto add = [&](double x, double y) {
      points += fmt::format("{:.2f},{:.2f} ", area.x(xs, x), area.y(ys, y));
    };
    double bend = xs.low;
    if (chart.memory_rate) {
      bend = std::min(xs.high, roof.flops / *chart.memory_rate);
      const double from = std::max(xs.low, ys.low / *chart.memory_rate);
      if (from < bend) add(from, from * *chart.memory_rate);
    }
    add(bend, std::min(roof.flops, chart.memory_rate ? bend * *chart.memory_rate : roof.flops));
    add(xs.high, roof.flops);
    points.pop_back();
    out += fmt::format("<polyline class=\"roof\" points=\"{}\" style=\"stroke: var(--c6)\"/>\n", points);
    out += text_at(area.right - 6, area.y(ys, roof.flops) - 6, "end", "strong roof-name", roof.name);
  }
  out += memory_name(chart, area, xs, ys);
  // The largest first: small ones stay visible above them.
  std::vector<const RooflineChart::Mark*> marks;
  for (const RooflineChart::Mark& m : chart.marks) marks.push_back(&m);
  std::stable_sort(marks.begin(), marks.end(),
                   [](const auto* a, const auto* b) { return a->share > b->share; });
  for (const RooflineChart::Mark* m : marks) {
    out += fmt::format(
        "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:.1f}\" data-intensity=\"{:.6g}\" data-rate=\"{:.6g}\" "
        "data-tip=\"{}\" style=\"fill: var(--{}); fill-opacity: 0.6; stroke: var(--card)\"/>\n",
        area.x(xs, m->intensity), area.y(ys, m->rate),
        std::clamp(3 + 30 * std::sqrt(std::max(0.0, m->share)), 3.5, 18.0), m->intensity, m->rate,
        escaped(m->tip), m->color);
  }
  // A label that would lie on a larger mark's is left out.
  std::vector<std::pair<double, double>> named;
  for (const RooflineChart::Mark* m : marks) {
    const double x = area.x(xs, m->intensity), y = area.y(ys, m->rate);
    const bool covered = std::any_of(named.begin(), named.end(), [&](const auto& other) {
      return std::hypot(other.first - x, other.second - y) < 13;
    });
    if (m->label.empty() || covered) continue;
    named.emplace_back(x, y);
    out += text_at(x, y + 4, "middle", "strong mark-name", m->label);
  }
  return out + "</svg>\n";
}

std::string legend(const std::vector<LegendEntry>& entries) {
  std::string out = "<div class=\"legend\">";
  for (const LegendEntry& e : entries) {
    const std::string color =
        e.shape == "mark" ? "" : fmt::format(" style=\"background: var(--{})\"", e.color);
    out += fmt::format("<span><i class=\"{}\"{}></i>{}</span>", e.shape, color, escaped(e.name));
  }
  return out + "</div>\n";
}

}  // namespace lignum::report
