// One training step given to the readers that run it: exec on ranks as threads, and XLA on virtual CPU
// devices, with the same shards; and the comparison of what they give.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "base/rng.h"
#include "comm/threads.h"
#include "exec/executor.h"
#include "exec/thread_pool.h"
#include "exec/trace.h"
#include "ops/cases.h"
#include "ops/interpreter.h"
#include "pjrt/reader.h"
#include "plan/program.h"
#include "train/parameters.h"
#include "train/replicas.h"

namespace lignum::tracer {

using pjrt::HostArray;
using Arrays = std::vector<HostArray>;  // one a param, or one an output, of one rank

struct Step {
  plan::ProgramOptions options;
  plan::Program program;
};
inline Result<Step> make_step(plan::ProgramOptions options) {
  LIGNUM_ASSIGN_OR_RETURN(plan::Program program, plan::make_program(options));
  return Step{std::move(options), std::move(program)};
}

// Four layers, grouped-query attention, every width odd in some way; weights large enough that no part is
// nearly linear.
inline config::ModelConfig tiny_llama() {
  config::ModelConfig m;
  m.vocab_size = 211;
  m.hidden = 64;
  m.layers = 4;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.mlp = 112;
  m.initializer_range = 0.1;
  return m;
}
inline plan::ProgramOptions tiny_step(passes::Mesh mesh, plan::Outputs outputs, const char* remat = "full") {
  plan::ProgramOptions o;
  o.model = tiny_llama();
  o.shape = {4, 32, DType::f32};
  o.mesh = std::move(mesh);
  o.outputs = outputs;
  o.remat = passes::remat_policy(remat).value();
  o.vocab_tiling = 4;
  return o;
}

inline HostArray copy_of(const ir::Type& type, const std::byte* data) {
  return {type.dtype, type.dims, {data, data + type.bytes()}};
}

// The values of a global param that init_parameters does not set, as a function of its index. Norm scales are
// set too: all ones, they would hide a permutation of the embed dim, to which the rest of the network is
// blind.
struct Filler {
  const Step& step;
  uint64_t seed;

  bool fills(int64_t param) const {
    const auto parameters = models::parameters(step.options.model);
    const auto i = static_cast<size_t>(param);
    return i >= parameters.size() || parameters[i].init != models::Parameter::Init::normal;
  }
  double value(const std::string& name, int64_t index) const {
    const Random random(seed, name);
    const auto i = static_cast<uint64_t>(index);
    const int64_t vocab = step.options.model.vocab_size, seq = step.options.shape.sequence;
    if (name == "input_ids") return static_cast<double>(random.below(i, static_cast<uint64_t>(vocab)));
    if (name == "labels")
      return i % 7 == 3 ? -100 : static_cast<double>(random.below(i, static_cast<uint64_t>(vocab)));
    if (name == "positions") return static_cast<double>(index % seq);
    if (name == "learning_rate") return 0.01;
    if (name == "step") return 5;
    if (name.starts_with("adam_m:")) return 1e-3 * random.normal(i);
    if (name.starts_with("adam_v:")) return 1e-6 * (0.5 + random.uniform(i));
    return 1 + 0.3 * random.normal(i);  // norm scales
  }
};

// What one rank started with and ended with.
struct RankRun {
  Arrays params, outputs;
  std::vector<exec::Event> events;
};
using NativeRun = std::vector<RankRun>;

struct NativeOptions {
  uint64_t seed = 17;
  int64_t steps =
      1;  // > 1: repeated from the state that the last one left; params are those before the first
};

// Runs the step on ranks as threads, one thread and one communication thread each.
inline Result<NativeRun> run_native(const Step& step, const NativeOptions& options = {}) {
  const passes::Mesh& mesh = step.options.mesh;
  const auto ranks = static_cast<int>(mesh.ranks());
  const ir::Graph& local = *step.program.local;
  NativeRun run(static_cast<size_t>(ranks));
  comm::ThreadWorld world(ranks);
  const Status status = world.run([&](comm::Transport& transport) -> Status {
    const int64_t rank = transport.rank();
    RankRun& out = run[static_cast<size_t>(rank)];
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(1));
    exec::ExecutorOptions o;
    o.step = &step.program.scheduled;
    o.plan = &step.program.memory;
    o.mesh = &mesh;
    o.transport = ranks > 1 ? &transport : nullptr;
    o.parallel = pool.get();
    o.overlap = step.options.schedule.overlap;
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(o));
    LIGNUM_RETURN_IF_ERROR(
        train::init_parameters(step.options.model, {step.program, mesh, rank}, *executor, options.seed));
    const Filler filler{step, options.seed};
    for (int64_t p = 0; p < static_cast<int64_t>(local.params().size()); ++p) {
      const ir::Type& type = local.type(local.param_value(p));
      const ir::Type& whole = step.program.global.type(step.program.global.param_value(p));
      if (const std::string& name = local.param_name(p);
          whole.names.size() == 2 && whole.names[0] == "activation_batch") {  // [rows, tokens]
        const std::vector<std::vector<std::string>>& dims = step.program.params[static_cast<size_t>(p)].dims;
        const passes::Range rows = passes::shard_range(whole.dims[0], dims[0], mesh, rank);
        int64_t to = 0;
        for (int64_t row = rows.begin; row < rows.end; ++row)
          for (const passes::Range& tokens : passes::token_ranges(whole.dims[1], dims[1], mesh, rank))
            for (int64_t t = tokens.begin; t < tokens.end; ++t)
              store_from_double(type.dtype, executor->param(p), to++,
                                filler.value(name, row * whole.dims[1] + t));
      } else if (filler.fills(p)) {
        train::for_each_run(whole.dims, step.program.params[static_cast<size_t>(p)], mesh, rank,
                            [&](int64_t to, int64_t from, int64_t count) {
                              for (int64_t k = 0; k < count; ++k)
                                store_from_double(type.dtype, executor->param(p), to + k,
                                                  filler.value(local.param_name(p), from + k));
                            });
      }
      out.params.push_back(copy_of(type, executor->param(p)));
    }
    exec::Trace trace(static_cast<int>(rank), exec::event_count(step.program.scheduled));
    executor->set_trace(&trace);
    for (int64_t k = 0; k < options.steps; ++k) {
      trace.clear();
      LIGNUM_RETURN_IF_ERROR(executor->step());
    }
    if (trace.dropped() > 0) return internal_error("{} events had no room", trace.dropped());
    out.events.assign(trace.events().begin(), trace.events().end());
    for (size_t i = 0; i < local.outputs().size(); ++i)
      out.outputs.push_back(
          copy_of(local.type(local.outputs()[i].value), executor->output(static_cast<int64_t>(i))));
    return {};
  });
  if (!status.ok()) return status;
  return run;
}

