#include "passes/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <regex>

#include "base/rng.h"
#include "ir/copy.h"
#include "ops/op.h"
#include "ops/rules.h"
#include "ops/scaled_matmul/backward.h"

namespace lignum::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;
using Dims = std::vector<int64_t>;

struct Rule {
  const QuantizationRule& what;
  std::regex path;
};

bool is_static(const ops::Calibration& c) { return c.method == ops::Calibration::Method::recorded; }

// The graph with its last `count` params before those from `at` on.
Graph with_params_at(const Graph& g, int64_t at, int64_t count) {
  Graph out;
  out.name = g.name;
  out.stage = g.stage;
  std::map<Value, Value> map;
  std::vector<int32_t> params = g.params();
  std::rotate(params.begin() + at, params.end() - count, params.end());
  for (const int32_t id : params) ir::copy_node(g.node(id), id, out, map);
  for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id)
    if (g.node(id).kind != "param") ir::copy_node(g.node(id), id, out, map);
  for (const ir::Output& o : g.outputs()) out.output(o.name, map.at(o.value), o.alias);
  return out;
}

Result<std::vector<Rule>> compile(const std::vector<QuantizationRule>& rules) {
  std::vector<Rule> compiled;
  for (const QuantizationRule& r : rules) {
    if (r.weight_dtype && r.bwd_dtype && is_static(r.bwd) && r.channelwise && r.block == 0 &&
        !(r.weight.whole() && r.act.whole()))
      return user_error(
          "the quantization rule for module_path '{}': static gradients need one scale a tensor of weights "
          "and activations; set quantization_scales=tensor (a rule's disable_channelwise_axes), or make them "
          "static",
          r.module_path);
    try {
      compiled.push_back({r, std::regex(r.module_path, std::regex::ECMAScript | std::regex::optimize)});
    } catch (const std::regex_error&) {
      return user_error("module_path '{}' of a quantization rule is not a regular expression", r.module_path);
    }
  }
  return compiled;
}

// The first rule for the dots of a path; end: there is none, or it leaves them alone.
std::vector<Rule>::const_iterator rule_of(const std::vector<Rule>& rules, const std::string& path) {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) {
    return (r.what.op_names.empty() || r.what.op_names.contains("dot_general")) &&
           std::regex_match(path, r.path);
  });
  return rule == rules.end() || rule->what.weight_dtype ? rule : rules.end();
}

class Quantiser {
 public:
  Quantiser(const std::vector<Rule>& rules, const QuantizationRanges& ranges, const QuantisedLayers& layers,
            std::vector<int64_t>& dots)
      : rules_(rules), ranges_(ranges), layers_(layers), dots_(dots) {}

  Result<Graph> run(const Graph& from) {
    Graph g = run(from, 0, nullptr);
    LIGNUM_RETURN_IF_ERROR(status_);
    return g;
  }

 private:
  // Ranges that a loop's body reads, by their numbers in each trip: dots of one operand share it. Params of
  // the body that come after all others.
  struct Loop {
    int64_t trip;
    std::vector<std::pair<std::vector<double>, Value>> ranges;
  };

  // carries: params that come first and are no weights. loop: whose body it is; null: none's.
  Graph run(const Graph& from, int64_t carries, Loop* loop) {
    return ir::rewrite(
        from, [&](Graph& to, int32_t, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
          if (node.kind == "scan") return scan(to, node, inputs);
          if (node.kind != "matmul" || !node.attrs.get<Dims>("batch_a").empty()) return {};
          const bool in_layer = node.tag.layer_end > 0;
          if (in_layer && (node.tag.layer_begin < layers_.begin || node.tag.layer_begin >= layers_.end))
            return {};
          const auto rule = rule_of(rules_, node.tag.path);
          if (rule == rules_.end()) return {};
          ++dots_[static_cast<size_t>(rule - rules_.begin())];
          auto made = dot(to, node, inputs, carries, rule->what, loop);
          if (made.ok()) return {*made};
          if (status_.ok())
            status_ = made.status().with_context(fmt::format("quantization rule {} (module_path {}), {}",
                                                             rule - rules_.begin() + 1,
                                                             rule->what.module_path, node.tag.path));
          return {};
        });
  }

