#include "train/progress_bar.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace lignum::train {
namespace {

StepMetrics step(int64_t number) {
  StepMetrics m;
  m.step = number;
  m.loss = 2.0513;
  m.grad_norm = 0.659;
  m.learning_rate = 1.32e-3;
  m.tokens_per_s = 6876.4;
  m.tflops = 0.0432;
  m.mfu = 0.409;
  m.memory_bytes = 142 << 20;
  m.eta_seconds = 80;
  return m;
}

TEST(ProgressBar, TextFitsEveryWidthAndDropsTheLeastTellingFieldFirst) {
  BarStyle plain{0, false, false};
  size_t before = 0;
  for (plain.columns = 1; plain.columns <= 220; ++plain.columns) {
    const std::string text = bar_text(step(224), 500, plain);
    EXPECT_LT(text.size(), static_cast<size_t>(plain.columns)) << text;
    if (plain.columns < 15) continue;
    EXPECT_EQ(text.substr(0, 5), " 45 %") << text;
    // What a wider terminal shows, a narrower one showed or not, but no wider one loses a field.
    size_t fields = 0;
    for (size_t at = text.find("  "); at != std::string::npos; at = text.find("  ", at + 1)) ++fields;
    EXPECT_GE(fields, before) << text;
    before = fields;
  }
  EXPECT_EQ(bar_text(step(224), 500, {35, false, false}), " 45 % ######---------  loss 2.0513");
  plain.columns = 200;
  EXPECT_EQ(
      bar_text(step(224), 500, plain),
      " 45 % " + std::string(18, '#') + std::string(22, '-') +
          "  225/500  loss 2.0513  grad_norm 0.659  lr 1.32e-03  6876 tokens/s  0.0432 TFLOP/s  MFU 40.9 %  "
          "142 MiB  ETA 1 min 20 s");
}

// A terminal of our own: what the bar writes to it, and its size.
class Terminal {
 public:
  explicit Terminal(int columns) : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(master_, 0);
    EXPECT_EQ(::grantpt(master_), 0);
    EXPECT_EQ(::unlockpt(master_), 0);
    file_ = std::fopen(::ptsname(master_), "we");
    EXPECT_NE(file_, nullptr);
    resize(columns);
  }
  ~Terminal() {
    std::fclose(file_);
    ::close(master_);
  }
  std::FILE* file() const { return file_; }
  void resize(int columns) const {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 24;
    EXPECT_EQ(::ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  std::string written() const {
    std::string text;
    char buffer[4096];
    pollfd ready{master_, POLLIN, 0};
    while (::poll(&ready, 1, 50) == 1 && (ready.revents & POLLIN) != 0) {
      const ssize_t n = ::read(master_, buffer, sizeof(buffer));
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }

 private:
  int master_;
  std::FILE* file_ = nullptr;
};

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* old = std::getenv(name);
    if (old != nullptr) old_ = old;
    had_ = old != nullptr;
    ::setenv(name, value, 1);
  }
  ~Environment() {
    if (had_) {
      ::setenv(name_, old_.c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

TEST(ProgressBar, DrawsInPlaceAndFollowsTheTerminalsWidth) {
  const Environment locale("LC_ALL", "C"), color("NO_COLOR", "1");
  const Terminal terminal(120);
  {
    int64_t now = 7;
    ProgressBar bar(terminal.file(), [&] { return now; });
    bar.step(step(0), 3);
    const std::string first = terminal.written();
    EXPECT_EQ(first, bar_text(step(0), 3, {120, false, false}));  // NO_COLOR: no sequence in it
    bar.step(step(1), 3);
    EXPECT_EQ(terminal.written(), "");
    now += 99'999'999;  // not yet a tenth of a second
    bar.step(step(1), 3);
    EXPECT_EQ(terminal.written(), "");
    bar.line("saved");
    EXPECT_EQ(terminal.written(), "\r\x1b[Jsaved\r\n" + first);
    // The terminal has wrapped what is now too long: it is taken away on all its rows.
    terminal.resize(40);
    bar.step(step(2), 3);  // the last step is always drawn
    const auto rows = (first.size() + 39) / 40;
    ASSERT_GT(rows, 1U);
    EXPECT_EQ(terminal.written(),
              fmt::format("\x1b[{}A\r\x1b[J", rows - 1) + bar_text(step(2), 3, {40, false, false}));
  }
  EXPECT_EQ(terminal.written(), "\r\x1b[J");  // gone
}

TEST(ProgressBar, ColorsAndBlocksWhereTheyAreTaken) {
  const Environment locale("LC_ALL", "en_US.UTF-8"), color("NO_COLOR", "");
  const Terminal terminal(80);
  ProgressBar bar(terminal.file());
  bar.step(step(1), 3);
  const std::string text = terminal.written();
  EXPECT_NE(text.find("\x1b[32m━"), std::string::npos) << text;
}

TEST(ProgressBar, FitsATerminalThatMovesItsCursor) {
  const Terminal terminal(80);
  const int descriptor = ::fileno(terminal.file());
  {
    const Environment term("TERM", "xterm");
    EXPECT_TRUE(ProgressBar::fits(descriptor));
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    EXPECT_FALSE(ProgressBar::fits(pipe[1]));
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  const Environment dumb("TERM", "dumb");
  EXPECT_FALSE(ProgressBar::fits(descriptor));
}

}  // namespace
}  // namespace lignum::train
