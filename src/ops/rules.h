// What type rules share: checks of counts and attributes that end in a user error (a graph may come from
// text, so nothing is taken for granted), dims and strides, and the text of attributes in StableHLO. The
// op's name and its operands' types are put in front of the message by the caller (verify, Builder).
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"

namespace lignum::ops {

using Dims = std::vector<int64_t>;

Status expect_inputs(std::span<const Type> in, size_t count);
Status expect_dtype(const Type& t, std::string_view what, std::initializer_list<DType> allowed);
Status expect_same_dims(const Type& a, const Type& b);

// Attribute `key`, or an error that says which kind of value it wants.
Result<std::string> string_attr(const Attrs& attrs, std::string_view key);
Result<int64_t> int_attr(const Attrs& attrs, std::string_view key);
Result<double> double_attr(const Attrs& attrs, std::string_view key);
Result<bool> bool_attr(const Attrs& attrs, std::string_view key);
Result<DType> dtype_attr(const Attrs& attrs, std::string_view key);  // its name as a string
// Dims of a result: each at least 0, at most 2^50 elements, rank at most kMaxRank of the kernels.
Result<Dims> dims_attr(const Attrs& attrs, std::string_view key);
// Indices of dims of a tensor of that rank: in range, each at most once; in any order.
Result<Dims> indices_attr(const Attrs& attrs, std::string_view key, int64_t rank);

// One result; refuses more than 2^50 elements and ranks above the kernels' limit.
Result<Types> one_type(DType dtype, Dims dims, std::vector<std::string> names = {});
// The logical name of dim i, "" when the type has none; all of them, empty when every one is "".
std::string name_of(const Type& t, int64_t i);
std::vector<std::string> tidy_names(std::vector<std::string> names);

Dims row_major_strides(std::span<const int64_t> dims);
// The dims of [0, rank) that no list holds, ascending.
Dims others(int64_t rank, std::initializer_list<std::span<const int64_t>> lists);
// Each factor of a rule as the identity: dim i walks factor first + i.
std::vector<int> factors(int64_t rank, int first = 0);

// Walks every index of a tensor in row-major order: fn(index, linear number).
void for_each_index(std::span<const int64_t> dims, const std::function<void(const Dims&, int64_t)>& fn);

std::string mlir_number(DType dtype, double v);     // of the dtype, as dense<> takes it
std::string mlir_list(std::span<const int64_t> v);  // [0, 2]
std::string mlir_types(std::span<const Type> v);    // (tensor<2xf32>, tensor<f32>)

}  // namespace lignum::ops