inline std::vector<Arrays> params_of(const NativeRun& run) {
  std::vector<Arrays> out;
  for (const RankRun& r : run) out.push_back(r.params);
  return out;
}
inline std::vector<Arrays> outputs_of(const NativeRun& run) {
  std::vector<Arrays> out;
  for (const RankRun& r : run) out.push_back(r.outputs);
  return out;
}

// params[rank][param] -> outputs[rank][output].
inline Result<std::vector<Arrays>> run_loaded(const pjrt::LoadedStep& loaded,
                                              const std::vector<Arrays>& params) {
  std::vector<std::vector<pjrt::HostView>> arguments;
  for (const Arrays& rank : params) {
    arguments.emplace_back();
    for (const HostArray& a : rank) arguments.back().push_back(a.view());
  }
  return loaded.run(arguments);
}

// The whole of an output, and whether all ranks that hold an element hold the same bits of it.
struct Whole {
  std::vector<int64_t> dims;
  std::vector<double> data;
  bool agreed = true;
};
inline std::map<std::string, Whole> assemble(const Step& step, const std::vector<Arrays>& outputs) {
  std::map<std::string, Whole> out;
  const ir::Graph& global = step.program.global;
  for (size_t i = 0; i < global.outputs().size(); ++i) {
    const ir::Output& o = global.outputs()[i];
    const ir::Type& type = global.type(o.value);
    Whole w;
    w.dims = type.dims;
    w.data.resize(static_cast<size_t>(type.elements()));
    std::vector<bool> seen(w.data.size(), false);
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      train::for_each_run(type.dims, step.program.outputs[i], step.options.mesh, static_cast<int64_t>(rank),
                          [&](int64_t from, int64_t to, int64_t count) {
                            for (int64_t k = 0; k < count; ++k) {
                              const double v =
                                  load_as_double(type.dtype, outputs[rank][i].data.data(), from + k);
                              const auto at = static_cast<size_t>(to + k);
                              w.agreed = w.agreed && (!seen[at] || w.data[at] == v);
                              seen[at] = true;
                              w.data[at] = v;
                            }
                          });
    }
    LIGNUM_CHECK(std::find(seen.begin(), seen.end(), false) == seen.end(), "{} has a part that no rank holds",
                 o.name);
    out[o.name] = std::move(w);
  }
  return out;
}

