#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "hw/cpu_spec_builder.h"
#include "hw/interpolate.h"
#include "hw/roofline.h"

namespace lignum::hw {
namespace {

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

Measurement took(double seconds, double spread = 0.02) {
  Measurement m;
  m.seconds = m.min = m.median = seconds;
  m.spread = spread;
  m.n = 10;
  return m;
}

// A machine of two cores: 150/300 GFLOP/s on big matrices and less on thin ones; 14/24 GB/s from RAM, 80/160
// from L2; cross entropy 2/1 ns an element; attention 60/110 GFLOP/s; 5 GB/s between two ranks.
CpuSpecBuilder two_cores() {
  CpuSpecBuilder b("box", {"Some CPU", 2, "avx512", "2026-11-29T15:00:00Z", "abc1234"});
  b.memory(16e9, 2 * 1024 * 1024).copy_bandwidth(8e9);
  for (const int t : {1, 2}) {
    const double gflops = 150e9 * t;
    b.gemm(DType::f32, t, 2048, 2048, 2048, took(2 * std::pow(2048.0, 3) / gflops));
    b.gemm(DType::f32, t, 512, 512, 512, took(2 * std::pow(512.0, 3) / (0.9 * gflops)));
    b.gemm(DType::f32, t, 2048, 64, 512, took(2 * 2048.0 * 64 * 512 / (0.5 * gflops)));
    const double ram = t == 1 ? 14e9 : 24e9;
    b.stream(t, 1 << 20, took((1 << 20) / (80e9 * t)));
    b.stream(t, 256 << 20, took((256 << 20) / ram));
    b.rows("cross_entropy", DType::f32, t, 1 << 20, took((1 << 20) * 2e-9 / t));
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      b.attention(pass, DType::f32, t, 1, 8, 512, 64,
                  took(attention_flops(pass, 1, 8, 512, 64, true) / (t == 1 ? 60e9 : 110e9)));
    }
    b.dispatch(t, took(t == 1 ? 1e-7 : 4e-6));
  }
  b.collective(Collective::all_gather, 2, 1 << 20, took((1 << 20) / 5e9));
  b.collective(Collective::all_gather, 2, 64 << 20, took((64 << 20) / 10e9));
  b.collective(Collective::reduce_scatter, 2, 1 << 20, took((1 << 20) / 4e9));
  b.host_file({{"write", "/disk, measured", 1 << 16, 1e-5, (1 << 16) / 1e9, 0.1},
               {"write", "/disk, measured", 1 << 22, 1e-4, (1 << 22) / 2e9, 0.1},
               {"read", "/disk, measured", 1 << 22, 4e-4, (1 << 22) / 4e9, 0.1}});
  return b;
}

Spec box() {
  const Result<std::string> text = two_cores().build();
  EXPECT_TRUE(text.ok()) << text.status().message();
  Result<Spec> spec = Spec::parse(*text, "box.json");
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return std::move(spec).value();
}

TEST(LogCurve, MonotoneBetweenMonotonePointsAndFlatOutside) {
  LogCurve curve;
  curve.add(1e3, 5);
  curve.add(1e6, 80);
  curve.add(1e4, 20);
  EXPECT_DOUBLE_EQ(curve.at(1e4), 20);
  EXPECT_DOUBLE_EQ(curve.at(1), 5);
  EXPECT_DOUBLE_EQ(curve.at(1e9), 80);
  EXPECT_NEAR(curve.at(1e5), 40, 1e-9);  // half-way in both logs
  double last_rate = 0, last_time = 0;
  for (int i = 1; i < 170; ++i) {
    const double x = 10 * std::pow(1.1, i);
    EXPECT_GE(curve.at(x), last_rate * (1 - 1e-12));
    EXPECT_GT(x / curve.at(x), last_time);  // work that grows takes longer
    last_rate = curve.at(x);
    last_time = x / curve.at(x);
  }
  curve.add(1e4, 80);  // a second measurement at the same size: the geometric mean
  EXPECT_NEAR(curve.at(1e4), 40, 1e-9);
}

TEST(LogScatter, ExactAtPointsAndWithinTheirRange) {
  LogScatter scatter;
  scatter.add(64, 1e8, 100);
  scatter.add(512, 1e9, 250);
  scatter.add(2048, 1e10, 300);
  EXPECT_NEAR(scatter.at(64, 1e8), 100, 1e-9);
  EXPECT_NEAR(scatter.at(512, 1e9), 250, 1e-9);
  for (int i = 0; i < 11; ++i) {
    for (int k = 4; k < 14; ++k) {
      const double at = scatter.at(std::pow(3.0, i), std::pow(10.0, k));
      EXPECT_GE(at, 100);
      EXPECT_LE(at, 300);
    }
  }
  // No jump where "the measured shape itself" begins.
  EXPECT_NEAR(scatter.at(512 * 1.001, 1e9), 250, 0.1);
}

TEST(CpuSpec, RoundTripKeepsEveryNumber) {
  const Spec spec = box();
  EXPECT_TRUE(spec.is_cpu());
  EXPECT_EQ(spec.name(), "box");
  EXPECT_EQ(spec.machine().cpu, "Some CPU");
  EXPECT_EQ(spec.machine().cores, 2);
  EXPECT_EQ(spec.machine().commit, "abc1234");
  EXPECT_EQ(*spec.device_memory(), 16e9);
  ASSERT_EQ(spec.curves().gemm.size(), 6u);
  EXPECT_EQ(spec.curves().gemm[2].n, 64);
  EXPECT_EQ(spec.curves().gemm[2].seconds, 2 * 2048.0 * 64 * 512 / 75e9);
  EXPECT_EQ(spec.curves().gemm[0].spread, 0.02);
  EXPECT_EQ(spec.curves().attention[1].pass, AttentionPass::backward);
  EXPECT_EQ(spec.curves().collectives[2].op, Collective::reduce_scatter);
  const Result<CpuCurves> again = CpuCurves::parse(spec.curves().to_json());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->to_json(), spec.curves().to_json());
}

