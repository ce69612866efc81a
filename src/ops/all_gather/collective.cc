#include "ops/all_gather/collective.h"

namespace lignum::ops {

int64_t shard_size(int64_t size, int64_t group) { return (size + group - 1) / group; }

Status check_group(const Attrs& attrs) {
  LIGNUM_ASSIGN_OR_RETURN(const std::string axis, string_attr(attrs, "axis"));
  if (axis.empty()) return user_error("attribute axis is empty; it names a mesh axis, \"fsdp\" say");
  return int_in(attrs, "group", 1, 1 << 20).status();
}

Result<int64_t> check_dim(const Attrs& attrs, int64_t rank) {
  if (rank == 0) return user_error("a scalar has no dim to gather or scatter");
  return int_in(attrs, "dim", 0, rank - 1);
}

Status check_summed(const Type& x) { return expect_dtype(x, "x", {DType::f32, DType::bf16, DType::i32}); }

Result<DType> sum_dtype(const Type& x, const Attrs& attrs) {
  if (attrs.all().find("dtype") == attrs.all().end()) return x.dtype;
  LIGNUM_ASSIGN_OR_RETURN(const DType dtype, dtype_attr(attrs, "dtype"));
  if (dtype == x.dtype || (dtype == DType::f32 && x.dtype == DType::bf16)) return dtype;
  return user_error("dtype={}: a sum of {} is kept in {}{}", dtype_name(dtype), dtype_name(x.dtype),
                    dtype_name(x.dtype), x.dtype == DType::bf16 ? " or f32" : "");
}

Type started(Type x, int64_t dim, int64_t size) {
  x.dims[static_cast<size_t>(dim)] = size;
  x.async = true;
  return x;
}

Status start_collective(const CpuCall& c, CollectiveCall::Kind kind, const Type& whole,
                        StartOptions options) {
  LIGNUM_CHECK(c.collectives != nullptr, "a collective without a transport");
  CollectiveCall call{.kind = kind,
                      .maximum = options.maximum,
                      .dtype = whole.dtype,
                      .out_dtype = c.site.out[0].dtype,
                      .in = c.in[0],
                      .out = c.out[0],
                      .outer = 1,
                      .local_rows = 1,
                      .row_elements = whole.elements(),
                      .logical_rows = 1,
                      .axis = c.site.attrs.get<std::string>("axis"),
                      .shift = options.shift};
  if (kind == CollectiveCall::Kind::all_gather || kind == CollectiveCall::Kind::reduce_scatter) {
    const auto dim = static_cast<size_t>(c.site.attrs.get<int64_t>("dim"));
    const std::span<const int64_t> dims = whole.dims;
    call.outer = product(dims.first(dim));
    call.logical_rows = dims[dim];
    call.local_rows = shard_size(dims[dim], c.site.attrs.get<int64_t>("group"));
    call.row_elements = product(dims.subspan(dim + 1));
  }
  return c.collectives->start(call);
}

Value run_collective(Builder& b, std::string_view kind, Value x, Attrs attrs) {
  return b.add("await", {b.add(kind, {x}, std::move(attrs))});
}

Cost collective_cost(const Site& s, double wire) {
  Cost c = streaming_cost(s, 0);
  c.work = Work::collective;
  c.wire = wire;
  return c;
}

std::string emit_cut(Emitter& out, const std::string& x, const Type& from, const Type& to) {
  if (from.dims == to.dims) return x;
  std::string ranges;
  for (const int64_t d : to.dims) ranges += fmt::format("{}0:{}", ranges.empty() ? "" : ", ", d);
  std::string cut = out.fresh();
  out.line(fmt::format("{} = stablehlo.slice {} [{}] : ({}) -> {}", cut, x, ranges, mlir_type(from),
                       mlir_type(to)));
  return cut;
}

std::string emit_padded(Emitter& out, const std::string& x, const Type& from, const Type& to) {
  if (from.dims == to.dims) return x;
  const std::string scalar = mlir_type({from.dtype, {}, {}});
  const std::string zero = out.fresh();
  out.line(fmt::format("{} = stablehlo.constant dense<{}> : {}", zero,
                       dtype_is_float(from.dtype) ? "0.0" : "0", scalar));
  const Dims none(from.dims.size(), 0);
  Dims high;
  for (size_t i = 0; i < none.size(); ++i) high.push_back(to.dims[i] - from.dims[i]);
  std::string padded = out.fresh();
  out.line(fmt::format("{} = stablehlo.pad {}, {}, low = {}, high = {}, interior = {} : ({}, {}) -> {}",
                       padded, x, zero, mlir_list(none), mlir_list(high), mlir_list(none), mlir_type(from),
                       scalar, mlir_type(to)));
  return padded;
}

std::string emit_converted(Emitter& out, const std::string& v, const Type& from, const Type& to) {
  if (from.dtype == to.dtype) return v;
  std::string converted = out.fresh();
  Type source = to;
  source.dtype = from.dtype;
  out.line(
      fmt::format("{} = stablehlo.convert {} : ({}) -> {}", converted, v, mlir_type(source), mlir_type(to)));
  return converted;
}

Case collective_case(std::string name, DType dtype, Dims dims, int64_t group, Attrs attrs, bool bench) {
  attrs.set("axis", std::string("fsdp"));
  attrs.set("group", group);
  const bool integer = !dtype_is_float(dtype);
  return {std::move(name),
          {tensor(dtype, std::move(dims), integer ? Fill::token : Fill::normal, integer ? 100 : 1)},
          std::move(attrs),
          group,
          bench};
}

}  // namespace lignum::ops