  std::vector<Value> scan(Graph& to, const Node& node, std::span<const Value> inputs) {
    ir::Scan s = ir::scan_of(node);
    Loop loop{s.trip, {}};
    Graph body = run(*node.body, s.carry, &loop);
    Node scan = node;
    scan.inputs.assign(inputs.begin(), inputs.end());
    if (const auto count = static_cast<int64_t>(loop.ranges.size()); count > 0) {
      body = with_params_at(body, s.carry + s.sliced, count);
      ops::Builder b(to);
      b.tag = node.tag;
      std::vector<Value> stacks;
      for (const auto& [numbers, value] : loop.ranges) stacks.push_back(numbers_of(b, {s.trip}, numbers));
      scan.inputs.insert(scan.inputs.begin() + s.carry + s.sliced, stacks.begin(), stacks.end());
      s.sliced += count;
      scan.attrs = ir::scan_attrs(s);
    }
    scan.body = std::make_shared<Graph>(std::move(body));
    return to.results(to.add(std::move(scan)));
  }

  static Value numbers_of(ops::Builder& b, Dims dims, const std::vector<double>& numbers) {
    return b.add(
        "constant", {},
        {{"dtype", std::string(dtype_name(DType::f32))}, {"dims", std::move(dims)}, {"values", numbers}});
  }

  // The recorded range of an operand of a dot, where its calibration asks for it.
  Result<std::optional<Value>> range(Graph& to, const Node& dot, std::string_view operand,
                                     const ops::Calibration& c, Loop* loop) const {
    if (!is_static(c)) return std::optional<Value>();
    static const std::vector<double> kNone;
    const std::vector<double>* recorded = &kNone;
    if (const auto of_dot = ranges_.find(dot.tag.path); of_dot != ranges_.end())
      if (const auto it = of_dot->second.find(operand); it != of_dot->second.end()) recorded = &it->second;
    const int64_t trip = loop == nullptr ? 1 : loop->trip, first = loop == nullptr ? 0 : dot.tag.layer_begin;
    std::vector<double> numbers;
    for (int64_t i = 0; i < trip; ++i) {
      const auto layer = static_cast<size_t>(first + i * (dot.tag.layer_end - dot.tag.layer_begin) / trip);
      if (layer >= recorded->size() || (*recorded)[layer] < 0)
        return user_error(
            "load_quant_stats_path: there is no range of {}{}; record it (save_quant_stats_path) by a run in "
            "which that dot is quantised",
            operand, loop == nullptr ? "" : fmt::format(" in layer {}", layer));
      numbers.push_back((*recorded)[layer]);
    }
    ops::Builder b(to);
    b.tag = dot.tag;
    b.tag.name.clear();
    if (loop == nullptr) return std::optional(numbers_of(b, {}, numbers));
    for (const auto& [known, value] : loop->ranges)
      if (known == numbers) return std::optional(value);
    const Value made = to.param(fmt::format("range:{}:{}", operand, dot.tag.path), {DType::f32, {}, {}});
    loop->ranges.emplace_back(std::move(numbers), made);
    return std::optional(made);
  }

