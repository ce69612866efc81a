// Predicted against measured: calibrates, then prices and runs the same scheduled steps, and says by kind of
// node where they differ. On both sides medians count.
//   tune_bench [seconds of calibration] [specification to use instead]
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "comm/threads.h"
#include "exec/executor.h"
#include "exec/thread_pool.h"
#include "hw/probe.h"
#include "plan/price.h"
#include "plan/report.h"
#include "tune/calibrate.h"
#include "tune/collective_timing.h"

namespace lignum::tune {
namespace {

using Clock = std::chrono::steady_clock;

struct Run {
  std::string name;
  config::ModelConfig model;
  int64_t rows, sequence;
  DType dtype;
  int threads, ranks;
};

config::ModelConfig llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t mlp,
                          int64_t vocab) {
  config::ModelConfig m;
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.kv_heads = kv_heads;
  m.head_dim = hidden / heads;
  m.mlp = mlp;
  m.vocab_size = vocab;
  return m;
}

std::vector<Run> all_runs() {
  const config::ModelConfig small = llama(4, 256, 8, 4, 768, 4096), wide = llama(6, 576, 9, 3, 1536, 8192);
  std::vector<Run> runs;
  for (const auto& [threads, ranks] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    runs.push_back({"4 x 256, 8 x 128 tokens, f32", small, 8, 128, DType::f32, threads, ranks});
    runs.push_back({"4 x 256, 4 x 512 tokens, bf16", small, 4, 512, DType::bf16, threads, ranks});
    runs.push_back({"6 x 576, 2 x 512 tokens, f32", wide, 2, 512, DType::f32, threads, ranks});
  }
  return runs;
}

void fill(exec::Executor& executor, const ir::Graph& graph, int64_t vocab) {
  for (int64_t i = 0; i < static_cast<int64_t>(graph.params().size()); ++i) {
    const std::string& name = graph.param_name(i);
    const ir::Type& type = graph.type(graph.param_value(i));
    std::byte* data = executor.param(i);
    const Random random(1, name);
    for (int64_t e = 0; e < type.elements(); ++e) {
      const auto at = static_cast<uint64_t>(e);
      double value = 0.02 * (2 * random.uniform(at) - 1);
      if (type.dtype == DType::i32) {
        const auto token = static_cast<double>(random.below(at, static_cast<uint64_t>(vocab)));
        value = name == "positions" ? static_cast<double>(e % type.dims.back())
                : type.rank() == 0  ? 1
                                    : token;
      } else if (name.starts_with("adam_") || type.rank() == 0) {
        value = 1e-4;
      }
      store_from_double(type.dtype, data, e, value);
    }
  }
}

struct Measured {
  hw::Measurement step;
  std::map<std::string, double> by_kind;  // seconds of one step on rank 0, from the trace
};

Result<Measured> measure(const Run& run, const plan::Program& program, const passes::Mesh& mesh,
                         kernels::Choice choice, double seconds) {
  comm::ThreadWorld world(run.ranks);
  Measured measured;
  std::vector<double> samples;
  LIGNUM_RETURN_IF_ERROR(world.run([&](comm::Transport& transport) -> Status {
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(run.threads));
    exec::ExecutorOptions options;
    options.step = &program.scheduled;
    options.plan = &program.memory;
    options.mesh = &mesh;
    options.transport = run.ranks > 1 ? &transport : nullptr;
    options.parallel = pool.get();
    options.choice = choice;
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(options));
    fill(*executor, *program.local, run.model.vocab_size);
    LIGNUM_RETURN_IF_ERROR(executor->step());
    Clock::time_point begin = Clock::now();
    LIGNUM_RETURN_IF_ERROR(executor->step());
    // As many on every rank: rank 0's guess would need a message, a fixed time a step needs none.
    const double once = std::chrono::duration<double>(Clock::now() - begin).count();
    static std::atomic<int> repeats{0};
    if (transport.rank() == 0) repeats = std::clamp(static_cast<int>(seconds / once), 5, 200);
    LIGNUM_RETURN_IF_ERROR(executor->step());
    exec::Trace trace(transport.rank(), exec::event_count(program.scheduled));
    const int n = repeats;
    std::map<std::string, double> best;
    for (int i = 0; i < n; ++i) {
      begin = Clock::now();
      LIGNUM_RETURN_IF_ERROR(executor->step());
      if (transport.rank() == 0)
        samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    executor->set_trace(&trace);
    for (int i = 0; i < 5; ++i) {
      trace.clear();
      LIGNUM_RETURN_IF_ERROR(executor->step());
      std::map<std::string, double> kinds;
      for (const exec::Event& e : trace.events()) {
        const ir::Node& node = e.graph->node(e.node);
        kinds[node.kind + (e.engine == passes::Engine::communication ? " [communication]" : "")] +=
            static_cast<double>(e.time.end_ns - e.time.start_ns) * 1e-9;
      }
      for (const auto& [kind, s] : kinds) best[kind] = i == 0 ? s : std::min(best[kind], s);
    }
    if (transport.rank() == 0) measured.by_kind = std::move(best);
    return {};
  }));
  measured.step = hw::summarize(std::move(samples), kBestShare);
  return measured;
}

