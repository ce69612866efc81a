#include "kernels/gemm_block.h"
#include "kernels/vec_scalar.h"

namespace lignum::kernels {

constexpr GemmPath kGemmScalar = GemmBlock<scalar::Ops>::path("blocked", Isa::scalar);

}  // namespace lignum::kernels
