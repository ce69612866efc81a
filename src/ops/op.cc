#include "ops/op.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace lignum::ops {

#define LIGNUM_OP(name) const Op& op_##name();
#include "ops/ops.def"
#undef LIGNUM_OP

namespace {

const std::vector<const Op*>& table() {
  static const std::vector<const Op*> ops = {
#define LIGNUM_OP(name) &op_##name(),
#include "ops/ops.def"
#undef LIGNUM_OP
  };
  return ops;
}

std::string types_text(std::span<const Type> types) {
  std::string out;
  for (const Type& t : types) out += (out.empty() ? "" : ", ") + ir::to_string(t);
  return out;
}

}  // namespace

std::span<const Op* const> all_ops() { return table(); }

const Op* find_op(std::string_view name) {
  static const auto index = [] {
    std::map<std::string_view, const Op*> m;
    for (const Op* op : table()) m[op->name] = op;
    return m;
  }();
  const auto it = index.find(name);
  return it == index.end() ? nullptr : it->second;
}

const Op& get_op(std::string_view name) {
  const Op* op = find_op(name);
  LIGNUM_CHECK(op != nullptr, "no op {}", name);
  return *op;
}

NodeSite::NodeSite(const ir::Graph& graph, const ir::Node& node) : site{node.attrs, {}, node.types} {
  for (const Value v : node.inputs) in.push_back(graph.type(v));
  site.in = in;
}

Status verify(const ir::Graph& graph) {
  LIGNUM_RETURN_IF_ERROR(ir::verify_structure(graph));
  Status status;
  ir::for_each_node(graph, [&](const ir::Graph& g, int32_t id, int) {
    const ir::Node& n = g.node(id);
    if (!status.ok() || n.kind == "param" || n.kind == "scan") return;
    const Op* op = find_op(n.kind);
    if (op == nullptr) {
      status = user_error("%{} = {}: there is no such op", id, n.kind);
      return;
    }
    const NodeSite s(g, n);
    const Result<Types> types = op->infer(s.in, n.attrs);
    if (!types.ok()) {
      status = types.status().with_context(fmt::format("%{} = {}({})", id, n.kind, types_text(s.in)));
    } else if (*types != n.types) {
      status = user_error("%{} = {}({}): is typed {}, its rule says {}", id, n.kind, types_text(s.in),
                          types_text(n.types), types_text(*types));
    }
  });
  return status;
}

Values Builder::add_all(std::string_view kind, Values inputs, Attrs attrs) {
  const Op& op = get_op(kind);
  Types in;
  for (const Value v : inputs) in.push_back(graph_.type(v));
  Result<Types> types = op.infer(in, attrs);
  LIGNUM_CHECK(types.ok(), "{}({}): {}", kind, types_text(in), types.status().message());
  ir::Node node;
  node.kind = kind;
  node.inputs = std::move(inputs);
  node.attrs = std::move(attrs);
  node.types = std::move(types).value();
  node.tag = tag;
  node.origin = origin;
  return graph_.results(graph_.add(std::move(node)));
}

Value Builder::elementwise(std::string_view fn, Values inputs) {
  return add("elementwise", std::move(inputs), {{"fn", std::string(fn)}});
}
Value Builder::constant(DType dtype, std::vector<int64_t> dims, double value) {
  return add("constant", {},
             {{"dtype", std::string(dtype_name(dtype))}, {"dims", std::move(dims)}, {"value", value}});
}
Value Builder::broadcast(Value v, std::vector<int64_t> dims, std::vector<int64_t> where) {
  return add("broadcast", {v}, {{"dims", std::move(dims)}, {"where", std::move(where)}});
}
Value Builder::reduce(std::string_view fn, Value v, std::vector<int64_t> dims) {
  return add("reduce", {v}, {{"fn", std::string(fn)}, {"dims", std::move(dims)}});
}
Value Builder::reshape(Value v, std::vector<int64_t> dims) {
  if (type(v).dims == dims) return v;
  return add("reshape", {v}, {{"dims", std::move(dims)}});
}
Value Builder::transpose(Value v, std::vector<int64_t> permutation) {
  if (std::is_sorted(permutation.begin(), permutation.end())) return v;
  return add("transpose", {v}, {{"permutation", std::move(permutation)}});
}
Value Builder::convert(Value v, DType dtype) {
  if (type(v).dtype == dtype) return v;
  return add("convert", {v}, {{"dtype", std::string(dtype_name(dtype))}});
}
Value Builder::matmul(Value a, Value b, std::vector<int64_t> contract_a, std::vector<int64_t> contract_b,
                      std::vector<int64_t> batch_a, std::vector<int64_t> batch_b) {
  return add("matmul", {a, b},
             {{"contract_a", std::move(contract_a)},
              {"contract_b", std::move(contract_b)},
              {"batch_a", std::move(batch_a)},
              {"batch_b", std::move(batch_b)}});
}
Value Builder::splat(Value v, const Type& like) { return convert(broadcast(v, like.dims, {}), like.dtype); }

Value GradCall::cotangent(size_t r) const {
  if (cotangents[r]) return *cotangents[r];
  return build.constant(site.out[r].dtype, site.out[r].dims, 0.0);
}

Cost streaming_cost(const Site& site, double flops_per_element) {
  Cost c;
  for (const Type& t : site.in) c.read += static_cast<double>(t.bytes());
  for (const Type& t : site.out) {
    c.write += static_cast<double>(t.bytes());
    c.flops += flops_per_element * static_cast<double>(t.elements());
  }
  return c;
}

ir::Graph decomposition(const Op& op, const Site& site) {
  LIGNUM_CHECK(op.decompose != nullptr, "{} is primitive: {}", op.name, op.primitive_because);
  ir::Graph g;
  g.name = std::string(op.name);
  Values in;
  for (size_t i = 0; i < site.in.size(); ++i) in.push_back(g.param(fmt::format("in{}", i), site.in[i]));
  Builder b(g);
  const Values out = op.decompose(b, site, in);
  LIGNUM_CHECK(out.size() == site.out.size(), "{}: decomposition gives {} results, not {}", op.name,
               out.size(), site.out.size());
  for (size_t r = 0; r < out.size(); ++r) {
    LIGNUM_CHECK(g.type(out[r]) == site.out[r], "{}: decomposition's result {} is {}, not {}", op.name, r,
                 ir::to_string(g.type(out[r])), ir::to_string(site.out[r]));
    g.output(fmt::format("out{}", r), out[r]);
  }
  return g;
}

std::string mlir_dtype(DType d) {
  switch (d) {
    case DType::f8e4m3fn:
      return "f8E4M3FN";
    case DType::f8e5m2:
      return "f8E5M2";
    case DType::u32:
      return "ui32";
    case DType::u8:
      return "ui8";
    case DType::pred:
      return "i1";
    default:
      return std::string(dtype_name(d));
  }
}

std::string mlir_table(const std::vector<std::vector<int64_t>>& rows) {
  std::string text;
  for (const auto& row : rows) text += fmt::format("{}[{}]", text.empty() ? "" : ", ", fmt::join(row, ", "));
  return fmt::format("dense<[{}]> : tensor<{}x{}xi64>", text, rows.size(), rows.empty() ? 0 : rows[0].size());
}

std::string mlir_type(const Type& t) {
  std::string out = "tensor<";
  for (const int64_t d : t.dims) out += fmt::format("{}x", d);
  return out + mlir_dtype(t.dtype) + ">";
}

}  // namespace lignum::ops
