#include "ops/interpreter.h"

#include <array>
#include <functional>
#include <memory>

namespace lignum::ops {
namespace {

// Tensors are shared between the values that alias them (a body's params and its scan's inputs).
using Tensor = std::shared_ptr<const RefTensor>;

std::vector<Tensor> run(const ir::Graph& graph, const std::vector<Tensor>& inputs, InterpretOptions options);

Tensor row_of(const RefTensor& stack, int64_t i) {
  auto row = std::make_shared<RefTensor>();
  row->dims.assign(stack.dims.begin() + 1, stack.dims.end());
  const int64_t size = static_cast<int64_t>(stack.data.size()) / stack.dims[0];
  row->data.assign(stack.data.begin() + i * size, stack.data.begin() + (i + 1) * size);
  return row;
}

std::vector<Tensor> run_scan(const ir::Node& node, const std::vector<Tensor>& in, InterpretOptions options) {
  const ir::Scan scan = ir::scan_of(node);
  const auto carry = static_cast<size_t>(scan.carry), sliced = static_cast<size_t>(scan.sliced);
  std::vector<Tensor> state(in.begin(), in.begin() + scan.carry);
  std::vector<std::shared_ptr<RefTensor>> stacks;
  for (size_t k = carry; k < node.types.size(); ++k) {
    stacks.push_back(std::make_shared<RefTensor>());
    stacks.back()->dims = node.types[k].dims;
    stacks.back()->data.resize(static_cast<size_t>(node.types[k].elements()));
  }
  const bool skipped = scan.guarded && in.back()->data[0] < 0;
  for (int64_t step = 0; step < scan.trip && !skipped; ++step) {
    const int64_t i = scan.reversed ? scan.trip - 1 - step : step;
    std::vector<Tensor> inner = state;
    for (size_t s = carry; s < carry + sliced; ++s) inner.push_back(row_of(*in[s], i));
    inner.insert(inner.end(), in.begin() + scan.carry + scan.sliced, in.end());
    const std::vector<Tensor> out = run(*node.body, inner, options);
    state.assign(out.begin(), out.begin() + scan.carry);
    for (size_t k = 0; k < stacks.size(); ++k) {
      const RefTensor& row = *out[carry + k];
      std::copy(row.data.begin(), row.data.end(),
                stacks[k]->data.begin() + i * static_cast<int64_t>(row.data.size()));
    }
  }
  state.insert(state.end(), stacks.begin(), stacks.end());
  return state;
}

Tensor rounded(DType dtype, Tensor t, InterpretOptions options) {
  if (!options.round_edges || !dtype_is_float(dtype) || dtype == DType::f64 ||
      (dtype == DType::f32 && !options.round_f32))
    return t;
  auto copy = std::make_shared<RefTensor>(*t);
  round_to(dtype, *copy);
  return copy;
}

std::vector<Tensor> run(const ir::Graph& graph, const std::vector<Tensor>& inputs, InterpretOptions options) {
  const auto nodes = static_cast<int32_t>(graph.nodes().size());
  // A tensor is dropped after its last reader.
  std::vector<int32_t> last(static_cast<size_t>(nodes), -1);
  for (int32_t id = 0; id < nodes; ++id)
    for (const Value v : graph.node(id).inputs) last[static_cast<size_t>(v.node)] = id;
  for (const ir::Output& o : graph.outputs()) last[static_cast<size_t>(o.value.node)] = nodes;

  std::vector<std::vector<Tensor>> values(static_cast<size_t>(nodes));
  size_t param = 0;
  for (int32_t id = 0; id < nodes; ++id) {
    const ir::Node& node = graph.node(id);
    std::vector<Tensor> in;
    for (const Value v : node.inputs)
      in.push_back(values[static_cast<size_t>(v.node)][static_cast<size_t>(v.index)]);
    std::vector<Tensor>& out = values[static_cast<size_t>(id)];
    if (node.kind == "param") {
      const Tensor& given = inputs[param];
      LIGNUM_CHECK(given->dims == node.types[0].dims &&
                       static_cast<int64_t>(given->data.size()) == node.types[0].elements(),
                   "param {} of {} is {}; the input has {} elements", param, graph.name,
                   ir::to_string(node.types[0]), given->data.size());
      ++param;
      out.push_back(given);
    } else if (node.kind == "scan") {
      out = run_scan(node, in, options);
    } else {
      const Op& op = get_op(node.kind);
      LIGNUM_CHECK(op.reference_group == nullptr,
                   "%{} = {}: the interpreter runs one rank; take the graph before it is partitioned", id,
                   node.kind);
      const NodeSite site(graph, node);
      std::vector<const RefTensor*> pointers;
      for (const Tensor& t : in) pointers.push_back(t.get());
      for (RefTensor& t : evaluate(op, site.site, pointers))
        out.push_back(std::make_shared<RefTensor>(std::move(t)));
    }
    for (size_t r = 0; r < out.size(); ++r)
      if (node.kind != "scan") out[r] = rounded(node.types[r].dtype, std::move(out[r]), options);
    for (const Value v : node.inputs)
      if (last[static_cast<size_t>(v.node)] == id) values[static_cast<size_t>(v.node)].clear();
    if (last[static_cast<size_t>(id)] < 0) out.clear();
  }
  std::vector<Tensor> results;
  for (const ir::Output& o : graph.outputs())
    results.push_back(values[static_cast<size_t>(o.value.node)][static_cast<size_t>(o.value.index)]);
  return results;
}

}  // namespace

std::vector<RefTensor> interpret(const ir::Graph& graph, std::span<const RefTensor> inputs,
                                 InterpretOptions options) {
  LIGNUM_CHECK(inputs.size() == graph.params().size(), "{} inputs for {} params of {}", inputs.size(),
               graph.params().size(), graph.name);
  std::vector<Tensor> shared;
  for (const RefTensor& t : inputs) shared.push_back(Tensor(Tensor(), &t));  // borrowed
  std::vector<RefTensor> out;
  for (const Tensor& t : run(graph, shared, options)) out.push_back(*t);
  return out;
}

std::vector<RefTensor> evaluate(const Op& op, const Site& site, std::span<const RefTensor* const> in) {
  LIGNUM_CHECK(op.reference != nullptr, "{} has a reference of a group alone", op.name);
  std::vector<RefTensor> out;
  for (const Type& t : site.out)
    out.push_back({t.dims, std::vector<double>(static_cast<size_t>(t.elements()))});
  op.reference(RefCall{site, in, out});
  return out;
}

void round_to(DType dtype, RefTensor& tensor) {
  std::array<unsigned char, 8> element{};
  for (double& x : tensor.data) {
    store_from_double(dtype, element.data(), 0, x);
    x = load_as_double(dtype, element.data(), 0);
  }
}

}  // namespace lignum::ops
