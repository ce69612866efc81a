// The report of a run in a browser: what is drawn, and where, against the run's own files.
#include <cmath>
#include <map>
#include <numeric>

#include "process.h"
#include "runs.h"

namespace lignum::testing {
namespace {

// The browser's output, or nothing where there is none on this machine.
std::optional<std::string> dump_dom(const TestFolder& folder, const std::string& page) {
  // A profile and a home of its own; --no-sandbox because tests may run as root.
  std::vector<std::string> words = {"HOME=" + folder.path(),
                                    "timeout",
                                    "120",
                                    "chromium",
                                    "--headless",
                                    "--no-sandbox",
                                    "--disable-gpu",
                                    "--disable-dev-shm-usage",
                                    "--user-data-dir=" + (folder / "profile"),
                                    "--window-size=1200,900",
                                    "--virtual-time-budget=2000",
                                    "--timeout=20000",
                                    "--dump-dom",
                                    "file://" + page};
  const Ended browser = Process(folder, std::move(words), "/usr/bin/env").wait();
  constexpr int kNotFound = 127;
  if (browser.code == kNotFound) return {};
  EXPECT_EQ(browser.code, 0) << browser.err;
  return browser.out;
}

// Goes first in the page: keeps every error, warning and refused access.
constexpr std::string_view kWatch = R"(<script>
window.errors = [];
addEventListener('error', e => errors.push('error: ' + e.message));
addEventListener('securitypolicyviolation', e => errors.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI));
for (const kind of ['error', 'warn']) console[kind] = (...words) => errors.push(kind + ': ' + words.join(' '));
</script>)";

// Goes last: what the browser has laid out, in pixels of the page.
constexpr std::string_view kProbe = R"(<script>
{
  const box = e => { const r = e.getBoundingClientRect(); return [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY]; };
  const on_page = (e, x, y) => { const p = new DOMPoint(x, y).matrixTransform(e.getScreenCTM()); return [p.x + scrollX, p.y + scrollY]; };
  const style = (e, name) => getComputedStyle(e)[name];
  const charts = {};
  for (const svg of document.querySelectorAll('svg')) {
    charts[svg.id] = {
      box: box(svg),
      lines: [...svg.querySelectorAll('polyline')].map(l => ({name: l.dataset.name || '', stroke: style(l, 'stroke'),
        points: [...l.points].map(p => on_page(l, p.x, p.y))})),
      circles: [...svg.querySelectorAll('circle')].map(c => on_page(c, c.cx.baseVal.value, c.cy.baseVal.value)),
      rects: [...svg.querySelectorAll('rect[data-value]')].map(r => ({value: Number(r.dataset.value), box: box(r)})),
      texts: [...svg.querySelectorAll('text')].map(t => ({kind: t.getAttribute('class'), text: t.textContent, box: box(t), fill: style(t, 'fill')})),
      tables: svg.closest('section').querySelectorAll('table').length,
    };
  }
  const loss = document.getElementById('loss');
  const line = loss.querySelector('polyline');
  const middle = line.points[Math.floor(line.points.length / 2)];
  const [x, y] = on_page(line, middle.x, middle.y);
  loss.dispatchEvent(new PointerEvent('pointermove', {clientX: x - scrollX, clientY: y - scrollY}));
  const tip = document.getElementById('tip');
  const result = {errors, charts, tip: style(tip, 'visibility') + ' ' + tip.textContent, title: document.title,
    heading: document.querySelector('h1').textContent, images: document.images.length,
    resources: performance.getEntriesByType('resource').length, overflow: document.documentElement.scrollWidth - innerWidth};
  const pre = document.createElement('pre');
  pre.id = 'probe';
  pre.textContent = encodeURIComponent(JSON.stringify(result));
  document.body.append(pre);
}
</script>)";

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
    i += 2;
  }
  return out;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// "1.5", "1.0e-03", "2 k", "100 m"
double number_of(const std::string& label) {
  size_t used = 0;
  const double value = std::stod(label, &used);
  const std::map<std::string, double> prefixes = {{"", 1},      {" n", 1e-9}, {" u", 1e-6},
                                                  {" m", 1e-3}, {" k", 1e3},  {" M", 1e6},
                                                  {" G", 1e9},  {" T", 1e12}, {" P", 1e15}};
  return value * prefixes.at(label.substr(used));
}

// From an axis' own labels to pixels: what a reader of the chart would read.
class Scale {
 public:
  Scale(const nlohmann::json& chart, const char* kind, bool log) : log_(log) {
    const size_t at = std::string_view(kind) == "x-tick" ? 0 : 1;
    for (const auto& text : chart["texts"]) {
      if (text["kind"] != kind) continue;
      labels_.push_back(text["text"]);
      const double from = text["box"][at], to = text["box"][at + 2];
      ticks_.emplace_back(position(number_of(labels_.back())), (from + to) / 2);
    }
  }
  size_t ticks() const { return ticks_.size(); }
  double pixel(double value) const {
    const auto& [a, pa] = ticks_.front();
    const auto& [b, pb] = ticks_.back();
    return pa + (position(value) - a) / (b - a) * (pb - pa);
  }

