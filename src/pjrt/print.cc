#include "pjrt/print.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ops/emit.h"
#include "ops/op.h"

namespace lignum::pjrt {
namespace {

using ir::Graph;
using ir::Node;
using ir::Scan;
using ir::Type;
using ir::Value;

class Printer final : public ops::Emitter {
 public:
  explicit Printer(const PrintOptions& options) : options_(options) {}

  std::string module(const Graph& g) {
    out_ = fmt::format(
        "module @{} attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {} : i32}} {{\n",
        symbol(g.name), options_.replicas);
    std::vector<std::string> arguments;
    const size_t params = g.params().size();
    out_ += "  func.func public @main(\n";
    for (size_t i = 0; i < params; ++i) {
      const auto p = static_cast<int64_t>(i);
      arguments.push_back(fmt::format("%arg{}", i));
      out_ += fmt::format("      {}: {}{}{}  // {}\n", arguments[i], ops::mlir_type(g.type(g.param_value(p))),
                          donation(g, static_cast<int32_t>(i)), i + 1 == params ? "" : ",", g.param_name(p));
    }
    out_ += "  ) -> (\n";
    for (size_t i = 0; i < g.outputs().size(); ++i) {
      const ir::Output& o = g.outputs()[i];
      out_ += fmt::format("      {}{}  // {}\n", ops::mlir_type(g.type(o.value)),
                          i + 1 == g.outputs().size() ? "" : ",", o.name);
    }
    out_ += "  ) {\n";
    indent_ = 2;
    const std::vector<std::string> results = graph(g, arguments);
    line(fmt::format("return {}{}", fmt::join(results, ", "),
                     results.empty() ? "" : fmt::format(" : {}", fmt::join(output_types(g), ", "))));
    out_ += "  }\n}\n";
    return std::move(out_);
  }

  // ops::Emitter
  std::string fresh() override { return fmt::format("%v{}", names_++); }
  void line(std::string text) override {
    out_.append(2 * indent_, ' ');
    out_ += text;
    out_ += '\n';
  }
  std::string replica_groups(std::string_view axis) override {
    const auto& groups = find(axis).groups;
    std::vector<std::string> rows;
    for (const auto& group : groups) rows.push_back(fmt::format("[{}]", fmt::join(group, ", ")));
    return fmt::format("dense<[{}]> : tensor<{}x{}xi64>", fmt::join(rows, ", "), groups.size(),
                       groups[0].size());
  }
  int64_t axis_size(std::string_view axis) override { return find(axis).size(); }

 private:
  const ReplicaAxis& find(std::string_view axis) const {
    const auto it = std::find_if(options_.axes.begin(), options_.axes.end(),
                                 [&](const ReplicaAxis& a) { return a.name == axis; });
    LIGNUM_CHECK(it != options_.axes.end(), "no mesh axis {}", axis);
    return *it;
  }

  static std::string symbol(const std::string& name) {
    std::string out = name.empty() ? "step" : name;
    for (char& c : out)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    return std::isdigit(static_cast<unsigned char>(out[0])) != 0 ? "_" + out : out;
  }

  // The first output that replaces param p; memory can be given once.
  std::string donation(const Graph& g, int32_t p) const {
    if (!options_.donate) return "";
    for (size_t i = 0; i < g.outputs().size(); ++i)
      if (g.outputs()[i].alias == p) return fmt::format(" {{tf.aliasing_output = {} : i32}}", i);
    return "";
  }

  static std::vector<std::string> output_types(const Graph& g) {
    std::vector<std::string> out;
    for (const ir::Output& o : g.outputs()) out.push_back(ops::mlir_type(g.type(o.value)));
    return out;
  }

  // Prints the nodes of g, whose params have the given names; returns the names of its outputs.
  std::vector<std::string> graph(const Graph& g, const std::vector<std::string>& params) {
    std::vector<std::vector<std::string>> names(g.nodes().size());
    const auto name_of = [&](Value v) {
      return names[static_cast<size_t>(v.node)][static_cast<size_t>(v.index)];
    };
    for (size_t i = 0; i < params.size(); ++i) names[static_cast<size_t>(g.params()[i])] = {params[i]};
    for (int32_t id = 0; id < static_cast<int32_t>(g.nodes().size()); ++id) {
      const Node& n = g.node(id);
      if (n.kind == "param") continue;
      std::vector<std::string> in;
      for (const Value v : n.inputs) in.push_back(name_of(v));
      auto& results = names[static_cast<size_t>(id)];
      if (n.kind == "await") {  // no line of its own: the collective's value is its start's
        results = {in[0]};
        continue;
      }
      line(fmt::format("// %{} {} {} {}", id, n.kind, n.tag.path, ir::role_name(n.tag.role)));
      if (n.kind == "scan") {
        results = scan(n, in);
      } else {
        const ops::NodeSite site(g, n);
        results = ops::emit_node(*this, ops::get_op(n.kind), site.site, in);
      }
      LIGNUM_CHECK(results.size() == n.types.size(), "{} printed {} results of {}", n.kind, results.size(),
                   n.types.size());
    }
    std::vector<std::string> out;
    for (const ir::Output& o : g.outputs()) out.push_back(name_of(o.value));
    return out;
  }

