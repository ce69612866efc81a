#include "kernels/gemm_lines.h"
#include "kernels/vec_scalar.h"

namespace lignum::kernels {

constexpr GemmPath kGemmLinesScalar = GemmLines<scalar::Ops>::path(Isa::scalar);

}  // namespace lignum::kernels
