// Charts as inline SVG. Colors are names of the page's style ("c1".."c9"), so that they follow light and
// dark. Every text that is handed in is escaped here.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lignum::report {

struct Point {
  double x = 0, y = 0;
};

struct Series {
  std::string name, color;
  std::vector<Point> points;  // ascending x
  bool dots = false;          // a circle a point as well
};

// Lines over steps. The points stand in the page: as polyline points in viewBox units, and as numbers in
// data-x and data-y, which the page's script shows under the pointer.
struct LineChart {
  std::string id, x_label, y_label;
  std::vector<Series> series;
  bool from_zero = false;         // the y axis begins at 0
  int width = 500, height = 240;  // of the viewBox: about the pixels that it gets
};
std::string to_svg(const LineChart& chart);

// Horizontal bars, one below another, each a stack of parts; a mark may stand beside it (what was predicted).
struct BarChart {
  struct Part {
    std::string name, color;
  };
  struct Row {
    std::string label;
    std::vector<double> values;  // one a part
    std::optional<double> mark;
    std::string text;  // at the end of the bar
  };
  std::string id, x_label, mark_name;
  std::vector<Part> parts;
  std::vector<Row> rows;
  int width = 1060;
};
std::string to_svg(const BarChart& chart);

// Both axes logarithmic: x FLOP/byte, y FLOP/s. A roof is min(flops, intensity * bytes) per second.
struct RooflineChart {
  struct Roof {
    std::string name;
    double flops = 0;
  };
  struct Mark {
    double intensity = 0, rate = 0;  // both > 0
    double share = 0;                // of the step: its size
    std::string color, tip;
    std::string label;  // beside it; may be empty
  };
  std::string id;
  std::vector<Roof> roofs;
  std::optional<double> memory_rate;  // byte/s
  std::vector<Mark> marks;
  int width = 1060, height = 430;
};
std::string to_svg(const RooflineChart& chart);

struct LegendEntry {
  std::string name, color, shape;  // shape: "", "dot" or "mark"
};
std::string legend(const std::vector<LegendEntry>& entries);

}  // namespace lignum::report
