#include "kernels/gemm_lines.h"
#include "kernels/vec_avx2.h"

namespace lignum::kernels {

constexpr GemmPath kGemmLinesAvx2 = GemmLines<avx2::Ops>::path(Isa::avx2);

}  // namespace lignum::kernels
