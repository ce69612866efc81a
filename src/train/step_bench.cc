// Where a training step's time goes, op by op, from the executor's own trace, beside what the machine gives
// at the same moment: fused multiply-adds in registers and a copy of memory, probed before each step.
//   train_bench [config.yml] [key=value ...]
// One rank. The first step touches memory for the first time and is left out.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/thread_pool.h"
#include "kernels/fma_probe.h"
#include "models/model.h"
#include "ops/op.h"
#include "train/data.h"
#include "train/parameters.h"
#include "train/rank_executor.h"
#include "train/setup.h"

namespace lignum::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// Bytes read and written a second by a copy too large for any cache of one core.
class CopyProbe {
 public:
  CopyProbe() : from_(kBytes, 1), to_(kBytes) {}
  double rate(Parallel& pool) {
    constexpr int64_t kPiece = 1 << 20;
    const auto begin = Clock::now();
    pool.run(kBytes / kPiece,
             [&](int64_t t, int) { std::memcpy(&to_[t * kPiece], &from_[t * kPiece], kPiece); });
    return 2.0 * kBytes / seconds_since(begin);
  }

 private:
  static constexpr int64_t kBytes = 128 << 20;
  std::vector<char> from_, to_;
};

// Nodes of one kind, role and place in the model; over one step.
struct Group {
  bool arithmetic = false;      // bound by multiply-adds, not by memory
  int64_t count = 0;            // runs
  double flops = 0, bytes = 0;  // of all runs
  std::vector<double> seconds;  // of all runs, an entry a step
};

struct Samples {
  std::map<std::string, Group> by_kind, by_node;
  std::vector<double> step, gaps, fma, copy;
};

std::string module_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

void add(std::map<std::string, Group>& groups, const std::string& name, size_t step, double seconds,
         const ops::Cost& cost) {
  Group& g = groups[name];
  g.seconds.resize(step + 1);
  g.seconds[step] += seconds;
  if (step > 0) return;
  ++g.count;
  g.arithmetic = cost.work == ops::Work::matmul || cost.work == ops::Work::attention;
  g.flops += cost.flops;
  g.bytes += cost.read + cost.write;
}

void add_events(const exec::Trace& trace, Samples& samples) {
  const size_t step = samples.step.size() - 1;
  double busy = 0;
  for (const exec::Event& e : trace.events()) {
    const ir::Node& node = e.graph->node(e.node);
    const double seconds = static_cast<double>(e.time.end_ns - e.time.start_ns) * 1e-9;
    busy += seconds;
    const ops::NodeSite site(*e.graph, node);
    const ops::Cost cost = ops::get_op(node.kind).cost(site.site);
    add(samples.by_kind, node.kind, step, seconds, cost);
    add(samples.by_node,
        fmt::format("{} {} {}", node.kind, module_of(node.tag.path), ir::role_name(node.tag.role)), step,
        seconds, cost);
  }
  samples.gaps.push_back(samples.step.back() - busy);
}

void print(const std::map<std::string, Group>& groups, const Samples& samples, double least_share) {
  const double step = median(samples.step), fma = median(samples.fma), copy = median(samples.copy);
  std::vector<const std::pair<const std::string, Group>*> order;
  for (const auto& entry : groups) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](auto* a, auto* b) { return median(a->second.seconds) > median(b->second.seconds); });
  fmt::print(
      "| op | runs | ms | share | GFLOP/s or GB/s | of roofline | spread |\n|---|---|---|---|---|---|---|\n");
  for (const auto* entry : order) {
    const Group& g = entry->second;
    const double seconds = median(g.seconds);
    if (seconds < least_share * step) continue;
    const double rate = (g.arithmetic ? g.flops : g.bytes) / seconds;
    const auto [least, most] = std::minmax_element(g.seconds.begin(), g.seconds.end());
    fmt::print("| {} | {} | {:.1f} | {:.1f} % | {:.1f} {} | {:.0f} % | {:.0f} % |\n", entry->first, g.count,
               seconds * 1e3, 100 * seconds / step, rate * 1e-9, g.arithmetic ? "GFLOP/s" : "GB/s",
               100 * rate / (g.arithmetic ? fma : copy), 100 * (*most - *least) / seconds);
  }
}