TEST(CpuSpec, WrittenFileLoadsByPathAndLeavesNoTemporary) {
  const std::string folder = testing::TempDir() + "/lignum_cpu_spec/deep";
  const std::string path = folder + "/box.json";
  const Status status = two_cores().write(path);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(two_cores().write(path).ok());  // over itself
  const Result<Spec> spec = Spec::load(path);
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->origin(), path);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1);
  std::filesystem::remove_all(testing::TempDir() + "/lignum_cpu_spec");
  std::ofstream(testing::TempDir() + "/lignum_a_file") << "x";
  EXPECT_SAYS(two_cores().write(testing::TempDir() + "/lignum_a_file/box.json").message(), "lignum_a_file");
}

TEST(CpuSpec, MatmulTimesFollowShapeThreadsAndRanks) {
  const Spec spec = box();
  const auto seconds = [&](Share share, int64_t m, int64_t n, int64_t k) {
    const Result<Estimate> e = matmul_time(spec, share, {DType::f32, DType::f32, m, n, k});
    EXPECT_TRUE(e.ok()) << e.status().message();
    return e->seconds;
  };
  const double work = 2 * std::pow(2048.0, 3);
  EXPECT_NEAR(seconds({2, 1}, 2048, 2048, 2048), work / 300e9, 1e-9);
  EXPECT_NEAR(seconds({1, 1}, 2048, 2048, 2048), work / 150e9, 1e-9);
  // Two ranks of one thread each share the machine's 300; more threads than cores bring nothing.
  EXPECT_NEAR(seconds({1, 2}, 2048, 2048, 2048), work / 150e9, 1e-9);
  EXPECT_NEAR(seconds({2, 2}, 2048, 2048, 2048), work / 150e9, 1e-9);
  // Thin is slower per FLOP than square, and growing a matrix never makes it cheaper.
  EXPECT_GT(seconds({2, 1}, 4096, 32, 1024) / (2.0 * 4096 * 32 * 1024),
            seconds({2, 1}, 1024, 1024, 1024) / (2.0 * 1024 * 1024 * 1024));
  double last = 0;
  for (int64_t n = 16; n <= 8192; n += n / 4) {
    const double now = seconds({2, 1}, 2048, n, 512);
    EXPECT_GT(now, last) << n;
    last = now;
  }
}