// The way of bf16 dots that the specification found fastest.
kernels::Bf16Dot dot_of(const hw::Spec& spec) {
  std::vector<kernels::Bf16Rate> rates;
  for (const hw::DotRate& r : spec.curves().dot_rates(DType::bf16)) {
    if (const auto dot = kernels::bf16_dot_from_name(r.way)) rates.push_back({*dot, r.flops});
  }
  return rates.empty() ? kernels::Bf16Dot::fma : kernels::fastest_bf16_dot(rates);
}

Status compare(const Run& run, const hw::Spec& spec, kernels::Choice choice, double seconds) {
  plan::ProgramOptions made_with;
  made_with.model = run.model;
  made_with.shape = {run.rows, run.sequence, run.dtype};
  made_with.mesh.axes = {{"data", 1}, {"fsdp", run.ranks}};
  made_with.threads = run.threads;
  choice.bf16_dot = dot_of(spec);
  made_with.bf16_dot = kernels::bf16_dot_name(choice.bf16_dot);
  LIGNUM_ASSIGN_OR_RETURN(made_with.remat, passes::remat_policy("minimal"));
  LIGNUM_ASSIGN_OR_RETURN(const plan::Program program, plan::make_program(made_with));
  LIGNUM_ASSIGN_OR_RETURN(const plan::Price price, plan::price(program, made_with, spec));
  LIGNUM_ASSIGN_OR_RETURN(const Measured m, measure(run, program, made_with.mesh, choice, seconds));

  fmt::print(
      "{}, {} ranks of {} threads: predicted {}, measured {} (median of {}; fastest {}): "
      "{:+.1f} %\n",
      run.name, run.ranks, run.threads, plan::seconds_text(price.step_seconds),
      plan::seconds_text(m.step.seconds), m.step.n, plan::seconds_text(m.step.min),
      100 * (price.step_seconds / m.step.seconds - 1));
  std::map<std::string, double> predicted;
  for (const plan::NodePrice& n : price.nodes) {
    predicted[n.kind + (n.engine == passes::Engine::communication ? " [communication]" : "")] +=
        n.total_seconds;
  }
  std::vector<std::pair<double, std::string>> kinds;
  for (const auto& [kind, s] : m.by_kind) kinds.emplace_back(s, kind);
  std::sort(kinds.rbegin(), kinds.rend());
  for (const auto& [s, kind] : kinds) {
    if (s < 0.01 * m.step.seconds) continue;
    fmt::print("    {:<32} predicted {:>10} measured {:>10}\n", kind, plan::seconds_text(predicted[kind]),
               plan::seconds_text(s));
  }
  fmt::print("    predicted: compute {} exposed {} contention {} dispatch {} copies {}\n",
             plan::seconds_text(price.compute_seconds), plan::seconds_text(price.exposed_seconds),
             plan::seconds_text(price.contention_seconds), plan::seconds_text(price.dispatch_seconds),
             plan::seconds_text(predicted["copy"]));
  return {};
}

int run(int argc, char** argv) {
  CalibrateOptions options;
  const Result<kernels::Choice> choice = kernels::choose(std::nullopt);
  options.choice = *choice;
  options.write = false;
  options.seconds = argc > 1 ? std::atof(argv[1]) : 25;
  hw::Spec spec;
  if (argc > 2) {
    Result<hw::Spec> given = hw::Spec::load(argv[2]);
    LIGNUM_CHECK(given.ok(), "{}", given.status().message());
    spec = std::move(*given);
  } else {
    Result<Calibration> c = calibrate(options);
    LIGNUM_CHECK(c.ok(), "{}", c.status().message());
    fmt::print("calibrated: {} points, median spread {:.1f} %, worst {:.0f} % ({})\n", c->points,
               100 * c->median_spread, 100 * c->worst_spread, c->worst);
    spec = std::move(c->spec);
  }
  for (const Run& r : all_runs()) {
    const Status status = compare(r, spec, *choice, 2);
    if (!status.ok()) fmt::print("{}: {}\n", r.name, status.message());
  }
  return 0;
}

}  // namespace
}  // namespace lignum::tune

int main(int argc, char** argv) { return lignum::tune::run(argc, argv); }
