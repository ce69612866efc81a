#include "plan/program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "ops/op.h"
#include "passes/autodiff.h"
#include "passes/fuse.h"
#include "passes/hoist.h"
#include "passes/offload.h"
#include "plan/quantization.h"

namespace lignum::plan {
namespace {

// In doubles: the products may be past int64. The widest results of a micro-step, over all devices, are the
// logits and what all layers save together; 2^50 elements is what an op takes (ops/rules.h).
Status check_size(const config::Config& c, const config::ModelConfig& m, int64_t rows, int64_t devices) {
  constexpr double kMaxTokens = 0x1p40, kMaxElements = 0x1p50;
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  const double tokens = d(rows) * d(c.integer("max_target_length"));
  const double step = tokens * d(c.integer("gradient_accumulation_steps"));
  const double layer = std::max({d(m.hidden), d(m.mlp), d(m.heads) * d(m.head_dim)});
  const double elements = tokens * std::max(d(m.vocab_size), d(m.layers) * layer);
  const auto refuse = [&](double value, std::string_view what, double most) {
    return user_error(
        "per_device_batch_size={}, max_target_length={}, gradient_accumulation_steps={}: {:.3g} {} over {} "
        "device{}, more than {:.3g}; lower one of them",
        c.real("per_device_batch_size"), c.integer("max_target_length"),
        c.integer("gradient_accumulation_steps"), value, what, devices, devices == 1 ? "" : "s", most);
  };
  if (step > kMaxTokens) return refuse(step, "tokens a step", kMaxTokens);
  if (elements > kMaxElements) return refuse(elements, "activations a micro-step", kMaxElements);
  return {};
}

// What tensor parallelism cuts, it cuts into equal parts.
Status check_tensor_parallelism(const config::Config& c, const config::ModelConfig& m,
                                const config::Mesh& mesh) {
  const int64_t ranks = mesh.size("tensor");
  const std::pair<const char*, int64_t> cut[] = {
      {"attention heads", m.heads},
      {"of the MLP's width", m.mlp},
      {"tokens of a row (max_target_length)", c.integer("max_target_length")}};
  for (const auto& [what, count] : cut)
    if (count % ranks != 0)
      return user_error("{}: does not divide {} {}; set it to a divisor of all of {}, {} and {}",
                        mesh.said("tensor"), count, what, cut[0].second, cut[1].second, cut[2].second);
  if (m.kv_heads % ranks != 0 && ranks % m.kv_heads != 0)
    return user_error(
        "{}: {} key heads are neither a multiple of that (each rank has some) nor a "
        "divisor (ranks have copies); set it to a divisor of {}, or a multiple that divides {} attention "
        "heads",
        mesh.said("tensor"), m.kv_heads, m.kv_heads, m.heads);
  return {};
}

// A row's tokens are cut by context into equal pieces, and a rank's by tensor.
Status check_context_parallelism(const config::Config& c, const config::Mesh& given,
                                 const passes::Mesh& mesh) {
  const ops::TokenAxis axis = mesh.tokens();
  const int64_t tokens = c.integer("max_target_length"), pieces = axis.group * axis.pieces(),
                tensor = mesh.size("tensor") * mesh.size(passes::kCopiesAxis),
                all = std::max<int64_t>(1, std::lcm(pieces, axis.group * tensor));
  if (axis.group == 1 || tokens % all == 0) return {};
  return user_error(
      "{}: max_target_length={} tokens of a row are not {} pieces{}{}; set it to a multiple of {}{}",
      given.said(passes::kContextAxis), tokens, pieces,
      axis.balanced ? ", two a rank (context_parallel_load_balance)" : ", one a rank",
      tensor > 1 ? fmt::format(", which {} shares evenly", given.said("tensor")) : "", all,
      axis.balanced ? ", or context_parallel_load_balance=false" : "");
}

// Stages of whole layers, and the rows that they share in whole microbatches. `rows`: of one micro-step.
Result<passes::Pipeline> read_pipeline(const config::Config& c, const config::ModelConfig& m,
                                       const config::Mesh& mesh, int64_t rows,
                                       std::vector<std::string>& notes) {
  passes::Pipeline p;
  p.stages = mesh.size("pipeline");
  const bool circular = c.text("pipeline_schedule") == "circular";
  const int64_t each = c.integer("num_layers_per_pipeline_stage"), wanted = c.integer("num_pipeline_repeats"),
                given = c.integer("num_pipeline_microbatches");
  if (p.stages == 1) {
    for (const char* key : {"num_layers_per_pipeline_stage", "num_pipeline_repeats",
                            "num_pipeline_microbatches", "pipeline_schedule"})
      if (c.is_set(key))
        notes.push_back(
            fmt::format("{}={}: no effect with {}", key, c.value_text(key), mesh.said(passes::kStageAxis)));
    return p;
  }
  // Layers that differ stand in one body and are never parted.
  const std::vector<models::LayerRange> ranges = models::layer_ranges(m);
  const models::LayerRange& main =
      *std::max_element(ranges.begin(), ranges.end(),
                        [](const auto& a, const auto& b) { return a.period * a.trip < b.period * b.trip; });
  const int64_t layers = main.period * main.trip;
  const std::string of = mesh.said(passes::kStageAxis);
  const std::string unit =
      main.period == 1 ? "" : fmt::format(" in groups of {} (their pattern)", main.period);
  if (main.trip % p.stages != 0)
    return user_error("{}: {} layers{} cannot be cut into {} equal stages; use a divisor of {}", of, layers,
                      unit, p.stages, main.trip);
  if (circular) {
    const int64_t per = each == 1 ? main.period : each;
    if (per % main.period != 0 || layers % (p.stages * per) != 0)
      return user_error(
          "num_layers_per_pipeline_stage={}: {} layers{} are not a multiple of {} x {} ({} stages); use a "
          "divisor of {}{}, or pipeline_schedule=gpipe",
          each, layers, unit, p.stages, per, p.stages, layers / p.stages,
          main.period == 1 ? "" : fmt::format(" that is a multiple of {}", main.period));
    p.repeats = layers / (p.stages * per);
  } else if (each != 1 && each != layers / p.stages) {
    return user_error(
        "num_layers_per_pipeline_stage={} with pipeline_schedule=gpipe: {} layers on {} stages are {} each; "
        "leave "
        "it out, or use pipeline_schedule=circular",
        each, layers, p.stages, layers / p.stages);
  }
  if (wanted != -1 && wanted != p.repeats)
    return user_error(
        "num_pipeline_repeats={}: {} layers on {} stages go round {} time{}; leave it out or change "
        "num_layers_per_pipeline_stage",
        wanted, layers, p.stages, p.repeats, p.repeats == 1 ? "" : "s");
  p.microbatches = given == -1 ? p.stages : given;
  const int64_t shared = rows * p.stages / mesh.row_groups();
  if (p.microbatches % p.stages != 0)
    return user_error("num_pipeline_microbatches={}: no multiple of {}; set it to one, or to -1 for {}",
                      p.microbatches, of, p.stages);
  if (shared % p.microbatches != 0)
    return user_error(
        "num_pipeline_microbatches={}: the {} rows that the stages of a pipeline share cannot be cut into so "
        "many; "
        "use a divisor of {} that is a multiple of {}, or raise per_device_batch_size",
        p.microbatches, shared, shared, p.stages);
  for (const models::LayerRange& range : ranges)
    if (!p.cuts(range.trip))
      notes.push_back(fmt::format("{}: layers {} to {} do not divide into stages, and run outside of them",
                                  of, range.first, range.first + range.period * range.trip - 1));
  return p;
}

// What a loop over ticks keeps is kept by tick, on the device, for the loop that goes back alone.
Status check_pipelined(const config::Config& c, const config::Mesh& mesh, const ProgramOptions& o) {
  if (o.pipeline.stages == 1) return {};
  const auto refuse = [&](std::string_view key) {
    return user_error("{}={} with {}: not there; use a mesh without a pipeline or leave it out", key,
                      c.value_text(key), mesh.said(passes::kStageAxis));
  };
  if (o.watch.errors) return refuse("quantization_metrics");
  if (o.watch.ranges) return refuse("save_quant_stats_path");
  if (!o.remat.offloaded.empty()) return refuse("remat_policy");
  if (o.host_parameters) return refuse("parameter_memory_host_offload");
  return {};
}

// remat_policy and, where it is custom, the keys of its tensors.
Result<passes::RematPolicy> read_remat(const config::Config& c, std::vector<std::string>& notes) {
  const std::string& name = c.text("remat_policy");
  if (name != "custom") {
    for (const std::string_view tensor : passes::remat_tensors())
      if (c.text(tensor) != config::find_key(tensor)->default_text)
        notes.push_back(fmt::format("{}={}: no effect with remat_policy={}; remat_policy=custom reads it",
                                    tensor, c.text(tensor), name));
    return passes::remat_policy(name);
  }
  passes::RematPolicy policy;
  for (const std::string_view tensor : passes::remat_tensors()) {
    const std::string& where = c.text(tensor);
    if (where == "offload") policy.offloaded.emplace(tensor);
    if (where != "remat" && tensor != "decoder_layer_input") policy.saved.emplace(tensor);
  }
  return policy;
}

std::string joined(const std::set<std::string, std::less<>>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

// Names of the policy that keep nothing. A preset names what some models have: only of a custom policy is
// that a mistake, and where nothing is quantised of the presets that are about that.
void add_remat_notes(const ProgramOptions& o, const ir::Graph& forward, const ir::Graph& step,
                     std::vector<std::string>& notes) {
  const auto has = passes::named_tensors(forward), kept = passes::saved_tensors(step);
  for (const std::string& name : o.remat.saved) {
    if (kept.contains(name) || (!o.custom_remat && name != "quantization")) continue;
    const std::string_view where = o.remat.offloaded.contains(name) ? "offload" : "device";
    if (has.contains(name)) {
      notes.push_back(
          fmt::format("{}={}: no gradient of this model reads it, so it is not kept", name, where));
    } else if (name == "quantization") {
      notes.emplace_back("remat_policy: nothing is quantised, so no quantization is kept");
    } else {
      notes.push_back(
          fmt::format("{}={}: this model has no tensor of that name; it has {}", name, where, joined(has)));
    }
  }
}

void add_rule_notes(const std::vector<passes::QuantizationRule>& rules, const std::vector<int64_t>& dots,
                    std::vector<std::string>& notes) {
  for (size_t i = 0; i < rules.size(); ++i) {
    const passes::QuantizationRule& r = rules[i];
    if (!r.weight_dtype) continue;
    if (dots[i] == 0)
      notes.push_back(fmt::format("quantization rule {} (module_path {}) quantises no dot of this model",
                                  i + 1, r.module_path));
    if (!r.bwd_dtype && (r.weight_grad_tile.given() || r.rounding_seed))
      notes.push_back(fmt::format("quantization rule {} (module_path {}): {} has no effect without bwd_qtype",
                                  i + 1, r.module_path,
                                  r.rounding_seed ? "bwd_stochastic_rounding" : "bwd_weight_grad_tile_size"));
  }
}

// Weights that a rank has to have whole before they are quantised: a tile lies on two ranks.
void add_cut_tile_notes(const ir::Graph& local, std::vector<std::string>& notes) {
  std::set<std::string> paths;
  ir::for_each_node(local, [&](const ir::Graph& g, int32_t id, int) {
    const ir::Node& n = g.node(id);
    if (n.kind != "quantize" || n.tag.role != ir::Role::forward) return;
    const ir::Node& from = g.node(n.inputs[0]);
    if (from.kind == "await" && g.node(from.inputs[0]).kind == "all_gather") paths.insert(n.tag.path);
  });
  if (!paths.empty())
    notes.push_back(fmt::format(
        "a tile of scales lies on two ranks, so these weights are gathered before they are quantised, not "
        "in 8 bits: {}; choose tiles that divide a shard",
        fmt::join(paths, ", ")));
}

}  // namespace

Result<ProgramOptions> program_options(const config::Config& c, const config::ModelConfig& model,
                                       int64_t ranks) {
  ProgramOptions o;
  o.model = model;
  LIGNUM_ASSIGN_OR_RETURN(const config::Mesh mesh, c.mesh(ranks));
  LIGNUM_ASSIGN_OR_RETURN(o.shape.batch, c.rows(mesh));
  LIGNUM_RETURN_IF_ERROR(check_size(c, model, o.shape.batch, ranks));
  LIGNUM_RETURN_IF_ERROR(check_tensor_parallelism(c, model, mesh));
  for (size_t i = 0; i < config::kMeshAxes.size(); ++i)
    o.mesh.axes.push_back({std::string(config::kMeshAxes[i]), mesh.sizes[i], mesh.dcn[i]});
  o.mesh.share_key_heads(model.kv_heads);
  o.mesh.balanced = c.boolean("context_parallel_load_balance");
  o.mesh.state_over_data = c.boolean("shard_optimizer_over_data");
  if (o.mesh.state_over_data && mesh.size("data") == 1)
    o.notes.push_back("shard_optimizer_over_data has no effect with " + mesh.said("data"));
  o.mesh.ring = c.text("context_parallel_strategy") == "ring";
  LIGNUM_RETURN_IF_ERROR(check_context_parallelism(c, mesh, o.mesh));
  LIGNUM_ASSIGN_OR_RETURN(o.pipeline, read_pipeline(c, model, mesh, o.shape.batch, o.notes));
  o.shape.sequence = c.integer("max_target_length");
  o.shape.segmented = c.boolean("packing") && c.text("dataset_type") != "synthetic";
  const auto dtype_of = [&c](std::string_view key) {
    return c.text(key) == "bfloat16" ? DType::bf16 : DType::f32;
  };
  o.shape.dtype = dtype_of("dtype");
  o.shape.z_loss = c.real("z_loss_multiplier");
  o.accumulation = c.integer("gradient_accumulation_steps");
  o.vocab_tiling = c.integer("num_vocab_tiling");
  if (c.text("fuse") == "off") o.disabled.insert("fuse");
  LIGNUM_ASSIGN_OR_RETURN(o.quantization, quantization_rules(c));
  LIGNUM_ASSIGN_OR_RETURN(o.ranges, quantization_ranges(c, o.quantization, model.layers));
  if (const std::string& path = c.text("load_quant_stats_path");
      !path.empty() && o.ranges.empty() && !o.quantization.empty())
    o.notes.push_back(fmt::format("load_quant_stats_path={} has no effect: no calibration is static", path));
  o.watch.errors = c.boolean("quantization_metrics") && !o.quantization.empty();
  o.watch.ranges = !c.text("save_quant_stats_path").empty() && !o.quantization.empty();
  o.quantised_layers = {c.integer("num_layers_at_start_in_bf16"),
                        model.layers - c.integer("num_layers_at_end_in_bf16")};
  LIGNUM_ASSIGN_OR_RETURN(o.remat, read_remat(c, o.notes));
  o.custom_remat = c.text("remat_policy") == "custom";
  using Kind = passes::Optimizer::Kind;
  o.optimizer.kind = c.text("opt_type") == "sgd" ? Kind::sgd : Kind::adamw;
  o.optimizer.limits = c.boolean("skip_step_on_spikes");
  o.optimizer.momentum = c.real("momentum");
  o.optimizer.nesterov = c.boolean("nesterov");
  o.optimizer.mu_dtype = dtype_of("mu_dtype");
  o.optimizer.nu_dtype = dtype_of("nu_dtype");
  o.optimizer.b1 = c.real("adam_b1");
  o.optimizer.b2 = c.real("adam_b2");
  o.optimizer.eps = c.real("adam_eps");
  o.optimizer.eps_root = c.real("adam_eps_root");
  o.optimizer.weight_decay = c.real("adam_weight_decay");
  o.optimizer.clip = c.real("gradient_clipping_threshold");
  o.link = {static_cast<double>(c.integer("link_bandwidth")), c.real("link_latency")};
  if (o.link.latency > 0 && o.link.bandwidth <= 0)
    o.notes.emplace_back("link_latency has no effect without link_bandwidth");
  o.host_file = c.text("host_memory").starts_with("file:");
  o.optimizer.offloaded = c.boolean("optimizer_memory_host_offload");
  o.host_parameters = c.boolean("parameter_memory_host_offload");
  if (o.optimizer.offloaded && o.optimizer.moments().empty())
    o.notes.emplace_back("optimizer_memory_host_offload: sgd without momentum keeps nothing to offload");
  LIGNUM_RETURN_IF_ERROR(check_pipelined(c, mesh, o));
  if (o.mesh.state_over_data && o.host_parameters)
    return user_error(
        "shard_optimizer_over_data=true with parameter_memory_host_offload=true: weights in host memory are "
        "not gathered at once; use ici_fsdp_parallelism in place of ici_data_parallelism");
  o.schedule.prefetch_distance = c.integer("prefetch_distance");
  o.schedule.overlap = c.text("overlap") == "on";
  return o;
}

double recomputed_flops(const passes::Scheduled& step) {
  double flops = 0;
  for (const passes::Slot& slot : step.order) {
    const ir::Node& node = step.graph->node(slot.node);
    if (const auto body = step.bodies.find(slot.node); body != step.bodies.end()) {
      flops += static_cast<double>(ir::scan_of(node).trip) * recomputed_flops(body->second);
    } else if (node.tag.role == ir::Role::remat && node.kind != "await") {
      const ops::NodeSite site(*step.graph, node);
      const ops::Cost cost = ops::get_op(node.kind).cost(site.site);
      if (cost.work == ops::Work::matmul || cost.work == ops::Work::attention) flops += cost.flops;
    }
  }
  return flops;
}

namespace {

using Done = std::function<Status(std::string_view pass, const ir::Graph&)>;
Done verified(const std::function<void(std::string_view, const ir::Graph&)>& dump) {
  return [&dump](std::string_view pass, const ir::Graph& g) -> Status {
    LIGNUM_RETURN_IF_ERROR(ops::verify(g).with_context(fmt::format("after pass {}", pass)));
    if (dump) dump(pass, g);
    return {};
  };
}

// From the GLOBAL step on.
struct FinishOptions {
  passes::Mesh mesh;
  passes::Pipeline pipeline;
  passes::ScheduleOptions schedule;
  bool fuse = true, xla = false;
  int threads = 1;
};
Result<Program> finish(ir::Graph global, const FinishOptions& o, const Done& done) {
  Program p;
  ir::number_origins(global);
  if (o.mesh.state_over_data)
    global = passes::hoist_casts(global);  // what is gathered once is gathered narrow
  p.global = std::move(global);
  LIGNUM_ASSIGN_OR_RETURN(passes::Partitioned local, passes::partition(p.global, o.mesh, o.pipeline));
  LIGNUM_RETURN_IF_ERROR(done("partition", local.graph));
  p.params = std::move(local.params);
  p.outputs = std::move(local.outputs);
  if (o.xla) {
    local.graph = passes::hoist_casts(local.graph);
    LIGNUM_RETURN_IF_ERROR(done("hoist", local.graph));
  }
  p.local = std::make_shared<const ir::Graph>(std::move(local.graph));
  std::shared_ptr<const ir::Graph> native = p.local;
  if (o.fuse) native = std::make_shared<const ir::Graph>(passes::fuse(*p.local));
  LIGNUM_RETURN_IF_ERROR(done("fuse", *native));
  passes::ScheduleOptions order = o.schedule;
  order.late_sums = !o.xla;
  p.scheduled = passes::schedule(std::move(native), order);
  LIGNUM_RETURN_IF_ERROR(passes::verify_schedule(p.scheduled).with_context("after pass schedule"));
  p.memory = passes::plan_memory(p.scheduled, {.threads = o.threads, .share_rows = !o.xla});
  LIGNUM_RETURN_IF_ERROR(passes::verify_memory(p.scheduled, p.memory).with_context("after pass memory"));
  return p;
}

}  // namespace

Result<Program> make_program(const ProgramOptions& o) {
  const Done done = verified(o.dump);
  if (o.vocab_tiling > 1 && o.model.logit_softcap > 0)
    return user_error(
        "num_vocab_tiling={}: logits with final_logit_softcapping={} are held whole; set 0 or 1",
        o.vocab_tiling, o.model.logit_softcap);
  if (o.model.learnt_positions && o.shape.sequence > o.model.max_position)
    return user_error("max_target_length={}: the model has a table of {} positions; set it to at most that",
                      o.shape.sequence, o.model.max_position);
  models::Shape shape = o.shape;
  shape.loss_tile = models::loss_tile(shape.batch * shape.sequence / o.mesh.ranks(), o.vocab_tiling);
  std::vector<std::string> notes = o.notes;
  LIGNUM_ASSIGN_OR_RETURN(const bool quantised_head,
                          passes::quantises(o.quantization, "decoder/logits_dense"));
  if (quantised_head) {
    if (o.vocab_tiling > 1)
      notes.push_back(fmt::format(
          "num_vocab_tiling={}: no effect, the logits of a quantised head are held whole", o.vocab_tiling));
    shape.loss_tile = 0;
  }
  const models::Head head = o.logits                     ? models::Head::logits
                            : o.outputs == Outputs::loss ? models::Head::loss
                                                         : models::Head::gradients;
  shape.rounding_keys =
      o.outputs != Outputs::loss &&
      std::any_of(o.quantization.begin(), o.quantization.end(), [](const passes::QuantizationRule& r) {
        return r.weight_dtype && r.bwd_dtype && r.rounding_seed;
      });
  ir::Graph g = models::forward(o.model, shape, head);
  LIGNUM_RETURN_IF_ERROR(done("forward", g));
  std::vector<passes::WatchedOperand> watched;
  if (!o.quantization.empty()) {
    LIGNUM_ASSIGN_OR_RETURN(passes::Quantised quantised,
                            passes::quantise(g, o.quantization, o.ranges, o.quantised_layers));
    g = std::move(quantised.graph);
    LIGNUM_RETURN_IF_ERROR(done("quantise", g));
    add_rule_notes(o.quantization, quantised.dots, notes);
  }
  if (o.outputs != Outputs::loss) {
    const ir::Graph forward = g;
    g = passes::autodiff(g);
    LIGNUM_RETURN_IF_ERROR(done("autodiff", g));
    g = passes::remat(g, o.disabled.contains("remat") ? passes::RematPolicy{true, {}, {}} : o.remat);
    LIGNUM_RETURN_IF_ERROR(done("remat", g));
    add_remat_notes(o, forward, g, notes);
    if (o.watch.any()) {
      passes::Watched with = passes::watch_quantization(g, o.watch);
      g = std::move(with.graph);
      watched = std::move(with.operands);
      LIGNUM_RETURN_IF_ERROR(done("watch", g));
    }
  }
  g = passes::offload(g,
                      o.outputs == Outputs::loss ? std::set<std::string, std::less<>>() : o.remat.offloaded,
                      o.host_parameters);
  LIGNUM_RETURN_IF_ERROR(done("offload", g));
  if (o.outputs != Outputs::loss) {
    g = passes::accumulate(g, o.accumulation);
    LIGNUM_RETURN_IF_ERROR(done("accumulate", g));
    g = o.outputs == Outputs::state ? passes::add_update(g, o.optimizer) : passes::add_mean_gradients(g);
    LIGNUM_RETURN_IF_ERROR(done("update", g));
  }
  LIGNUM_ASSIGN_OR_RETURN(
      Program p,
      finish(std::move(g), {o.mesh, o.pipeline, o.schedule, !o.disabled.contains("fuse"), o.xla, o.threads},
             done));
  add_cut_tile_notes(*p.local, notes);
  p.notes = std::move(notes);
  p.watched = std::move(watched);
  return p;
}

Result<Program> make_generation_program(const GenerationOptions& o) {
  const Done done = verified(o.dump);
  ir::Graph g = models::generation_step(o.model, o.shape);
  LIGNUM_RETURN_IF_ERROR(done("generation", g));
  return finish(std::move(g), {.threads = o.threads}, done);
}

}  // namespace lignum::plan
