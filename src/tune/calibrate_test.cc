#include "tune/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/test_folder.h"
#include "exec/thread_pool.h"
#include "kernels/gemm.h"
#include "tune/collective_timing.h"
#include "tune/dispatch.h"
#include "tune/row_timing.h"

namespace lignum::tune {
namespace {

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// An environment variable for the length of a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

const ops::Case& bench_of(const ops::Op& op, std::vector<ops::Case>& keep) {
  keep = op.cases();
  for (const ops::Case& c : keep)
    if (c.bench) return c;
  ADD_FAILURE() << op.name << " has no bench case";
  return keep.front();
}

TEST(RowBench, EveryBenchCaseScalesToTheBytesAskedFor) {
  int ops_seen = 0;
  for (const RowSubject& s : row_subjects({3e5, 5e6})) {
    ++ops_seen;
    ASSERT_EQ(s.cases.size(), 2u) << s.name;
    for (const auto& [c, bytes] : {std::pair{s.cases.data(), 3e5}, {s.cases.data() + 1, 5e6}}) {
      const std::optional<double> got = traffic(*s.op, *c);
      ASSERT_TRUE(got) << s.name;
      EXPECT_NEAR(*got, bytes, 0.35 * bytes) << s.name;
    }
  }
  EXPECT_GT(ops_seen, 12);
}

TEST(RowBench, SubjectsAreRowOpsUnderThePlannersNames) {
  std::set<std::pair<std::string, DType>> names;
  for (const RowSubject& s : row_subjects({3e5})) names.emplace(s.name, s.dtype);
  EXPECT_TRUE(names.contains({"rms_norm", DType::f32}));
  EXPECT_TRUE(names.contains({"rms_norm", DType::bf16}));
  EXPECT_TRUE(names.contains({"elementwise:exp", DType::f32}));
  EXPECT_TRUE(names.contains({"adamw_update", DType::f32}));
  EXPECT_TRUE(names.contains({"convert:bf16", DType::f32}));  // no bench case: another one, grown
  for (const auto& [name, dtype] : names) {
    EXPECT_FALSE(name.starts_with("matmul") || name == "attention" || name == "attention_grad" ||
                 name.starts_with("all_"))
        << name;
  }
}

TEST(RowBench, ScalesTheRowsAndKeepsTheRest) {
  std::vector<ops::Case> keep;
  const ops::Op& embed = ops::get_op("embed");
  const ops::Case& c = bench_of(embed, keep);
  const std::optional<ops::Case> small = rescaled(embed, c, *traffic(embed, c) / 8);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->in[0].type.dims, c.in[0].type.dims);  // the table is not what is read
  EXPECT_EQ(small->in[1].type.dims[0], c.in[1].type.dims[0] / 8);
}

TEST(RowBench, RunsEverySubjectOnAnyPool) {
  const kernels::Choice choice = *kernels::choose(std::nullopt);
  Serial serial;
  const auto pool = exec::ThreadPool::create(3);
  ASSERT_TRUE(pool.ok());
  for (const RowSubject& s : row_subjects({1e5})) {
    RowBench bench(*s.op, s.cases.at(0), choice);
    EXPECT_EQ(bench.work().name, s.name);
    EXPECT_EQ(bench.work().dtype, s.dtype);
    for (Parallel* p : {static_cast<Parallel*>(&serial), static_cast<Parallel*>(pool->get())}) {
      const Status status = bench.run(*p);
      EXPECT_TRUE(status.ok()) << s.name << ": " << status.message();
    }
  }
}

TEST(CollectiveBench, TimesEachKindBetweenRanks) {
  for (const int ranks : {2, 4}) {
    for (const hw::Collective op : {hw::Collective::all_gather, hw::Collective::reduce_scatter,
                                    hw::Collective::all_reduce, hw::Collective::collective_permute}) {
      const Result<hw::Measurement> m = measure_collective(op, ranks, 1 << 14, 2e-3);
      ASSERT_TRUE(m.ok()) << m.status().message();
      EXPECT_GT(m->seconds, 0);
      EXPECT_GE(m->n, 1);
    }
  }
  EXPECT_FALSE(measure_collective(hw::Collective::all_to_all, 2, 1 << 14, 1e-3).ok());
}

TEST(Dispatch, IsOfCallsThatHandWorkOver) {
  const auto pool = exec::ThreadPool::create(2);
  ASSERT_TRUE(pool.ok());
  const auto handed_over = [&](int64_t m, int64_t n, int64_t k) {
    kernels::Gemm g;
    g.m = m, g.n = n, g.k = k;
    g.lda = k, g.ldb = g.ldc = n;
    const ops::Buffer a(m * k * 4, 0), b(k * n * 4, 0);
    ops::Buffer c(m * n * 4, 0), workspace(kernels::gemm_workspace(g, 2), 0);
    WatchedPool watched(**pool);
    kernels::gemm(*kernels::choose(std::nullopt), g, a.data(), b.data(), c.data(), workspace.data(), watched);
    return watched.handed_over();
  };
  EXPECT_FALSE(handed_over(37, 64, 48));
  EXPECT_TRUE(handed_over(256, 256, 256));
}

TEST(Dispatch, LeavesTheThreadsTheirShareOfTheWork) {
  EXPECT_DOUBLE_EQ(work_seconds(60e-6, 10e-6, 2, 90e-6), 50e-6);
  EXPECT_DOUBLE_EQ(work_seconds(60e-6, 1e-3, 2, 90e-6), 45e-6);
  EXPECT_DOUBLE_EQ(work_seconds(60e-6, 1e-3, 2, 150e-6), 60e-6);  // others had the one thread's core
}

TEST(Calibrate, CountsArePowersOfTwoAndTheMost) {
  using Counts = std::vector<int>;
  EXPECT_EQ(measured_counts(1, 1), Counts{1});
  EXPECT_EQ(measured_counts(1, 6), (Counts{1, 2, 4, 6}));
  EXPECT_EQ(measured_counts(2, 1), Counts{});
  EXPECT_EQ(measured_counts(2, 2), Counts{2});
  EXPECT_EQ(measured_counts(2, 3), (Counts{2, 3}));
  EXPECT_EQ(measured_counts(2, 8), (Counts{2, 4, 8}));
}

TEST(Calibrate, ShortRunWritesASpecificationThatLoads) {
  const testing::TestFolder folder;
  const Environment cache("XDG_CACHE_HOME", folder.path());
  EXPECT_EQ(calibrated_spec_path(), folder / "lignum/specs/cpu.json");
  const Result<hw::Spec> before = load_calibrated_spec();
  ASSERT_FALSE(before.ok());
  EXPECT_SAYS(before.status().message(), "lignum calibrate");

  CalibrateOptions options;
  options.choice = *kernels::choose(std::nullopt);
  options.seconds = 0.3;
  double last = -1;
  int calls = 0;
  options.progress = [&](double done, std::string_view what) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    EXPECT_FALSE(what.empty());
    last = done;
    ++calls;
  };
  const Result<Calibration> c = calibrate(options);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_GT(calls, 5);
  EXPECT_EQ(c->path, calibrated_spec_path());
  EXPECT_GT(c->points, 50);
  EXPECT_GE(c->worst_spread, c->median_spread);
  EXPECT_FALSE(c->worst.empty());