  std::string integer(int64_t value) {
    std::string name = fresh();
    line(fmt::format("{} = stablehlo.constant dense<{}> : tensor<i32>", name, value));
    return name;
  }

  // The loop carries: the counter, the carries, then the stacks as they are (sliced), the invariants, and the
  // buffers of stacked results.
  std::vector<std::string> scan(const Node& n, const std::vector<std::string>& in) {
    const Scan s = ir::scan_of(n);
    const Graph& body = *n.body;
    const auto carries = static_cast<size_t>(s.carry), stacks = static_cast<size_t>(s.sliced);
    std::vector<std::string> initial = {integer(0)}, types = {"tensor<i32>"};
    initial.insert(initial.end(), in.begin(), in.end());
    for (size_t i = 0; i < in.size(); ++i) {
      Type t = body.type(body.param_value(static_cast<int64_t>(i)));
      if (i >= carries && i < carries + stacks) t.dims.insert(t.dims.begin(), s.trip);
      types.push_back(ops::mlir_type(t));
    }
    for (size_t r = carries; r < n.types.size(); ++r) {
      types.push_back(ops::mlir_type(n.types[r]));
      initial.push_back(fresh());
      line(fmt::format("{} = stablehlo.constant dense<{}> : {}", initial.back(), zero(n.types[r].dtype),
                       types.back()));
    }
    std::vector<std::string> inside, bindings;
    for (const std::string& value : initial) {
      inside.push_back(fresh());
      bindings.push_back(fmt::format("{} = {}", inside.back(), value));
    }
    const std::string result = fresh();
    const std::string all = fmt::format("{}", fmt::join(types, ", "));
    line(fmt::format("{}{} = stablehlo.while({}) : {}", result,
                     types.size() == 1 ? "" : fmt::format(":{}", types.size()), fmt::join(bindings, ", "),
                     all));
    line("cond {");
    ++indent_;
    const std::string trip = integer(s.trip), more = fresh();
    line(fmt::format("{} = stablehlo.compare LT, {}, {} : (tensor<i32>, tensor<i32>) -> tensor<i1>", more,
                     inside[0], trip));
    line(fmt::format("stablehlo.return {} : tensor<i1>", more));
    --indent_;
    line("} do {");
    ++indent_;
    std::vector<std::string> next = iteration(n, s, inside);
    line(fmt::format("stablehlo.return {} : {}", fmt::join(next, ", "), all));
    --indent_;
    line("}");
    std::vector<std::string> out;
    const auto place = [&](size_t i) { return fmt::format("{}#{}", result, i); };
    for (size_t i = 0; i < carries; ++i) out.push_back(place(1 + i));
    for (size_t r = carries; r < n.types.size(); ++r) out.push_back(place(1 + in.size() + r - carries));
    return out;
  }

  // One iteration; returns the loop's next values.
  std::vector<std::string> iteration(const Node& n, const Scan& s, const std::vector<std::string>& inside) {
    const Graph& body = *n.body;
    const auto carries = static_cast<size_t>(s.carry), stacks = static_cast<size_t>(s.sliced);
    std::string row = inside[0];
    if (s.reversed) {
      const std::string last = integer(s.trip - 1);
      row = fresh();
      line(fmt::format("{} = stablehlo.subtract {}, {} : tensor<i32>", row, last, inside[0]));
    }
    const std::string origin = integer(0);
    std::vector<std::string> params(inside.begin() + 1,
                                    inside.begin() + 1 + static_cast<std::ptrdiff_t>(body.params().size()));
    for (size_t i = carries; i < carries + stacks; ++i)
      params[i] =
          row_of(params[i], body.type(body.param_value(static_cast<int64_t>(i))), s.trip, row, origin);
    const std::vector<std::string> results = graph(body, params);

    std::vector<std::string> next = {fresh()};
    const std::string one = integer(1);
    line(fmt::format("{} = stablehlo.add {}, {} : tensor<i32>", next[0], inside[0], one));
    next.insert(next.end(), results.begin(), results.begin() + static_cast<std::ptrdiff_t>(carries));
    next.insert(next.end(), inside.begin() + 1 + static_cast<std::ptrdiff_t>(carries),
                inside.begin() + 1 + static_cast<std::ptrdiff_t>(body.params().size()));
    for (size_t r = carries; r < results.size(); ++r) {
      const std::string& buffer = inside[1 + body.params().size() + r - carries];
      next.push_back(with_row(buffer, results[r], body.type(body.outputs()[r].value), s.trip, row, origin));
    }
    return next;
  }

