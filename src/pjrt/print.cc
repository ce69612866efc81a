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
      const ir::Type& type = g.type(g.param_value(p));
      out_ += fmt::format("      {}: {}{}{}  // {}\n", arguments[i], ops::mlir_type(type),
                          attributes({memory_kind(type), donation(g, static_cast<int32_t>(i))}),
                          i + 1 == params ? "" : ",", g.param_name(p));
    }
    out_ += "  ) -> (\n";
    for (size_t i = 0; i < g.outputs().size(); ++i) {
      const ir::Output& o = g.outputs()[i];
      const ir::Type& type = g.type(o.value);
      out_ += fmt::format("      {}{}{}  // {}\n", ops::mlir_type(type), attributes({memory_kind(type)}),
                          i + 1 == g.outputs().size() ? "" : ",", o.name);
    }
    out_ += "  ) {\n";
    const std::vector<std::string> results = ops::emit_graph(*this, g, arguments);
    line(fmt::format("return {}{}", fmt::join(results, ", "),
                     results.empty() ? "" : fmt::format(" : {}", fmt::join(output_types(g), ", "))));
    out_ += "  }\n}\n";
    return std::move(out_);
  }

  // ops::Emitter
  std::string fresh() override { return fmt::format("%v{}", names_++); }
  void line(std::string text) override { out_ += "    " + std::move(text) + '\n'; }
  std::vector<std::vector<int64_t>> groups(std::string_view axis) override { return find(axis).groups; }
  bool host_memory() override { return options_.host_memory; }

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
      if (g.outputs()[i].alias == p) return fmt::format("tf.aliasing_output = {} : i32", i);
    return "";
  }

  std::string memory_kind(const ir::Type& type) const {
    return type.host && options_.host_memory ? "mhlo.memory_kind = \"pinned_host\"" : "";
  }
  static std::string attributes(std::vector<std::string> all) {
    std::erase(all, "");
    return all.empty() ? "" : fmt::format(" {{{}}}", fmt::join(all, ", "));
  }

  static std::vector<std::string> output_types(const Graph& g) {
    std::vector<std::string> out;
    for (const ir::Output& o : g.outputs()) out.push_back(ops::mlir_type(g.type(o.value)));
    return out;
  }

  const PrintOptions& options_;
  std::string out_;
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
