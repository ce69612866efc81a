// Words that the facets of compound ops share, beside those of rules.h: checks of inputs by name, arithmetic
// and row-wise broadcasting for decompositions, kernel operands, test inputs.
#pragma once

#include "kernels/rows.h"
#include "ops/rules.h"

namespace lignum::ops {

// --- for infer: ok, or a user error that names the input or attribute, what it is and what it must be

Status expect_edge(const Type&, std::string_view input);  // f32 or bf16
Status expect_rank(const Type&, std::string_view input, int64_t rank);
Status expect_last_dim(const Type&, std::string_view input);  // at least one dim
// why: whose dims they are ("the last dim of x").
Status expect_dims(const Type&, std::string_view input, const Dims& dims, std::string_view why);
// The dtype and dims of another input.
Status expect_like(const Type&, std::string_view input, const Type& like, std::string_view other);
// A number, least <= value < most.
Result<double> number_in(const Attrs&, std::string_view attr, double least, double most);
// A whole number, least <= value <= most.
Result<int64_t> int_in(const Attrs&, std::string_view attr, int64_t least, int64_t most);

// --- shapes

Dims without_last(const Dims& dims);
int64_t product(std::span<const int64_t> dims);
// One value a row: x's dims and names without the last.
Type row_type(const Type& x, DType dtype);
// x seen as n rows of d.
struct Rows {
  int64_t n, d;
};
Rows rows_of(const Type& x);
// The first `rank` dims' indices: 0, 1, ...
Dims first_dims(int64_t rank);

// --- for decompositions

// Element-wise arithmetic on values of one shape; a number stands for a constant of that shape.
class Arith {
 public:
  explicit Arith(Builder& build) : b(build) {}

  Value f32(Value v) { return b.convert(v, DType::f32); }
  Value like(Value v, double value) { return b.constant(b.type(v).dtype, b.type(v).dims, value); }
  Value neg(Value v) { return b.elementwise("neg", {v}); }
  Value exp(Value v) { return b.elementwise("exp", {v}); }
  Value log(Value v) { return b.elementwise("log", {v}); }
  Value sqrt(Value v) { return b.elementwise("sqrt", {v}); }
  Value rsqrt(Value v) { return b.elementwise("rsqrt", {v}); }
  Value logistic(Value v) { return b.elementwise("logistic", {v}); }
  Value add(Value x, Value y) { return b.elementwise("add", {x, y}); }
  Value sub(Value x, Value y) { return b.elementwise("sub", {x, y}); }
  Value mul(Value x, Value y) { return b.elementwise("mul", {x, y}); }
  Value div(Value x, Value y) { return b.elementwise("div", {x, y}); }
  Value add(Value x, double y) { return add(x, like(x, y)); }
  Value mul(Value x, double y) { return mul(x, like(x, y)); }
  Value sub(double x, Value y) { return sub(like(y, x), y); }
  Value compare(std::string_view fn, Value x, Value y) { return b.elementwise(fn, {x, y}); }
  Value select(Value condition, Value yes, Value no) { return b.elementwise("select", {condition, yes, no}); }

  Value iota(Dims dims, int64_t dim);          // i32
  Value over_row(Value v, const Dims& dims);   // v [...] as [..., d]
  Value over_rows(Value v, const Dims& dims);  // v [d] as [..., d]
  Value sum_last(Value v) { return b.reduce("sum", v, {b.type(v).rank() - 1}); }
  Value sum_rows(Value v);  // v [..., d] summed to [d]
  Value max_last(Value v) { return b.reduce("max", v, {b.type(v).rank() - 1}); }
  Value one_hot(Value labels, int64_t width);  // labels [...] as pred [..., width]
  // Builder::matmul with an f32 result: products of bf16 operands are exact in it.
  Value matmul(Value x, Value y, Dims contract_x, Dims contract_y, Dims batch_x = {}, Dims batch_y = {});

  Builder& b;
};

// --- for cpu

inline kernels::In kernel_in(const CpuCall& c, size_t i) { return {c.site.in[i].dtype, c.in[i]}; }
inline kernels::Out kernel_out(const CpuCall& c, size_t r) { return {c.site.out[r].dtype, c.out[r]}; }
template <class T>
const T* data_in(const CpuCall& c, size_t i) {
  return static_cast<const T*>(c.in[i]);
}
template <class T>
T* data_out(const CpuCall& c, size_t r) {
  return static_cast<T*>(c.out[r]);
}
// Result r becomes input i's bytes, unless it is that buffer already.
void copy_through(const CpuCall& c, size_t r, size_t i);

// --- for emit

// The lines of a reduction region of two scalars, StableHLO's add or maximum, to stand between "({" and "})".
void emit_region(Emitter& out, DType dtype, std::string_view fn);

// --- for cases

inline CaseInput tensor(DType dtype, Dims dims, Fill fill = Fill::normal, double bound = 1) {
  return {Type{dtype, std::move(dims), {}}, fill, bound};
}

}  // namespace lignum::ops
