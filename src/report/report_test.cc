// What a report is made from, and what may not get into it. What is drawn: tests/report_test.cc.
#include "report/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_folder.h"
#include "report/axis.h"
#include "report/html.h"

namespace lignum::report {
namespace {

RunRecord record() {
  RunRecord r;
  r.name = "first";
  r.mesh = "one rank";
  r.isa = "avx512";
  r.dtype = "f32";
  r.parameters = 1869504;
  r.rows = 8;
  r.sequence = 256;
  r.steps = 3;
  r.config = "steps: 3\n";
  r.memory = {{"weights", 8 << 20}, {"activations", 20 << 20}};
  r.planned_bytes = 30 << 20;
  r.resident_bytes = 29 << 20;
  r.predicted_step_seconds = 0.2;
  r.measured_step_seconds = 0.25;
  r.traced_steps = 1;
  r.traced_step_seconds = 0.25;
  r.roofs = {{"f32", 200e9}};
  r.memory_rate = 20e9;
  OpRecord op;
  op.id = 3;
  op.kind = "matmul";
  op.path = "decoder/layers/mlp/wi_0";
  op.role = "forward";
  op.work = "matmul";
  op.runs = 4;
  op.flops = 4e9;
  op.bytes = 5e7;
  op.measured_seconds = 0.04;
  r.ops = {op};
  return r;
}

RunSeries series() {
  const auto s = parse_series(
      "{\"step\":0,\"loss\":5.5,\"grad_norm\":2,\"learning_rate\":0.001,\"tokens\":2048,\"tokens_per_s\":"
      "8192}\n"
      "{\"step\":1,\"loss\":5.25,\"grad_norm\":1,\"learning_rate\":0.002,\"tokens\":2048,\"tokens_per_s\":"
      "8192,\"mfu\":0.4}\n"
      "{\"step\":2,\"eval_loss\":5.0,\"eval_tokens\":10,\"eval_seconds\":1}\n"
      "{\"step\":2,\"lo",
      "metrics.jsonl");
  EXPECT_TRUE(s.ok()) << s.status().message();
  return *s;
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Report, ShowsWhatEightBitsLoseWhereThatWasLookedAt) {
  EXPECT_EQ(render(record(), series()).find("8-bit operands"), std::string::npos);
  const auto with = parse_series(
      "{\"step\":0,\"loss\":5.5,\"quantization\":{\"saturation_percent\":0.5,\"underflow_percent\":2,"
      "\"relative_error\":0.03}}\n{\"step\":1,\"loss\":5.4}\n",
      "metrics.jsonl");
  ASSERT_TRUE(with.ok()) << with.status().message();
  EXPECT_EQ(with->steps[0].quantization_error, 3);
  EXPECT_FALSE(with->steps[1].saturation.has_value());
  const std::string page = render(record(), *with);
  EXPECT_NE(page.find("8-bit operands"), std::string::npos);
  EXPECT_NE(page.find("<td>3.0 %</td><td>0.5 %</td><td>2.0 %</td>"), std::string::npos);
}

TEST(Html, EscapesWhatWouldBeRead) {
  EXPECT_EQ(escaped("a<b & \"c\" 'd'>"), "a&lt;b &amp; &quot;c&quot; &#39;d&#39;&gt;");
  EXPECT_EQ(escaped("π\xff\x01\n"), "π\xef\xbf\xbd?\n");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "?");
}

TEST(Axis, TicksAreRoundAndCoverTheRange) {
  const Axis a = linear_axis(1.84, 5.65, 5);
  EXPECT_EQ(a.labels, (std::vector<std::string>{"1", "2", "3", "4", "5", "6"}));
  EXPECT_EQ(a.low, 1);
  EXPECT_EQ(a.high, 6);
  EXPECT_DOUBLE_EQ(a.share(3.5), 0.5);
  EXPECT_EQ(linear_axis(0, 0.002, 4).labels,
            (std::vector<std::string>{"0", "0.0005", "0.0010", "0.0015", "0.0020"}));
  EXPECT_EQ(linear_axis(0, 8200, 4).labels, (std::vector<std::string>{"0", "5 k", "10 k"}));
  for (const double flat : {0.0, 3.0, -2.0}) {
    const Axis f = linear_axis(flat, flat, 4);
    EXPECT_LT(f.low, flat);
    EXPECT_GT(f.high, flat);
  }
  EXPECT_EQ(log_axis(0.3, 30).labels,
            (std::vector<std::string>{"200 m", "500 m", "1", "2", "5", "10", "20", "50"}));
  const Axis l = log_axis(0.1, 10000);
  EXPECT_EQ(l.labels, (std::vector<std::string>{"100 m", "1", "10", "100", "1 k", "10 k"}));
  EXPECT_NEAR(l.share(10), 0.4, 1e-12);
  EXPECT_LT(log_axis(5, 5).low, log_axis(5, 5).high);
}

TEST(Series, ThinningKeepsTheOutline) {
  std::vector<Point> points;
  for (int i = 0; i < 100000; ++i)
    points.push_back({static_cast<double>(i), i == 4711 ? 50.0 : i == 815 ? -50.0 : i % 7});
  const std::vector<Point> thin = thinned(points, 1000);
  EXPECT_LE(thin.size(), 1000U);
  EXPECT_GE(thin.size(), 900U);
  EXPECT_EQ(thin.front().x, 0);
  EXPECT_EQ(thin.back().x, 99999);
  bool high = false, low = false;
  for (size_t i = 0; i < thin.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(thin[i - 1].x, thin[i].x);
    }
    high = high || (thin[i].x == 4711 && thin[i].y == 50);
    low = low || (thin[i].x == 815 && thin[i].y == -50);
  }
  EXPECT_TRUE(high && low);
  EXPECT_EQ(thinned(points, 200000).size(), points.size());
}