Status bench(const std::vector<std::string>& words) {
  std::optional<std::string> yaml;
  std::vector<std::string> overrides;
  for (const std::string& word : words) {
    if (word.find('=') != std::string::npos) {
      overrides.push_back(word);
    } else {
      yaml = word;
    }
  }
  LIGNUM_ASSIGN_OR_RETURN(const config::Config config, config::Config::load(yaml, overrides));
  LIGNUM_ASSIGN_OR_RETURN(Setup setup, make_setup(config, nullptr));
  if (setup.ranks != 1) return user_error("train_bench: ranks is {}; 1 is allowed", setup.ranks);
  if (setup.kernels.choice.isa == kernels::Isa::scalar)
    return user_error("train_bench: isa is scalar; avx512 and avx2 are allowed");
  LIGNUM_ASSIGN_OR_RETURN(const plan::Program program, plan::make_program(setup.step));
  LIGNUM_ASSIGN_OR_RETURN(const TrainData data, TrainData::open(config, setup.model.vocab_size, setup.batch));
  LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(setup.threads));
  exec::ExecutorOptions options;
  options.step = &program.scheduled;
  options.plan = &program.memory;
  options.mesh = &setup.step.mesh;
  options.parallel = pool.get();
  options.choice = setup.kernels.choice;
  options.host_memory = setup.host_memory;
  LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(options));
  LIGNUM_RETURN_IF_ERROR(init_parameters(setup.model, {program, setup.step.mesh, 0}, *executor, 0));

  Batch batch(setup.batch.rows, setup.batch.seq);
  const BatchInputs inputs(*executor, program, setup.step.mesh, 0);
  exec::Trace trace(0, exec::event_count(program.scheduled));
  executor->set_trace(&trace);
  CopyProbe copy;
  Samples samples;
  const int64_t steps = config.integer("steps");
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t m = 0; m < setup.batch.micro_steps; ++m) {
      data.fill(step * setup.batch.global_rows(), 0, m, batch);
      inputs.put(batch, m);
    }
    const auto rate = static_cast<float>(setup.schedule.at(step));
    const auto number = static_cast<int32_t>(step);
    std::memcpy(executor->param("learning_rate"), &rate, sizeof(rate));
    std::memcpy(executor->param("step"), &number, sizeof(number));
    const double fma_rate = kernels::probe_fma(setup.kernels.choice.isa, *pool), copy_rate = copy.rate(*pool);
    trace.clear();
    const auto begin = Clock::now();
    LIGNUM_RETURN_IF_ERROR(executor->step());
    const double seconds = seconds_since(begin);
    if (step == 0) continue;
    samples.step.push_back(seconds);
    samples.fma.push_back(fma_rate);
    samples.copy.push_back(copy_rate);
    add_events(trace, samples);
  }
  if (samples.step.empty()) return user_error("train_bench: steps is {}; 2 or more are allowed", steps);

  const auto [least, most] = std::minmax_element(samples.step.begin(), samples.step.end());
  const double step = median(samples.step);
  double flops = 0;
  for (const auto& [kind, g] : samples.by_kind) flops += g.arithmetic ? g.flops : 0;
  fmt::print(
      "Step: median {:.3f} s of {}, from {:.3f} to {:.3f}; {:.0f} GFLOP in matmuls and attention, {:.0f} "
      "GFLOP/s.\n",
      step, samples.step.size(), *least, *most, flops * 1e-9, flops / step * 1e-9);
  fmt::print(
      "Roofline beside the steps, {} thread(s), {}: {:.0f} GFLOP/s of multiply-adds, {:.1f} GB/s of copying "
      "(median).\n",
      setup.threads, kernels::isa_name(setup.kernels.choice.isa), median(samples.fma) * 1e-9,
      median(samples.copy) * 1e-9);
  fmt::print("Between the nodes: {:.1f} ms.\n\n", median(samples.gaps) * 1e3);
  print(samples.by_kind, samples, 0.0005);
  fmt::print("\n");
  print(samples.by_node, samples, 0.002);
  return {};
}

}  // namespace
}  // namespace lignum::train

int main(int argc, char** argv) {
  const lignum::Status status = lignum::train::bench({argv + 1, argv + argc});
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 2;
}