  const Result<hw::Spec> spec = load_calibrated_spec();
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->machine().isa, kernels::isa_name(options.choice.isa));
  EXPECT_FALSE(spec->machine().commit.empty());
  const int cores = spec->machine().cores;
  for (const int threads : {1, cores}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Result<hw::Estimate> product =
          hw::matmul_time(*spec, {threads, 1}, {dtype, dtype, 256, 256, 256, 1});
      ASSERT_TRUE(product.ok()) << product.status().message();
      EXPECT_GT(product->seconds, 0);
      const Result<hw::Estimate> attention =
          hw::attention_time(*spec, {threads, 1}, {hw::AttentionPass::backward, dtype, 1, 4, 256, 64});
      ASSERT_TRUE(attention.ok()) << attention.status().message();
    }
  }
  EXPECT_TRUE(hw::collective_time(*spec, hw::Collective::all_reduce, 1e6, 2).ok());
  // Small products as well do no more with many threads than one thread does on its best shape, times as
  // many; 1.5: others use the machine.
  std::map<std::pair<DType, std::string>, double> alone;
  for (const hw::GemmPoint& p : spec->curves().gemm) {
    double& best = alone[{p.dtype, p.way}];
    if (p.threads == 1) best = std::max(best, p.flops() / p.seconds);
  }
  for (const hw::GemmPoint& p : spec->curves().gemm)
    EXPECT_LE(p.flops() / p.seconds, 1.5 * p.threads * alone.at({p.dtype, p.way}))
        << dtype_name(p.dtype) << " " << p.way << ", " << p.m << " x " << p.n << " x " << p.k;
  EXPECT_FALSE(spec->curves().rows.empty());
  for (const bool write : {true, false}) {
    const Result<hw::FileTransfer> t = spec->curves().file_transfer(write, 1e6);
    ASSERT_TRUE(t.ok()) << t.status().message();
    EXPECT_GT(t->seconds, 0);
    EXPECT_LE(t->cpu_share, 1);
  }
  EXPECT_SAYS(spec->curves().host_file.front().source, folder.path());
}

TEST(Calibrate, BusyIsSaidByEitherSpread) {
  const auto busy = [](double median, double dispatch) {
    Calibration c{hw::Spec::load("v5p").value(), ""};
    c.median_spread = median;
    c.dispatch_spread = dispatch;
    return c.busy();
  };
  EXPECT_FALSE(busy(0.03, 0.4));
  EXPECT_TRUE(busy(0.2, 0.4));
  EXPECT_TRUE(busy(0.03, 12.8));
}

TEST(Calibrate, RefusesWhatItCannotMeasure) {
  CalibrateOptions options;
  options.choice = *kernels::choose(std::nullopt);
  options.threads = 1 << 20;
  EXPECT_SAYS(calibrate(options).status().message(), "threads=1048576");
  options.threads = 1;
  options.seconds = 0;
  EXPECT_SAYS(calibrate(options).status().message(), "seconds=0");
  options.seconds = 1;
  options.max_ranks = 0;
  EXPECT_SAYS(calibrate(options).status().message(), "ranks=0");
}

}  // namespace
}  // namespace lignum::tune
