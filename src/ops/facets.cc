#include "ops/facets.h"

#include <cstring>

namespace lignum::ops {

Status expect_edge(const Type& t, std::string_view input) {
  return expect_dtype(t, input, {DType::f32, DType::bf16});
}

Status expect_rank(const Type& t, std::string_view input, int64_t rank) {
  if (t.rank() == rank) return {};
  return user_error("{} is {}; it must have {} dims", input, ir::to_string(t), rank);
}

Status expect_last_dim(const Type& t, std::string_view input) {
  if (t.rank() >= 1) return {};
  return user_error("{} is a scalar; it must have at least one dim", input);
}

Status expect_dims(const Type& t, std::string_view input, const Dims& dims, std::string_view why) {
  if (t.dims == dims) return {};
  return user_error("{} is {}; its dims must be {}: {}", input, ir::to_string(t), mlir_list(dims), why);
}

Status expect_like(const Type& t, std::string_view input, const Type& like, std::string_view other) {
  if (t.dtype == like.dtype && t.dims == like.dims) return {};
  return user_error("{} is {}; it must be as {} is, {}", input, ir::to_string(t), other, ir::to_string(like));
}

Result<double> number_in(const Attrs& attrs, std::string_view attr, double least, double most) {
  LIGNUM_ASSIGN_OR_RETURN(const double v, double_attr(attrs, attr));
  if (v >= least && v < most) return v;  // false for NaN
  return user_error("attribute {} = {}; it must be at least {} and less than {}", attr, v, least, most);
}

Result<int64_t> int_in(const Attrs& attrs, std::string_view attr, int64_t least, int64_t most) {
  LIGNUM_ASSIGN_OR_RETURN(const int64_t v, int_attr(attrs, attr));
  if (v >= least && v <= most) return v;
  return user_error("attribute {} = {}; it must be in {}..{}", attr, v, least, most);
}

Dims without_last(const Dims& dims) { return {dims.begin(), dims.end() - 1}; }

int64_t product(std::span<const int64_t> dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

Type row_type(const Type& x, DType dtype) {
  Type t{dtype, without_last(x.dims), {}};
  if (!x.names.empty()) t.names = tidy_names({x.names.begin(), x.names.end() - 1});
  return t;
}

Rows rows_of(const Type& x) { return {product(std::span(x.dims).first(x.dims.size() - 1)), x.dims.back()}; }

Dims first_dims(int64_t rank) {
  Dims out;
  for (int64_t i = 0; i < rank; ++i) out.push_back(i);
  return out;
}

Value Arith::iota(Dims dims, int64_t dim) {
  return b.add("iota", {}, {{"dtype", std::string("i32")}, {"dims", std::move(dims)}, {"dim", dim}});
}

Value Arith::over_row(Value v, const Dims& dims) {
  return b.broadcast(v, dims, first_dims(static_cast<int64_t>(dims.size()) - 1));
}

Value Arith::over_rows(Value v, const Dims& dims) {
  return b.broadcast(v, dims, {static_cast<int64_t>(dims.size()) - 1});
}

Value Arith::sum_rows(Value v) {
  const int64_t rank = b.type(v).rank();
  return rank == 1 ? v : b.reduce("sum", v, first_dims(rank - 1));
}

Value Arith::one_hot(Value labels, int64_t width) {
  Dims dims = b.type(labels).dims;
  const auto last = static_cast<int64_t>(dims.size());
  dims.push_back(width);
  return compare("eq", over_row(labels, dims), iota(dims, last));
}

Value Arith::matmul(Value x, Value y, Dims contract_x, Dims contract_y, Dims batch_x, Dims batch_y) {
  return b.add("matmul", {x, y},
               {{"contract_a", std::move(contract_x)},
                {"contract_b", std::move(contract_y)},
                {"batch_a", std::move(batch_x)},
                {"batch_b", std::move(batch_y)},
                {"dtype", std::string("f32")}});
}

void copy_through(const CpuCall& c, size_t r, size_t i) {
  const int64_t bytes = c.site.out[r].bytes();
  if (bytes > 0 && c.out[r] != c.in[i]) std::memcpy(c.out[r], c.in[i], static_cast<size_t>(bytes));
}

void emit_region(Emitter& out, DType dtype, std::string_view fn) {
  const std::string type = mlir_type({dtype, {}, {}});
  const std::string a = out.fresh(), b = out.fresh(), sum = out.fresh();
  out.line(fmt::format("^bb0({}: {}, {}: {}):", a, type, b, type));
  out.line(fmt::format("  {} = stablehlo.{} {}, {} : {}", sum, fn, a, b, type));
  out.line(fmt::format("  stablehlo.return {} : {}", sum, type));
}

}  // namespace lignum::ops