  Result<Value> dot(Graph& to, const Node& node, std::span<const Value> inputs, int64_t carries,
                    const QuantizationRule& rule, Loop* loop) const {
    ops::Builder b(to);
    b.origin = node.origin;
    std::vector<Value> operands, scales, more;
    std::optional<int64_t> which_weight;
    for (size_t i = 0; i < 2; ++i) {
      const std::optional<Value> weight = parameter(to, inputs[i], carries);
      if (weight) which_weight = static_cast<int64_t>(i);
      const auto& format = weight ? rule.weight_dtype : rule.act_dtype;
      const DType as = to.type(inputs[i]).dtype;
      const Node& producer = to.node(inputs[i]);
      b.tag = producer.kind == "param" ? node.tag : producer.tag;
      b.tag.name.clear();
      if (!format) {
        operands.push_back(inputs[i]);
        scales.push_back(b.constant(as, Dims(to.type(inputs[i]).dims.size(), 1), 1));
        continue;
      }
      LIGNUM_ASSIGN_OR_RETURN(
          Dims dims,
          scale_dims(to.type(inputs[i]), node.attrs.get<Dims>(i == 0 ? "contract_a" : "contract_b"),
                     weight.has_value(), rule));
      const ops::Calibration& calibration = weight ? rule.weight : rule.act;
      ops::QuantiseInputs with;
      LIGNUM_ASSIGN_OR_RETURN(with.range, range(to, node, weight ? "weight" : "act", calibration, loop));
      // A parameter is quantised from its master, as if it were cast first: its gradient is masked in f32,
      // after the sum over ranks.
      const ops::Quantised q = ops::quantised(b, weight.value_or(inputs[i]), as, *format, calibration,
                                              std::move(dims), weight ? "" : "quantization", with);
      operands.push_back(q.q);
      scales.push_back(q.scale);
    }
    b.tag = node.tag;
    ir::Attrs attrs = node.attrs;
    attrs.set("dtype", std::string(dtype_name(node.types[0].dtype)));
    if (rule.bwd_dtype) {
      ops::BackwardDots how{*rule.bwd_dtype, rule.bwd, rule.channelwise, which_weight, 0,
                            rule.block,      rule.act};
      LIGNUM_ASSIGN_OR_RETURN(how.tile, gradient_tile(to, node, inputs, which_weight, rule));
      LIGNUM_ASSIGN_OR_RETURN(const std::optional<Value> of_gradient, range(to, node, "bwd", rule.bwd, loop));
      if (of_gradient) more.push_back(*of_gradient);
      if (rule.rounding_seed) {
        how.stream = std::bit_cast<int64_t>(Random(*rule.rounding_seed, node.tag.path).bits(0));
        more.push_back(rounding_keys(to));
      }
      how.set(attrs);
    }
    for (const auto* list : {&scales, &more}) operands.insert(operands.end(), list->begin(), list->end());
    return b.add("scaled_matmul", std::move(operands), std::move(attrs));
  }

  // The dims of an operand's scales.
  static Result<Dims> scale_dims(const ir::Type& x, const Dims& contract, bool is_weight,
                                 const QuantizationRule& rule) {
    Dims dims(x.dims.size(), 1);
    const int64_t innermost = contract.back();
    const auto cut = [&](int64_t dim, const TileSize& tile, std::string_view key) -> Status {
      auto& d = dims[static_cast<size_t>(dim)];
      LIGNUM_ASSIGN_OR_RETURN(const int64_t size, divided(x, dim, tile, key));
      d = x.dims[static_cast<size_t>(dim)] / size;
      return {};
    };
    if (rule.block > 0) {
      dims = x.dims;
      LIGNUM_RETURN_IF_ERROR(cut(innermost, {rule.block}, kBlockKey));
      // The innermost of the others: a weight's blocks are squares; in its gradient's dot the activations'
      // tiles lie along it.
      const Dims free = ops::others(x.rank(), {contract});
      if (is_weight && !free.empty()) LIGNUM_RETURN_IF_ERROR(cut(free.back(), {rule.block}, kBlockKey));
      if (!is_weight && !free.empty() && rule.bwd_dtype)
        LIGNUM_RETURN_IF_ERROR(divided(x, free.back(), {rule.block}, kBlockKey).status());
      return dims;
    }
    if (rule.channelwise) {
      dims = x.dims;
      for (const int64_t d : contract) dims[static_cast<size_t>(d)] = 1;
    }
    if (rule.tile.given()) LIGNUM_RETURN_IF_ERROR(cut(innermost, rule.tile, "tile_size"));
    return dims;
  }