// 37 x 64 x 48 takes 3.4 us, dispatch about as long: what is left of the one without the other is noise.
TEST(CpuSpec, AShortProductDoesNotSetThePeak) {
  EXPECT_NEAR(*box().peak_matmul_flops(DType::f32) / 300e9, 1.02, 1e-3);  // spread 0.02, dispatch 4 us
  EXPECT_NEAR(*box().matmul_flops(DType::f32) / 300e9, 1, 1e-3);
  CpuSpecBuilder b = two_cores();
  b.gemm(DType::f32, 2, 37, 64, 48, took(0.34e-6));
  const Spec spec = *Spec::parse(*b.build(), "box.json");
  EXPECT_EQ(*spec.peak_matmul_flops(DType::f32), *box().peak_matmul_flops(DType::f32));
  EXPECT_EQ(*spec.matmul_flops(DType::f32), *box().matmul_flops(DType::f32));
}

// bf16 products of one machine in two ways: the fastest, unless another is named; a file that names none
// means fma.
TEST(CpuSpec, Bf16DotsHaveTheRateOfTheirWay) {
  CpuSpecBuilder b = two_cores();
  for (const int t : {1, 2}) {
    for (const auto& [way, gflops] : {std::pair<const char*, double>{"fma", 100e9}, {"amx", 900e9}}) {
      b.gemm(DType::bf16, t, 1024, 1024, 1024, took(2 * std::pow(1024.0, 3) / (gflops * t)), way);
      b.attention(AttentionPass::forward, DType::bf16, t, 1, 8, 512, 64,
                  took(attention_flops(AttentionPass::forward, 1, 8, 512, 64, true) / (gflops / 2)), way);
    }
    b.gemm(DType::bf16, t, 8, 8, 8, took(1), "fma");  // a shape that one way has alone does not count
  }
  const Spec spec = *Spec::parse(*b.build(), "box.json");
  const std::vector<DotRate> rates = spec.curves().dot_rates(DType::bf16);
  ASSERT_EQ(rates.size(), 2U);
  EXPECT_EQ(rates[0].way, "amx");
  EXPECT_NEAR(rates[0].flops, 900e9 * std::sqrt(2.0), 1e3);  // one thread and two
  EXPECT_EQ(rates[1].way, "fma");
  EXPECT_TRUE(spec.curves().dot_rates(DType::f8e4m3fn).empty());

  const auto product = [&](const char* way) {
    return matmul_time(spec, {2, 1}, {DType::bf16, DType::bf16, 1024, 1024, 1024, 1, way});
  };
  const double work = 2 * std::pow(1024.0, 3);
  EXPECT_NEAR(product("")->seconds, work / 1800e9, 1e-6);
  EXPECT_NEAR(product("amx")->seconds, work / 1800e9, 1e-6);
  EXPECT_NEAR(product("fma")->seconds, work / 200e9, 1e-6);
  EXPECT_SAYS(product("vdpbf16ps").status().message(), "no measured bf16 GEMM by vdpbf16ps");
  AttentionWork attention{AttentionPass::forward, DType::bf16, 1, 8, 512, 64};
  const double fastest = attention_time(spec, {1, 1}, attention)->seconds;
  attention.way = "fma";
  EXPECT_NEAR(attention_time(spec, {1, 1}, attention)->seconds / fastest, 9, 1e-6);
  // The way says nothing about f32.
  EXPECT_TRUE(matmul_time(spec, {2, 1}, {DType::f32, DType::f32, 64, 64, 64, 1, "vdpbf16ps"}).ok());

  nlohmann::json curves = spec.curves().to_json();
  for (nlohmann::json& point : curves["gemm"]) point.erase("way");
  EXPECT_EQ(CpuCurves::parse(curves)->gemm.back().way, "fma");
  curves["gemm"][0]["way"] = 3;
  EXPECT_SAYS(CpuCurves::parse(curves).status().message(), "curves.gemm[0].way: 3 is not a name");
}

