// lignum calibrate: measures this machine and writes its specification.
#include "tune/calibrate.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/verbs.h"

namespace lignum::cli {
namespace {

struct CalibrateArguments {
  tune::CalibrateOptions options;
  bool json = false;
};

Status run_calibrate(const CalibrateArguments& a) {
  tune::CalibrateOptions options = a.options;
  LIGNUM_ASSIGN_OR_RETURN(options.choice, kernels::choose(std::nullopt));
  if (!a.json) {
    options.progress = [](double done, std::string_view what) {
      print_line(fmt::format("{:>3.0f} %  {}", 100 * done, what));
    };
  }
  LIGNUM_ASSIGN_OR_RETURN(const tune::Calibration c, tune::calibrate(options));
  const Result<double> matmul = c.spec.peak_matmul_flops(DType::f32), memory = c.spec.memory_bandwidth();
  const std::vector<hw::DotRate> dots = c.spec.curves().dot_rates(DType::bf16);
  if (a.json) {
    nlohmann::ordered_json j = {{"path", c.path},
                                {"points", c.points},
                                {"median_spread", c.median_spread},
                                {"dispatch_spread", c.dispatch_spread},
                                {"worst_spread", c.worst_spread},
                                {"worst", c.worst},
                                {"busy", c.busy()}};
    if (matmul.ok()) j["matmul_flops"] = *matmul;
    if (memory.ok()) j["memory_bandwidth"] = *memory;
    for (const hw::DotRate& r : dots) j["bf16_dots"][r.way] = r.flops;
    print_json(j);
    return {};
  }
  if (matmul.ok() && memory.ok())
    print_line(
        fmt::format("best f32 GEMM {:.1f} GFLOP/s, memory {:.1f} GB/s", *matmul * 1e-9, *memory * 1e-9));
  std::string ways;
  for (const hw::DotRate& r : dots)
    ways += fmt::format("{}{} {:.1f}", ways.empty() ? "" : ", ", r.way, r.flops * 1e-9);
  if (!c.spec.curves().host_file.empty()) {
    constexpr double kBytes = 1 << 22;
    LIGNUM_ASSIGN_OR_RETURN(const hw::FileTransfer write, c.spec.curves().file_transfer(true, kBytes));
    LIGNUM_ASSIGN_OR_RETURN(const hw::FileTransfer read, c.spec.curves().file_transfer(false, kBytes));
    print_line(fmt::format("a file is written at {:.2f} GB/s, read at {:.2f} GB/s ({})",
                           1e-9 * kBytes / write.seconds, 1e-9 * kBytes / read.seconds,
                           c.spec.curves().host_file.front().source));
  }
  print_line(fmt::format("bf16 GEMM, mean of all shapes: {} GFLOP/s", ways));
  print_line(fmt::format("{} points; spread {:.1f} % (median), {:.1f} % at worst ({}){}", c.points,
                         100 * c.median_spread, 100 * c.worst_spread, c.worst,
                         c.busy() ? fmt::format("; the machine was busy (dispatch: spread {:.1f} %), do it "
                                                "again when it is not",
                                                100 * c.dispatch_spread)
                                  : ""));
  print_line(fmt::format("wrote {}", c.path));
  return {};
}

}  // namespace

void add_calibrate(CLI::App& app, Outcome& outcome) {
  CLI::App& verb = *app.add_subcommand(
      "calibrate",
      "Measures this machine's kernels, memory and ranks: what plans and MFU are computed with.");
  auto a = std::make_shared<CalibrateArguments>();
  verb.add_option("--seconds", a->options.seconds, "about how long to measure")
      ->check(CLI::Range(1.0, 3600.0));
  verb.add_option("--threads", a->options.threads, "the most threads of a rank; 0: all cores")
      ->check(CLI::Range(0, 1024));
  verb.add_option("--ranks", a->options.max_ranks,
                  "collectives of 2, 4, ... ranks below this, and of this many")
      ->check(CLI::Range(1, 64));
  verb.add_option(
      "--files", a->options.files,
      "folder of a file whose rates are measured, as host_memory=file:FOLDER uses it; default: where the "
      "result is written");
  verb.add_option("--out", a->options.path, "where to write, instead of the cache folder");
  add_json(verb, a->json, "print one JSON object");
  add_examples(verb,
               "calibrate [--seconds S] [--threads N] [--ranks N] [--files FOLDER] [--out PATH] [--json]",
               {"calibrate", "calibrate --seconds 60 --ranks 4"});
  verb.final_callback([a, &outcome] { outcome.status = run_calibrate(*a); });
}

}  // namespace lignum::cli