 private:
  double position(double value) const { return log_ ? std::log(value) : value; }
  bool log_;
  std::vector<std::string> labels_;
  std::vector<std::pair<double, double>> ticks_;
};

const nlohmann::json& line_of(const nlohmann::json& chart, const std::string& name) {
  for (const auto& line : chart["lines"])
    if (line["name"] == name) return line;
  ADD_FAILURE() << "no line " << name;
  static const nlohmann::json kNone = {{"points", nlohmann::json::array()}};
  return kNone;
}

// Tick labels are centred on their tick to a pixel or two (a digit is not as high as its box).
constexpr double kPixels = 2.5;

void expect_line(const nlohmann::json& chart, const std::string& name,
                 const std::vector<std::pair<double, double>>& want) {
  const Scale x(chart, "x-tick", false), y(chart, "y-tick", false);
  ASSERT_GE(x.ticks(), 3U) << name;
  ASSERT_GE(y.ticks(), 3U) << name;
  const auto& points = line_of(chart, name)["points"];
  ASSERT_EQ(points.size(), want.size()) << name;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(points[i][0].get<double>(), x.pixel(want[i].first), kPixels) << name << " " << i;
    EXPECT_NEAR(points[i][1].get<double>(), y.pixel(want[i].second), kPixels) << name << " " << i;
  }
}

// Every text is inside the page, and no two of a chart's labels lie on each other.
void expect_readable(const std::string& id, const nlohmann::json& chart) {
  const auto& texts = chart["texts"];
  int64_t axis_labels = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& a = texts[i]["box"];
    EXPECT_GE(a[0].get<double>(), 0) << id << ": " << texts[i]["text"];
    EXPECT_LE(a[2].get<double>(), 1200) << id << ": " << texts[i]["text"];
    const std::string kind = texts[i]["kind"];
    axis_labels += kind == "x-label" || kind == "y-label" ? 1 : 0;
    if (kind.find("mark-name") != std::string::npos || kind.find("roof-name") != std::string::npos) continue;
    for (size_t j = 0; j < i; ++j) {
      const std::string other = texts[j]["kind"];
      if (other.find("mark-name") != std::string::npos || other.find("roof-name") != std::string::npos)
        continue;
      const auto& b = texts[j]["box"];
      const bool apart =
          a[2].get<double>() <= b[0].get<double>() + 1 || b[2].get<double>() <= a[0].get<double>() + 1 ||
          a[3].get<double>() <= b[1].get<double>() + 4 || b[3].get<double>() <= a[1].get<double>() + 4;
      EXPECT_TRUE(apart) << id << ": '" << texts[i]["text"] << "' on '" << texts[j]["text"] << "'";
    }
  }
  EXPECT_GE(axis_labels, id == "time" || id == "memory" ? 1 : 2) << id;
  EXPECT_GE(chart["tables"].get<int>(), 1) << id;
}

TEST(Report, ATraceHasWhatRunJsonHas) {
  const RunFolder f;
  const auto summary =
      f.train("a", {"steps=6", "log_period=1", "ranks=2", "ici_fsdp_parallelism=2", "profiler=trace"});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  const auto trace = read_json(f.run("a") + "/trace.json").value();
  std::map<int64_t, int64_t> runs;
  std::map<std::string, double> ends;  // by engine, of the event before
  for (const nlohmann::json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    ++runs[e["args"]["id"].get<int64_t>()];
    double& end = ends[e["cat"].get<std::string>()];
    EXPECT_GE(e["ts"].get<double>(), e["cat"] == "compute" ? end : 0) << e;
    end = e["ts"].get<double>() + e["dur"].get<double>();
  }
  EXPECT_TRUE(ends.contains("compute"));
  EXPECT_TRUE(ends.contains("communication"));
  const auto record = read_json(f.run("a") + "/run.json").value();
  for (const nlohmann::json& op : record["ops"])
    if (op.contains("measured_seconds")) {
      EXPECT_EQ(runs[op["id"].get<int64_t>()], op["runs"]) << op;
    }
}

