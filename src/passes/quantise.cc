#include "passes/quantise.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <regex>

#include "ir/copy.h"
#include "ops/op.h"

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

class Quantiser {
 public:
  Quantiser(const std::vector<Rule>& rules, const QuantizationRanges& ranges, std::vector<int64_t>& dots)
      : rules_(rules), ranges_(ranges), dots_(dots) {}

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
          const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& r) {
            return (r.what.op_names.empty() || r.what.op_names.contains("dot_general")) &&
                   std::regex_match(node.tag.path, r.path);
          });
          if (rule == rules_.end() || !rule->what.weight_dtype) return {};
          ++dots_[static_cast<size_t>(rule - rules_.begin())];
          return {dot(to, node, inputs, carries, rule->what, loop)};
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

  // The recorded range of an operand of a dot, where its calibration asks for it; a missing one is an error
  // of the whole.
  std::optional<Value> range(Graph& to, const Node& dot, std::string_view operand, const ops::Calibration& c,
                             Loop* loop) {
    if (!is_static(c)) return std::nullopt;
    static const std::vector<double> kNone;
    const std::vector<double>* recorded = &kNone;
    if (const auto of_dot = ranges_.find(dot.tag.path); of_dot != ranges_.end())
      if (const auto it = of_dot->second.find(operand); it != of_dot->second.end()) recorded = &it->second;
    const int64_t trip = loop == nullptr ? 1 : loop->trip, first = loop == nullptr ? 0 : dot.tag.layer_begin;
    std::vector<double> numbers;
    for (int64_t i = 0; i < trip; ++i) {
      const auto layer = static_cast<size_t>(first + i * (dot.tag.layer_end - dot.tag.layer_begin) / trip);
      const bool known = layer < recorded->size() && (*recorded)[layer] >= 0;
      if (!known && status_.ok())
        status_ = user_error(
            "load_quant_stats_path: there is no range of {} of {}{}; record it (save_quant_stats_path) by a "
            "run in "
            "which that dot is quantised",
            operand, dot.tag.path, loop == nullptr ? "" : fmt::format(" in layer {}", layer));
      numbers.push_back(known ? (*recorded)[layer] : 1);
    }
    ops::Builder b(to);
    b.tag = dot.tag;
    b.tag.name.clear();
    if (loop == nullptr) return numbers_of(b, {}, numbers);
    for (const auto& [known, value] : loop->ranges)
      if (known == numbers) return value;
    const Value made = to.param(fmt::format("range:{}:{}", operand, dot.tag.path), {DType::f32, {}, {}});
    loop->ranges.emplace_back(std::move(numbers), made);
    return made;
  }

  Value dot(Graph& to, const Node& node, std::span<const Value> inputs, int64_t carries,
            const QuantizationRule& rule, Loop* loop) {
    ops::Builder b(to);
    b.origin = node.origin;
    std::vector<Value> operands, scales;
    for (size_t i = 0; i < 2; ++i) {
      const std::optional<Value> weight = parameter(to, inputs[i], carries);
      const ops::Calibration& calibration = weight ? rule.weight : rule.act;
      const auto& format = weight ? rule.weight_dtype : rule.act_dtype;
      const DType as = to.type(inputs[i]).dtype;
      const Node& producer = to.node(inputs[i]);
      b.tag = producer.kind == "param" ? node.tag : producer.tag;
      b.tag.name.clear();
      Dims dims(to.type(inputs[i]).dims.size(), 1);
      if (!format) {
        operands.push_back(inputs[i]);
        scales.push_back(b.constant(as, dims, 1));
        continue;
      }
      if (rule.channelwise) {
        dims = to.type(inputs[i]).dims;
        for (const int64_t d : node.attrs.get<Dims>(i == 0 ? "contract_a" : "contract_b"))
          dims[static_cast<size_t>(d)] = 1;
      }
      // A parameter is quantised from its master, as if it were cast first: its gradient is masked in f32,
      // after the sum over ranks.
      const ops::Quantised q = ops::quantised(b, weight.value_or(inputs[i]), as, *format, calibration,
                                              std::move(dims), weight ? "" : "quantization",
                                              range(to, node, weight ? "weight" : "act", calibration, loop));
      operands.push_back(q.q);
      scales.push_back(q.scale);
    }
    b.tag = node.tag;
    ir::Attrs attrs = node.attrs;
    attrs.set("dtype", std::string(dtype_name(node.types[0].dtype)));
    attrs.set("bwd_dtype", std::string(dtype_name(*rule.bwd_dtype)));
    attrs.set("bwd_calibration", rule.bwd.text());
    attrs.set("bwd_channelwise", rule.channelwise);
    std::vector<Value> in = {operands[0], operands[1], scales[0], scales[1]};
    if (const auto of_gradient = range(to, node, "bwd", rule.bwd, loop)) in.push_back(*of_gradient);
    return b.add("scaled_matmul", std::move(in), std::move(attrs));
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
  std::vector<int64_t>& dots_;
  Status status_;
};

}  // namespace

Result<Quantised> quantise(const Graph& forward, const std::vector<QuantizationRule>& rules,
                           const QuantizationRanges& ranges) {
  std::vector<Rule> compiled;
  for (const QuantizationRule& r : rules) {
    if (r.weight_dtype && !r.bwd_dtype)
      return user_error(
          "the quantization rule for module_path '{}' has no bwd_qtype: gradients of quantised dots are "
          "quantised "
          "too; give it, float8_e5m2 say",
          r.module_path);
    if (r.weight_dtype && is_static(r.bwd) && r.channelwise && !(r.weight.whole() && r.act.whole()))
      return user_error(
          "the quantization rule for module_path '{}': static gradients need one scale a tensor of weights "
          "and "
          "activations; set quantization_scales=tensor (a rule's disable_channelwise_axes), or make them "
          "static",
          r.module_path);
    try {
      compiled.push_back({r, std::regex(r.module_path, std::regex::ECMAScript | std::regex::optimize)});
    } catch (const std::regex_error&) {
      return user_error("module_path '{}' of a quantization rule is not a regular expression", r.module_path);
    }
  }
  Quantised out;
  out.dots.resize(rules.size());
  LIGNUM_ASSIGN_OR_RETURN(out.graph, Quantiser(compiled, ranges, out.dots).run(forward));
  return out;
}

}  // namespace lignum::passes