TEST(CpuSpec, StreamsComeFromTheCacheTheyFit) {
  const Spec spec = box();
  StreamWork w;
  w.bytes = 256 << 20;
  EXPECT_NEAR(stream_time(spec, {2, 1}, w)->seconds, (256 << 20) / 24e9, 1e-9);
  EXPECT_NEAR(stream_time(spec, {1, 2}, w)->seconds, (256 << 20) / 12e9, 1e-9);
  w.bytes = 1 << 20;
  EXPECT_NEAR(stream_time(spec, {1, 1}, w)->seconds, (1 << 20) / 80e9, 1e-12);
  w.working_set = 1 << 30;  // the next reader finds it evicted
  EXPECT_NEAR(stream_time(spec, {1, 1}, w)->seconds, (1 << 20) / 14e9, 1e-9);
  EXPECT_EQ(*spec.memory_bandwidth(), 24e9);
}

TEST(CpuSpec, RowOpsCostTheirArithmetic) {
  const Spec spec = box();
  StreamWork w;
  w.bytes = 4 << 20;
  w.op = "cross_entropy";
  w.elements = 1 << 20;
  const Estimate e = *stream_time(spec, {2, 1}, w);
  EXPECT_EQ(e.bound, Bound::compute);
  EXPECT_NEAR(e.seconds, (1 << 20) * 1e-9, 1e-9);
  EXPECT_NEAR(stream_time(spec, {1, 2}, w)->seconds, (1 << 20) * 2e-9, 1e-9);
  w.op = "tanh";
  EXPECT_SAYS(stream_time(spec, {2, 1}, w).status().message(), "tanh f32 (measured: cross_entropy f32)");
}

TEST(CpuSpec, AttentionAndDispatch) {
  const Spec spec = box();
  AttentionWork w;
  w.dtype = DType::f32;
  w.sequences = 4, w.heads = 8, w.seq = 512, w.head_dim = 64;
  EXPECT_NEAR(attention_time(spec, {2, 1}, w)->seconds, 4 * 4.0 * 8 * 512 * 512 * 64 / 2 / 110e9, 1e-9);
  w.pass = AttentionPass::backward;
  EXPECT_NEAR(attention_time(spec, {2, 1}, w)->seconds, 4 * 10.0 * 8 * 512 * 512 * 64 / 2 / 110e9, 1e-9);
  w.dtype = DType::bf16;
  EXPECT_SAYS(attention_time(spec, {2, 1}, w).status().message(), "bf16 attention backward");
  EXPECT_NEAR(*spec.dispatch_seconds(1), 1e-7, 1e-15);
  EXPECT_NEAR(*spec.dispatch_seconds(2), 4e-6, 1e-14);
}

TEST(CpuSpec, HeadsThatShareKeysHaveTheirOwnRate) {
  CpuSpecBuilder b = two_cores();
  const double flops = attention_flops(AttentionPass::forward, 1, 8, 512, 64, true);
  for (const int t : {1, 2})
    b.attention(AttentionPass::forward, DType::f32, t, 1, 8, 512, 64, took(flops / (t == 1 ? 240e9 : 440e9)),
                "fma", 4);
  const Spec spec = *Spec::parse(*b.build(), "box.json");
  const auto seconds = [&](int64_t group) {
    AttentionWork w{AttentionPass::forward, DType::f32, 1, 8, 512, 64};
    w.group = group;
    return attention_time(spec, {1, 1}, w)->seconds;
  };
  EXPECT_NEAR(seconds(1), flops / 60e9, 1e-9);
  EXPECT_NEAR(seconds(2), flops / 120e9, 1e-9);  // linear in the logarithms
  EXPECT_NEAR(seconds(4), flops / 240e9, 1e-9);
  EXPECT_NEAR(seconds(8), seconds(4), 1e-12);
}