TEST(Report, DrawsTheRunInABrowser) {
  const RunFolder f;
  const std::string name = "a \"run\" & <img src=q onerror=boom()>'";
  const auto summary =
      f.train(name, {"steps=30", "learning_rate_schedule_steps=30", "eval_interval=10", "log_period=5",
                     "remat_policy=full", "ranks=2", "ici_fsdp_parallelism=2"});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->report, f.run(name) + "/report.html");
  std::string page = read_text(summary->report).value();
  page = replaced(page, "<meta charset=\"utf-8\">", "<meta charset=\"utf-8\">" + std::string(kWatch));
  page = replaced(page, "</body>", std::string(kProbe) + "</body>");
  ASSERT_TRUE(write_file_atomic(f / "page.html", page).ok());
  const std::optional<std::string> dom = dump_dom(f, f / "page.html");
  if (!dom) GTEST_SKIP() << "chromium is not installed (scripts/setup --test installs it)";
  constexpr std::string_view kOpen = "<pre id=\"probe\">";
  const size_t begin = dom->find(kOpen);
  ASSERT_NE(begin, std::string::npos) << dom->substr(0, 2000);
  const size_t end = dom->find("</pre>", begin);
  const auto seen =
      parse_json(percent_decoded(dom->substr(begin + kOpen.size(), end - begin - kOpen.size())), "probe")
          .value();

  EXPECT_EQ(seen["errors"], nlohmann::json::array());
  EXPECT_EQ(seen["heading"], name);
  EXPECT_EQ(seen["title"], name + " – Lignum");
  EXPECT_EQ(seen["images"], 0);
  EXPECT_EQ(seen["resources"], 0);  // nothing was fetched
  EXPECT_LE(seen["overflow"], 0);

  // The lines, against metrics.jsonl.
  std::map<std::string, std::vector<std::pair<double, double>>> want;
  for (const nlohmann::json& j : f.records(name)) {
    const double step = j["step"];
    if (j.contains("eval_loss")) {
      want["held out"].emplace_back(step, j["eval_loss"]);
      continue;
    }
    want["training"].emplace_back(step, j["loss"]);
    want["learning rate"].emplace_back(step, j["learning_rate"]);
    want["gradient norm"].emplace_back(step, j["grad_norm"]);
    want["tokens/s"].emplace_back(step, j["tokens_per_s"]);
  }
  EXPECT_EQ(want["training"].size(), 30U);
  EXPECT_EQ(want["held out"].size(), 3U);
  const nlohmann::json& charts = seen["charts"];
  for (const auto& [chart, line] : {std::pair{"loss", "training"},
                                    {"loss", "held out"},
                                    {"learning-rate", "learning rate"},
                                    {"grad-norm", "gradient norm"},
                                    {"throughput", "tokens/s"}})
    expect_line(charts[chart], line, want[line]);
  EXPECT_EQ(charts["loss"]["circles"].size(), 3U);
  for (const char* id : {"loss", "learning-rate", "grad-norm", "throughput", "time", "memory", "roofline"}) {
    ASSERT_TRUE(charts.contains(id)) << id;
    expect_readable(id, charts[id]);
    EXPECT_GT(charts[id]["box"][2].get<double>() - charts[id]["box"][0].get<double>(), 400) << id;
  }
  // Under the pointer: the step in the middle, its loss with five digits.
  const std::string tip = seen["tip"];
  EXPECT_EQ(tip.find("visible step 15\ntraining  "), 0U) << tip;
  EXPECT_NEAR(std::stod(tip.substr(std::string("visible step 15\ntraining  ").size())),
              want["training"][15].second, 1e-4)
      << tip;

  // Bars and circles, against run.json.
  const auto record = read_json(f.run(name) + "/run.json").value();
  EXPECT_GE(record["traced_steps"], 5);
  size_t rated = 0;
  double compute = 0, drawn = 0;
  std::vector<double> rateable;
  for (const auto& op : record["ops"]) {
    if (!op.contains("measured_seconds")) continue;
    const double spent = op["measured_seconds"].get<double>() * op["runs"].get<double>();
    compute += 1e3 * spent;
    if (!op["communication"] && op["flops"] > 0 && op["bytes"] > 0) rateable.push_back(spent);
  }
  const double together = std::accumulate(rateable.begin(), rateable.end(), 0.0);
  for (const double spent : rateable) rated += spent >= 1e-3 * together ? 1 : 0;
  EXPECT_GT(rated, 0U);  // how many take a thousandth of the time is the machine's
  EXPECT_EQ(charts["roofline"]["circles"].size(), rated);
  const Scale ms(charts["time"], "x-tick", false), mib(charts["memory"], "x-tick", false);
  for (const auto& r : charts["time"]["rects"]) {
    drawn += r["value"].get<double>();
    EXPECT_NEAR(r["box"][2].get<double>() - r["box"][0].get<double>(), ms.pixel(r["value"]) - ms.pixel(0),
                kPixels);
  }
  EXPECT_LE(drawn, compute * (1 + 1e-4));
  EXPECT_GE(drawn, 0.9 * compute);  // the kinds of the table's end have no bar
  double planned = 0;
  for (const auto& r : charts["memory"]["rects"]) {
    planned += r["value"].get<double>();
    EXPECT_NEAR(r["box"][2].get<double>() - r["box"][0].get<double>(), mib.pixel(r["value"]) - mib.pixel(0),
                kPixels);
  }
  EXPECT_NEAR(planned, record["planned_bytes"].get<double>() / (1 << 20), 1e-3 * planned);
}

}  // namespace
}  // namespace lignum::testing
