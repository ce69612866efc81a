#include "passes/quantise.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <regex>

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

class Quantiser {
 public:
  Quantiser(const std::vector<Rule>& rules, std::vector<int64_t>& dots) : rules_(rules), dots_(dots) {}

  // carries: params that come first and are no weights.
  Graph run(const Graph& from, int64_t carries) {
    return ir::rewrite(
        from, [&](Graph& to, int32_t, const Node& node, std::span<const Value> inputs) -> std::vector<Value> {
          if (node.kind == "scan") {
            Node scan = node;
            scan.inputs.assign(inputs.begin(), inputs.end());
            scan.body = std::make_shared<Graph>(run(*node.body, ir::scan_of(node).carry));
            return to.results(to.add(std::move(scan)));
          }
          if (node.kind != "matmul" || !node.attrs.get<Dims>("batch_a").empty()) return {};
          const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& r) {
            return (r.what.op_names.empty() || r.what.op_names.contains("dot_general")) &&
                   std::regex_match(node.tag.path, r.path);
          });
          if (rule == rules_.end() || !rule->what.weight_dtype) return {};
          ++dots_[static_cast<size_t>(rule - rules_.begin())];
          return {dot(to, node, inputs, carries, rule->what)};
        });
  }

 private:
  static Value dot(Graph& to, const Node& node, std::span<const Value> inputs, int64_t carries,
                   const QuantizationRule& rule) {
    ops::Builder b(to);
    b.origin = node.origin;
    std::vector<Value> operands, scales;
    for (size_t i = 0; i < 2; ++i) {
      const std::optional<Value> weight = parameter(to, inputs[i], carries);
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
      const ops::Quantised q =
          ops::quantised(b, weight.value_or(inputs[i]), as, *format, weight ? rule.weight : rule.act,
                         std::move(dims), weight ? "" : "quantization");
      operands.push_back(q.q);
      scales.push_back(q.scale);
    }
    b.tag = node.tag;
    ir::Attrs attrs = node.attrs;
    attrs.set("dtype", std::string(dtype_name(node.types[0].dtype)));
    attrs.set("bwd_dtype", std::string(dtype_name(*rule.bwd_dtype)));
    attrs.set("bwd_calibration", rule.bwd.text());
    attrs.set("bwd_channelwise", rule.channelwise);
    return b.add("scaled_matmul", {operands[0], operands[1], scales[0], scales[1]}, std::move(attrs));
  }

  // The parameter that v is, as it is or cast.
  static std::optional<Value> parameter(const Graph& g, Value v, int64_t carries) {
    while (g.node(v).kind == "convert") v = g.node(v).inputs[0];
    const auto at = std::find(g.params().begin(), g.params().end(), v.node);
    if (at == g.params().end() || at - g.params().begin() < carries) return std::nullopt;
    return v;
  }

  const std::vector<Rule>& rules_;
  std::vector<int64_t>& dots_;
};

}  // namespace

Result<Quantised> quantise(const Graph& forward, const std::vector<QuantizationRule>& rules) {
  std::vector<Rule> compiled;
  for (const QuantizationRule& r : rules) {
    if (r.weight_dtype && !r.bwd_dtype)
      return user_error(
          "the quantization rule for module_path '{}' has no bwd_qtype: gradients of quantised dots are "
          "quantised "
          "too; give it, float8_e5m2 say",
          r.module_path);
    try {
      compiled.push_back({r, std::regex(r.module_path, std::regex::ECMAScript | std::regex::optimize)});
    } catch (const std::regex_error&) {
      return user_error("module_path '{}' of a quantization rule is not a regular expression", r.module_path);
    }
  }
  Quantised out;
  out.dots.resize(rules.size());
  out.graph = Quantiser(compiled, out.dots).run(forward, 0);
  return out;
}

}  // namespace lignum::passes