  // Tiles along the innermost dim that the dot of the weight's gradient contracts; 0: none.
  static Result<int64_t> gradient_tile(const Graph& g, const Node& node, std::span<const Value> inputs,
                                       std::optional<int64_t> weight, const QuantizationRule& rule) {
    if (!weight || !rule.weight_grad_tile.given()) return 0;
    const ir::Type& x = g.type(inputs[static_cast<size_t>(1 - *weight)]);
    const Dims free =
        ops::others(x.rank(), {node.attrs.get<Dims>(*weight == 0 ? "contract_b" : "contract_a")});
    if (free.empty()) return 0;
    return divided(x, free.back(), rule.weight_grad_tile, "bwd_weight_grad_tile_size");
  }

  static constexpr std::string_view kBlockKey = "weight_block_size";

  static Result<int64_t> divided(const ir::Type& x, int64_t dim, const TileSize& tile, std::string_view key) {
    const int64_t n = x.dims[static_cast<size_t>(dim)];
    if (const int64_t size = tile.of(n); size > 0) return size;
    const std::string name = ops::name_of(x, dim);
    // The divisors on either side.
    const int64_t wanted = std::clamp<int64_t>(
        tile.size > 0 ? tile.size : std::llrint(static_cast<double>(n) * tile.part), 1, n);
    int64_t below = wanted, above = wanted;
    while (n % below != 0) --below;
    while (n % above != 0) ++above;
    return user_error(
        "{}={} does not divide {}, the size of {}; {}{} does, or leave these dots alone by a rule before",
        key, tile.size > 0 ? fmt::format("{}", tile.size) : fmt::format("{}", tile.part), n,
        name.empty() ? fmt::format("dim {}", dim) : name, below,
        above == below ? "" : fmt::format(" or {}", above));
  }

  // The last that were made: the layer's, where a body has several.
  static Value rounding_keys(const Graph& g) {
    for (auto id = static_cast<int32_t>(g.nodes().size()); id-- > 0;)
      if (g.node(id).tag.path == ops::kRoundingKeys && g.type({id, 0}).dims.size() == 1 &&
          g.node(id).kind == "elementwise")
        return {id, 0};
    LIGNUM_CHECK(false, "the graph has no {}", ops::kRoundingKeys);
    __builtin_unreachable();
  }

  // The parameter that v is, as it is or cast.
  static std::optional<Value> parameter(const Graph& g, Value v, int64_t carries) {
    while (g.node(v).kind == "convert") v = g.node(v).inputs[0];
    const auto at = std::find(g.params().begin(), g.params().end(), v.node);
    if (at == g.params().end() || at - g.params().begin() < carries) return std::nullopt;
    return v;
  }

  const std::vector<Rule>& rules_;
  const QuantizationRanges& ranges_;
  const QuantisedLayers& layers_;
  std::vector<int64_t>& dots_;
  Status status_;  // of the first dot that could not be
};

}  // namespace

int64_t TileSize::of(int64_t dim) const {
  const int64_t n = size > 0 ? size : std::llrint(static_cast<double>(dim) * part);  // to even, as Python
  return n > 0 && dim > 0 && dim % n == 0 ? n : 0;
}

Result<Quantised> quantise(const Graph& forward, const std::vector<QuantizationRule>& rules,
                           const QuantizationRanges& ranges, const QuantisedLayers& layers) {
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<Rule> compiled, compile(rules));
  Quantised out;
  out.dots.resize(rules.size());
  LIGNUM_ASSIGN_OR_RETURN(out.graph, Quantiser(compiled, ranges, layers, out.dots).run(forward));
  for (size_t i = 0; i < compiled.size(); ++i) {
    if (out.dots[i] > 0 || !rules[i].weight_dtype) continue;
    for (const char* embedding : {"token_embedder", "position_embedder"})
      if (std::regex_match(embedding, compiled[i].path))
        return user_error(
            "quantization rule {} (module_path {}): an embedding looks rows up, there is no dot to quantise; "
            "remove the rule (the head's dot is decoder/logits_dense)",
            i + 1, rules[i].module_path);
  }
  return out;
}

Result<bool> quantises(const std::vector<QuantizationRule>& rules, const std::string& path) {
  LIGNUM_ASSIGN_OR_RETURN(const std::vector<Rule> compiled, compile(rules));
  return rule_of(compiled, path) != compiled.end();
}

}  // namespace lignum::passes
