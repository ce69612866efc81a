// One line at the bottom of a terminal that shows how far a run is, drawn again in place.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "train/metrics.h"

namespace lignum::train {

struct BarStyle {
  int columns = 80;     // the line takes fewer
  bool color = true;    // SGR sequences
  bool unicode = true;  // else '#' and '-'
};
// "  45 % ━━━━━━━━──────────  225/500  loss 2.0513  6876 tokens/s  MFU 40.9 %  ETA 1 min 20 s": as many
// fields as fit, the more telling ones first; the bar takes what is left. `m`: the newest of `steps` steps.
std::string bar_text(const StepMetrics& m, int64_t steps, const BarStyle& style);

class ProgressBar {
 public:
  // The descriptor is a terminal that can move its cursor (TERM is set and not "dumb").
  static bool fits(int descriptor);
  // Colors unless NO_COLOR is set and not empty (https://no-color.org); block characters where the locale's
  // variables say UTF-8.
  // clock: nanoseconds from any beginning; null: the steady clock's.
  explicit ProgressBar(std::FILE* terminal, std::function<int64_t()> clock = nullptr);
  ~ProgressBar();  // takes the bar away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // After each step; draws at most ten times a second, and the last step. The terminal's width is asked for
  // each time: it may have changed.
  void step(const StepMetrics& m, int64_t steps);
  void line(const std::string& text);  // a line above the bar, which stays

 private:
  std::string erase(int columns);
  void write(const std::string& text);

  std::FILE* terminal_;
  std::function<int64_t()> clock_;
  BarStyle style_;
  std::string bar_;  // as drawn; empty: none
  int drawn_ = 0;    // columns that it takes
  int64_t drawn_ns_ = 0;
};

}  // namespace lignum::train