TEST(CpuSpec, CollectivesBetweenRanks) {
  const Spec spec = box();
  EXPECT_NEAR(*collective_time(spec, Collective::all_gather, 1 << 20, 2), (1 << 20) / 5e9, 1e-12);
  EXPECT_NEAR(*collective_time(spec, Collective::all_gather, 64 << 20, 2), (64 << 20) / 10e9, 1e-12);
  const double between = *collective_time(spec, Collective::all_gather, 8 << 20, 2);
  EXPECT_NEAR((8 << 20) / between, std::sqrt(50.0) * 1e9, 1e5);
  EXPECT_EQ(*collective_time(spec, Collective::all_gather, 1 << 20, 1), 0);
  // Not measured: a rank receives what it does in an all_gather of twice as much between two.
  EXPECT_EQ(*collective_time(spec, Collective::collective_permute, 1 << 20, 2),
            *collective_time(spec, Collective::all_gather, 2 << 20, 2));
  EXPECT_SAYS(collective_time(spec, Collective::all_gather, 1 << 20, 4).status().message(),
              "between 2 ranks, not 4; run `lignum calibrate --ranks 4 --out box.json`");
  EXPECT_SAYS(collective_time(spec, Collective::all_to_all, 1 << 20, 2).status().message(), "all_to_all");
}

TEST(CpuSpec, FilesAreWrittenAndReadAtTheirOwnRates) {
  const Spec spec = box();
  const Result<FileTransfer> write = spec.curves().file_transfer(true, 1 << 16),
                             more = spec.curves().file_transfer(true, 1 << 26),
                             read = spec.curves().file_transfer(false, 1 << 20);
  ASSERT_TRUE(write.ok() && more.ok() && read.ok());
  EXPECT_NEAR(write->seconds, (1 << 16) / 1e9, 1e-12);
  EXPECT_NEAR(more->seconds, (1 << 26) / 2e9, 1e-12);
  EXPECT_NEAR(read->seconds, (1 << 20) / 4e9, 1e-12);
  EXPECT_NEAR(read->cpu_share, 4e-4 / ((1 << 22) / 4e9), 1e-9);
  Spec none = box();
  none.set_host_file({});
  const Result<FileTransfer> refused = none.curves().file_transfer(true, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--files"), std::string::npos) << refused.status().message();
}

TEST(CpuSpec, RefusesThreadsThatWereNotMeasured) {
  CpuSpecBuilder b("one", {"Some CPU", 8, "avx2", "2026-11-29", "x"});
  b.memory(1e9, 1e6).copy_bandwidth(1e9).gemm(DType::f32, 2, 8, 8, 8, took(1e-6));
  b.stream(2, 1 << 20, took(1e-4)).dispatch(2, took(1e-6));
  const Spec spec = *Spec::parse(*b.build(), "one.json");
  const Result<Estimate> e = matmul_time(spec, {4, 1}, {DType::f32, DType::f32, 8, 8, 8});
  ASSERT_FALSE(e.ok());
  EXPECT_SAYS(e.status().message(),
              "2 to 2 threads, not 4; choose within, or run `lignum calibrate --threads 4 --out one.json`");
  EXPECT_SAYS(matmul_time(spec, {2, 1}, {DType::bf16, DType::f32, 8, 8, 8}).status().message(), "bf16 GEMM");
}

TEST(CpuSpec, RefusesBrokenPointsByKey) {
  const std::string good = *two_cores().build();
  const auto refusal = [&](const auto& change) {
    nlohmann::json j = parse_json(good, "box.json").value();
    change(j);
    const Result<Spec> spec = Spec::parse(j.dump(), "box.json");
    return spec.ok() ? std::string("accepted") : spec.status().message();
  };
  using J = nlohmann::json;
  EXPECT_EQ(refusal([](J&) {}), "accepted");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["gemm"][1]["seconds"] = -1; }),
              "box.json: curves.gemm[1].seconds: -1");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["gemm"][1]["m"] = 1.5; }), "curves.gemm[1].m");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["gemm"][1]["m"] = 1e300; }), "curves.gemm[1].m");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["gemm"][0].erase("k"); }), "curves.gemm[0].k: missing");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["gemm"][0]["q"] = 1; }), "curves.gemm[0].q: no such field");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["gemm"][0]["dtype"] = "f31"; }),
              "curves.gemm[0].dtype: \"f31\"");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["stream"] = J::array(); }), "curves.stream: no points");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["collectives"][0]["op"] = "gossip"; }),
              "all_gather, reduce_scatter");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["attention"][0]["pass"] = "sideways"; }), "forward, backward");
  EXPECT_SAYS(refusal([](J& j) { j["curves"]["fft"] = J::array(); }), "curves.fft: no such curve");
  EXPECT_SAYS(refusal([](J& j) { j["machine"].erase("commit"); }), "machine.commit: missing");
  EXPECT_SAYS(refusal([](J& j) { j["device"].erase("memory"); }), "device.memory: missing");
  EXPECT_SAYS(refusal([](J& j) { j["link"]["bandwidth"] = j["device"]["host_bandwidth"]; }),
              "link.bandwidth");
  // The builder reads back what it writes: what was never measured is refused there.
  EXPECT_SAYS(CpuSpecBuilder("x", {"c", 1, "i", "d", "c"}).build().status().message(),
              "curves.gemm: no points");
  EXPECT_SAYS(two_cores().memory(0, 1).build().status().message(), "device.memory.value");
  EXPECT_SAYS(two_cores().gemm(DType::f32, 1, 8, 8, 8, took(0)).build().status().message(),
              "curves.gemm[6].seconds");
}