  // Start indices of row `row` of a stack of tensors of rank n, and their types.
  static std::string indices(size_t n, const std::string& row, const std::string& origin) {
    std::string out = row;
    for (size_t i = 0; i < n; ++i) out += ", " + origin;
    return out;
  }
  static std::string index_types(size_t n) {
    std::string out = "tensor<i32>";
    for (size_t i = 0; i < n; ++i) out += ", tensor<i32>";
    return out;
  }
  static Type stack_of(Type t, int64_t rows) {
    t.dims.insert(t.dims.begin(), rows);
    return t;
  }
  std::string row_of(const std::string& stack, const Type& t, int64_t trip, const std::string& row,
                     const std::string& origin) {
    const Type one = stack_of(t, 1), all = stack_of(t, trip);
    const std::string slice = fresh(), out = fresh();
    line(fmt::format("{} = stablehlo.dynamic_slice {}, {}, sizes = [{}] : ({}, {}) -> {}", slice, stack,
                     indices(t.dims.size(), row, origin), fmt::join(one.dims, ", "), ops::mlir_type(all),
                     index_types(t.dims.size()), ops::mlir_type(one)));
    line(fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", out, slice, ops::mlir_type(one),
                     ops::mlir_type(t)));
    return out;
  }
  std::string with_row(const std::string& buffer, const std::string& value, const Type& t, int64_t trip,
                       const std::string& row, const std::string& origin) {
    const Type one = stack_of(t, 1), all = stack_of(t, trip);
    const std::string slice = fresh(), out = fresh();
    line(fmt::format("{} = stablehlo.reshape {} : ({}) -> {}", slice, value, ops::mlir_type(t),
                     ops::mlir_type(one)));
    line(fmt::format("{} = stablehlo.dynamic_update_slice {}, {}, {} : ({}, {}, {}) -> {}", out, buffer,
                     slice, indices(t.dims.size(), row, origin), ops::mlir_type(all), ops::mlir_type(one),
                     index_types(t.dims.size()), ops::mlir_type(all)));
    return out;
  }
  static std::string_view zero(DType d) {
    if (d == DType::pred) return "false";
    return dtype_is_float(d) ? "0.0" : "0";
  }

  const PrintOptions& options_;
  std::string out_;
  size_t indent_ = 0;
  int64_t names_ = 0;
};

Status check_axes(const PrintOptions& options) {
  for (const ReplicaAxis& axis : options.axes) {
    std::set<int64_t> named;
    for (const auto& group : axis.groups) {
      if (static_cast<int64_t>(group.size()) != axis.size() || group.empty())
        return user_error("mesh axis {}: groups of {} and of {} replicas", axis.name, axis.size(),
                          group.size());
      named.insert(group.begin(), group.end());
    }
    const auto n = static_cast<int64_t>(named.size());
    if (n != options.replicas || n != axis.size() * static_cast<int64_t>(axis.groups.size()) ||
        *named.begin() != 0 || *named.rbegin() != n - 1)
      return user_error("mesh axis {}: its groups do not name each of {} replicas once", axis.name,
                        options.replicas);
  }
  return {};
}

// Collectives against the mesh: what the type rules cannot know.
Status check_collectives(const Graph& local, const PrintOptions& options) {
  Status status;
  ir::for_each_node(local, [&](const Graph& g, int32_t id, int) {
    const Node& n = g.node(id);
    if (!status.ok() || n.kind == "param" || n.kind == "scan") return;
    if (!n.attrs.has<std::string>("axis") || !n.attrs.has<int64_t>("group")) return;
    const auto& name = n.attrs.get<std::string>("axis");
    const auto axis = std::find_if(options.axes.begin(), options.axes.end(),
                                   [&](const ReplicaAxis& a) { return a.name == name; });
    if (axis == options.axes.end()) {
      status = user_error("{} ({}): the mesh has no axis {}", n.kind, n.tag.path, name);
    } else if (axis->size() != n.attrs.get<int64_t>("group")) {
      status = user_error("{} ({}): a group of {} ranks, but mesh axis {} has {}", n.kind, n.tag.path,
                          n.attrs.get<int64_t>("group"), name, axis->size());
    }
  });
  return status;
}

}  // namespace

Result<std::string> print_stablehlo(const Graph& local, const PrintOptions& options) {
  if (local.stage != ir::Stage::local)
    return user_error("graph {} is not a LOCAL one: only the partitioned step can be printed", local.name);
  if (options.replicas < 1) return user_error("{} replicas; at least 1", options.replicas);
  LIGNUM_RETURN_IF_ERROR(ops::verify(local).with_context("printing StableHLO"));
  LIGNUM_RETURN_IF_ERROR(check_axes(options));
  LIGNUM_RETURN_IF_ERROR(check_collectives(local, options));
  return Printer(options).module(local);
}

}  // namespace lignum::pjrt
