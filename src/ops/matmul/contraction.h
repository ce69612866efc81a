// What the ops that contract share (matmul, scaled_matmul): which dims meet, the product as GEMM takes it,
// its reference, its partition rule, and the two products that are its gradient. attributes: contract_a,
// contract_b, pairs of dims; batch_a, batch_b likewise; result dims: batch, a's others, b's others, each
// group in the order of its operand (batch: as listed).
#pragma once

#include "kernels/gemm.h"
#include "ops/facets.h"

namespace lignum::ops {

// The dims of one use, by group.
struct Contraction {
  Dims batch_a, batch_b, free_a, free_b, contract_a, contract_b;
  explicit Contraction(const Site&);  // of the first two inputs
};
Attrs contraction_attrs(const Dims& contract_a, const Dims& contract_b, const Dims& batch_a,
                        const Dims& batch_b);

// f32, bf16 or an 8-bit float.
Status expect_operand(const Type&, std::string_view input);
// The result of contracting the first two inputs, or what is wrong with them or the attributes. Its dtype is
// attribute dtype (f32 or bf16); without one a's, which must not be an 8-bit float then.
Result<Types> infer_contraction(std::span<const Type> in, const Attrs&);

// Of the first two inputs and the result. Contracted dims come last, so that a sharded batch of activations
// wins over a weight that is sharded along what is contracted: the weight is gathered.
ShardRule contraction_rule(const Site&);
Cost contraction_cost(const Site&);
// The sums of products, unscaled.
void contraction_reference(const RefCall&, std::vector<double>& out);

// Factors of the lines of a and b, as kernels::Gemm has them: row_scale, column_scale, scale_k. The products
// of a line are in the order of a's contracted dims.
struct LineScales {
  const float* of_a = nullptr;
  const float* of_b = nullptr;
  int64_t tile = 0;
};
// The product as calls of GEMM. Operands whose dims cannot be walked with one stride a group are copied
// first. tile: LineScales'.
int64_t contraction_workspace(const Site&, int threads, int64_t tile = 0);
// workspace: contraction_workspace bytes.
Status run_contraction(const CpuCall&, void* workspace, const LineScales& scales = {});

// The gradient of operand 0 or 1 as a contraction of dy with the other operand, in the order whose result has
// the operand's layout; only where neither has, a transpose follows.
struct GradientProduct {
  bool other_first = false;  // the other operand comes first, then dy
  Attrs attrs;               // of the contraction, without a dtype
  Dims permutation;          // from the product's dims to the operand's
  Dims dy_dims, other_dims;  // the pairs that are contracted
};
GradientProduct gradient_product(const Site&, int operand);
// That product of dy with the other operand, in the layout of the operand.
Value gradient_matmul(Builder&, GradientProduct, Value dy, Value other, DType dtype);

}  // namespace lignum::ops
