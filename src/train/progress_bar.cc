#include "train/progress_bar.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "plan/report.h"

namespace lignum::train {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = variable(name);
    if (value.empty()) continue;  // the next one counts
    return value.find("UTF-8") != std::string_view::npos || value.find("utf8") != std::string_view::npos;
  }
  return false;
}

int columns_of(std::FILE* terminal) {
  winsize size{};
  return ::ioctl(::fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string bar_text(const StepMetrics& m, int64_t steps, const BarStyle& style) {
  constexpr int kWidestBar = 40, kNarrowestBar = 8;
  const int64_t done = std::min(m.step + 1, steps);
  const double share = steps > 0 ? static_cast<double>(done) / static_cast<double>(steps) : 1;
  struct Field {
    int rank;  // the lower, the sooner it is shown
    std::string text;
  };
  std::vector<Field> fields = {{1, fmt::format("{}/{}", done, steps)},
                               {0, fmt::format("loss {:.4f}", m.loss)}};
  fields.push_back({5, fmt::format("grad_norm {:.3f}", m.grad_norm)});
  fields.push_back({6, fmt::format("lr {:.2e}", m.learning_rate)});
  fields.push_back({3, fmt::format("{:.0f} tokens/s", m.tokens_per_s)});
  fields.push_back({7, fmt::format("{:.3g} TFLOP/s", m.tflops)});
  if (m.mfu) fields.push_back({4, fmt::format("MFU {:.1f} %", 100 * *m.mfu)});
  if (m.memory_bytes > 0) fields.push_back({8, plan::bytes_text(static_cast<double>(m.memory_bytes))});
  if (m.eta_seconds) fields.push_back({2, "ETA " + duration_text(*m.eta_seconds)});

  const std::string percent = fmt::format("{:>3.0f} %", 100 * share);
  const int room = style.columns - 1;  // a full line would wrap
  int used = static_cast<int>(percent.size());
  const int bar_room = room - used - 1;
  if (bar_room < kNarrowestBar) return percent.substr(0, static_cast<size_t>(std::max(0, room)));
  used += 1 + kNarrowestBar;
  int shown = -1;  // the fields of this rank and below fit
  for (int rank = 0; rank <= 8; ++rank) {
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.rank == rank; });
    const int width = field == fields.end() ? 0 : 2 + static_cast<int>(field->text.size());
    if (used + width > room) break;
    used += width;
    shown = rank;
  }
  const int bar = std::min(kWidestBar, kNarrowestBar + room - used);
  const int filled = static_cast<int>(share * bar);
  std::string text = percent + ' ';
  if (style.color) text += "\x1b[32m";
  for (int i = 0; i < filled; ++i) text += style.unicode ? "━" : "#";
  if (style.color) text += "\x1b[0m\x1b[2m";
  for (int i = filled; i < bar; ++i) text += style.unicode ? "─" : "-";
  if (style.color) text += "\x1b[0m";
  for (const Field& f : fields)
    if (f.rank <= shown) text += "  " + f.text;
  return text;
}

bool ProgressBar::fits(int descriptor) {
  const std::string_view terminal = variable("TERM");
  return ::isatty(descriptor) == 1 && !terminal.empty() && terminal != "dumb";
}

ProgressBar::ProgressBar(std::FILE* terminal, std::function<int64_t()> clock)
    : terminal_(terminal), clock_(clock ? std::move(clock) : now_ns) {
  style_.color = variable("NO_COLOR").empty();
  style_.unicode = utf8_locale();
}

ProgressBar::~ProgressBar() { write(erase(columns_of(terminal_))); }

// The bar may stand on several rows by now: a terminal that was made narrower has wrapped it.
std::string ProgressBar::erase(int columns) {
  if (bar_.empty()) return "";
  const int rows = std::max(1, (drawn_ + columns - 1) / columns);
  return (rows > 1 ? fmt::format("\x1b[{}A", rows - 1) : "") + "\r\x1b[J";
}

void ProgressBar::step(const StepMetrics& m, int64_t steps) {
  constexpr int64_t kPeriod = 100'000'000;
  const int64_t now = clock_();
  if (!bar_.empty() && now - drawn_ns_ < kPeriod && m.step + 1 < steps) return;
  drawn_ns_ = now;
  style_.columns = columns_of(terminal_);
  const std::string gone = erase(style_.columns);
  bar_ = bar_text(m, steps, style_);
  BarStyle plain = style_;
  plain.color = plain.unicode = false;
  drawn_ = static_cast<int>(bar_text(m, steps, plain).size());
  write(gone + bar_);
}

void ProgressBar::line(const std::string& text) { write(erase(columns_of(terminal_)) + text + "\n" + bar_); }

void ProgressBar::write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), terminal_);
  std::fflush(terminal_);
}

}  // namespace lignum::train