TEST(CpuSpec, ThisMachine) {
  const CpuMachine machine = this_machine("avx512", "abc");
  EXPECT_GE(machine.cores, 1);
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_EQ(machine.date.size(), 20u);
  EXPECT_EQ(machine.date.back(), 'Z');
  EXPECT_GT(this_machine_memory(), 1e8);
}

TEST(Probe, SummaryTakesTheFastShare) {
  // Seven quiet samples and three that an intruder doubled.
  const Measurement m = summarize({2.0, 1.00, 1.01, 1.02, 2.1, 1.03, 1.04, 1.05, 1.06, 1.9}, 0.5);
  EXPECT_DOUBLE_EQ(m.seconds, 1.02);
  EXPECT_DOUBLE_EQ(m.min, 1.00);
  EXPECT_DOUBLE_EQ(m.median, 1.045);
  EXPECT_NEAR(m.spread, 0.04 / 1.02, 1e-12);
  EXPECT_EQ(m.n, 10);
  EXPECT_EQ(summarize({3.0}, 0.3).seconds, 3.0);
  EXPECT_EQ(summarize({3.0, 1.0}, 1.0).seconds, 2.0);
}

TEST(Probe, LoopsShortCallsAndHonoursRepeats) {
  int64_t calls = 0;
  ProbeOptions options;
  options.min_repeats = options.max_repeats = 7;
  options.sample_seconds = 1e-4;
  options.min_seconds = 0;
  const Measurement m = measure([&] { ++calls; }, options);
  EXPECT_EQ(m.n, 7);
  EXPECT_GT(calls, 1000);  // nanoseconds a call, a tenth of a millisecond a sample
  EXPECT_LT(m.seconds, 1e-5);
}

TEST(Probe, InterleavedMeasurementsKeepTheirOrder) {
  std::vector<int> order;
  ProbeOptions options;
  options.min_repeats = options.max_repeats = 3;
  options.sample_seconds = 0;
  options.min_seconds = 0;
  options.warmup = 0;
  const auto sleeper = [&order](int id, int us) {
    return [&order, id, us] {
      order.push_back(id);
      std::this_thread::sleep_for(std::chrono::microseconds(us));
    };
  };
  const std::vector<Measurement> m = measure_interleaved({sleeper(0, 4000), sleeper(1, 1000)}, options);
  ASSERT_EQ(m.size(), 2u);
  EXPECT_GE(m[0].min, 4e-3);
  EXPECT_GE(m[1].min, 1e-3);
  // One call each to size the samples, then in turn.
  EXPECT_EQ(order, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(Probe, RooflineIsWorkOverTime) {
  ProbeOptions options;
  options.min_repeats = options.max_repeats = 3;
  const double rate =
      probe_roofline([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }, 1e6, options);
  EXPECT_LE(rate, 1e6 / 2e-3);
  EXPECT_GT(rate, 0);
}

}  // namespace
}  // namespace lignum::hw