// The step's values in double through the ops' references, on one rank.
inline std::map<std::string, Whole> interpreted(const Step& step, const Arrays& params,
                                                ops::InterpretOptions options) {
  const ir::Graph& global = step.program.global;
  std::vector<ops::RefTensor> in;
  for (size_t i = 0; i < params.size(); ++i)
    in.push_back(ops::load(global.type(global.param_value(static_cast<int64_t>(i))), params[i].data.data()));
  const std::vector<ops::RefTensor> results = ops::interpret(global, in, options);
  std::map<std::string, Whole> out;
  for (size_t i = 0; i < results.size(); ++i)
    out[global.outputs()[i].name] = {results[i].dims, results[i].data};
  return out;
}

struct Norms {
  double error = 0, norm = 0;
};
inline Norms norms(const Whole& want, const Whole& got, size_t begin, size_t end) {
  Norms n;
  for (size_t i = begin; i < end; ++i) {
    n.error += (want.data[i] - got.data[i]) * (want.data[i] - got.data[i]);
    n.norm += want.data[i] * want.data[i];
  }
  return {std::sqrt(n.error), std::sqrt(n.norm)};
}

// Calls fn(name, row, want, got, begin, end) for each tensor, layer by layer; the first error ends it.
template <class Fn>
Status for_each_row(const std::map<std::string, Whole>& want, const std::map<std::string, Whole>& got,
                    Fn fn) {
  for (const auto& [name, w] : want) {
    const auto it = got.find(name);
    if (it == got.end() || it->second.dims != w.dims)
      return check_failed("{} is not there in that shape", name);
    if (!it->second.agreed || !w.agreed)
      return check_failed("{}: ranks hold different bits of the same part", name);
    const size_t rows = name.find("{}") != std::string::npos ? static_cast<size_t>(w.dims[0]) : 1;
    const size_t each = w.data.size() / rows;
    for (size_t r = 0; r < rows; ++r)
      LIGNUM_RETURN_IF_ERROR(fn(name, r, w, it->second, r * each, (r + 1) * each));
  }
  return {};
}

// Each tensor, layer by layer, within 1e-5 of its own norm + 1e-7 of the norm of all of its kind (weights,
// gradients, first and second moments); scalars within 1e-5. Names the tensor at fault.
inline Status compare(const std::map<std::string, Whole>& want, const std::map<std::string, Whole>& got) {
  const auto kind_of = [](const std::string& name) {
    const size_t colon = name.find(':');
    return colon == std::string::npos ? std::string() : name.substr(0, colon);
  };
  std::map<std::string, double> squares;
  for (const auto& [name, w] : want)
    if (!w.dims.empty()) squares[kind_of(name)] += std::pow(norms(w, w, 0, w.data.size()).norm, 2);
  double worst = 0;
  std::string words;
  LIGNUM_RETURN_IF_ERROR(for_each_row(
      want, got,
      [&](const std::string& name, size_t r, const Whole& w, const Whole& g, size_t begin,
          size_t end) -> Status {
        const Norms n = norms(w, g, begin, end);
        const double bound = 1e-5 * n.norm + (w.dims.empty() ? 0 : 1e-7 * std::sqrt(squares[kind_of(name)]));
        if (!(n.error <= bound))  // NaN too
          return check_failed("{} row {}: error {:.3g}, norm {:.3g}, bound {:.3g}", name, r, n.error, n.norm,
                              bound);
        if (bound > 0 && n.error / bound > worst) {
          worst = n.error / bound;
          words = fmt::format("{} row {}", name, r);
        }
        return {};
      }));
  fmt::print("  worst: {:.3f} of the bound, {}\n", worst, words);
  return {};
}

// As far from the exact value as twice the rounded graph, + 1e-4 of the norm. half_ulp: of the narrowest
// edges.
inline Status compare_rounded(const std::map<std::string, Whole>& exact,
                              const std::map<std::string, Whole>& rounded,
                              const std::map<std::string, Whole>& got, double half_ulp = 0x1p-8) {
  double worst = 0;
  LIGNUM_RETURN_IF_ERROR(for_each_row(
      exact, got,
      [&](const std::string& name, size_t r, const Whole& w, const Whole& g, size_t begin,
          size_t end) -> Status {
        const Norms n = norms(w, g, begin, end);
        // A mean over tokens has one error, which may be next to nothing by luck: what independent
        // roundings of its terms leave in it counts besides.
        const double luck = name == "loss" ? half_ulp * n.norm / std::sqrt(exact.at("tokens").data.at(0)) : 0;
        const double bound = std::max(2 * norms(w, rounded.at(name), begin, end).error, luck) + 1e-4 * n.norm;
        if (!(n.error <= bound))
          return check_failed("{} row {}: error {:.3g}, norm {:.3g}, bound {:.3g}", name, r, n.error, n.norm,
                              bound);
        if (bound > 0) worst = std::max(worst, n.error / bound);
        return {};
      }));
  fmt::print("  worst: {:.3f} of the bf16 bound\n", worst);
  return {};
}

}  // namespace lignum::tracer