TEST(Series, ASkippedStepWithoutALossIsNoPoint) {
  const auto s = parse_series(
      "{\"step\":0,\"loss\":5}\n{\"step\":1,\"loss\":null,\"skipped\":\"loss nan\"}\n"
      "{\"step\":2,\"loss\":9,\"skipped\":\"loss 9 above 6\"}\n",
      "metrics.jsonl");
  ASSERT_TRUE(s.ok()) << s.status().message();
  ASSERT_EQ(s->steps.size(), 2U);
  EXPECT_EQ(s->steps[1].step, 2);
}

TEST(Series, ALineThatIsNoRecordIsNamed) {
  EXPECT_EQ(series().steps.size(), 2U);  // the torn last line is that of a killed run
  EXPECT_EQ(series().evals.size(), 1U);
  for (const char* bad : {"[]\n", "{}\n", "{\"step\":1}\n", "{\"step\":\"1\",\"loss\":2}\n", "nonsense\n"}) {
    const auto s = parse_series("{\"step\":0,\"loss\":5}\n" + std::string(bad), "metrics.jsonl");
    ASSERT_FALSE(s.ok()) << bad;
    EXPECT_NE(s.status().message().find("metrics.jsonl, line 2"), std::string::npos) << s.status().message();
  }
}

TEST(RunRecord, RoundTripsAndRefusesWhatIsMissing) {
  const nlohmann::ordered_json json = to_json(record());
  const auto again = parse_run_record(json.dump(), "run.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(to_json(*again), json);
  for (const char* key : {"name", "planned_bytes", "ops", "roofs", "config"}) {
    nlohmann::ordered_json broken = json;
    broken.erase(key);
    const auto missing = parse_run_record(broken.dump(), "run.json");
    ASSERT_FALSE(missing.ok()) << key;
    EXPECT_NE(missing.status().message().find(fmt::format("'{}'", key)), std::string::npos)
        << missing.status().message();
    broken[key] = true;
    EXPECT_FALSE(parse_run_record(broken.dump(), "run.json").ok()) << key;
  }
  EXPECT_FALSE(parse_run_record("[]", "run.json").ok());
}

TEST(Report, NothingOfARunIsReadAsMarkup) {
  const std::string hostile =
      "</title><script>boom()</script><img src=x onerror=boom()>\"' onload=boom() x='&";
  RunRecord r = record();
  r.name = r.machine = r.commit = r.config = r.isa = r.mesh = r.no_prediction = hostile;
  r.ops[0].kind = r.ops[0].path = r.ops[0].role = hostile;
  r.memory[0].name = hostile;
  r.roofs[0].dtype = hostile;
  const std::string page = render(r, series());
  EXPECT_EQ(count(page, "boom()</script>"), 0);
  EXPECT_EQ(count(page, "<img"), 0);
  EXPECT_EQ(count(page, "<script"), 1);  // our own
  EXPECT_EQ(count(page, "' onload"), 0);
  EXPECT_EQ(count(page, "http://") + count(page, "https://") + count(page, "url("), 0);  // no network
  EXPECT_GT(count(page, "&lt;img src=x onerror=boom()&gt;"), 5);
}

TEST(Report, ShowsARunBeforeItsFirstStepAndWithoutACalibration) {
  RunRecord r = record();
  r.ops.clear();
  r.roofs.clear();
  r.memory_rate.reset();
  r.predicted_step_seconds.reset();
  r.measured_step_seconds.reset();
  r.no_prediction = "this machine is not calibrated";
  r.traced_steps = r.resident_bytes = 0;
  EXPECT_NE(render(r, {}).find("No step has been recorded yet"), std::string::npos);
  r.measured_step_seconds = 0.5;
  const std::string page = render(r, series());
  EXPECT_NE(page.find("No prediction of time: this machine is not calibrated"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("inf "), std::string::npos);
}

TEST(Report, IsMadeFromAFolder) {
  const testing::TestFolder folder;
  const auto empty = write_report(folder.path());
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.status().code(), Code::user_error);
  EXPECT_NE(empty.status().message().find("run.json"), std::string::npos) << empty.status().message();
  ASSERT_TRUE(write_file_atomic(folder / "run.json", to_json(record()).dump()).ok());
  ASSERT_TRUE(write_file_atomic(folder / "metrics.jsonl", "{\"step\":0,\"loss\":5}\n").ok());
  const auto path = write_report(folder.path());
  ASSERT_TRUE(path.ok()) << path.status().message();
  EXPECT_NE(read_text(*path)->find("<h1>first</h1>"), std::string::npos);
}

}  // namespace
}  // namespace lignum::report
