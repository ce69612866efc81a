#include "kernels/gemm_lines.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels {

constexpr GemmPath kGemmLinesAvx512 = GemmLines<avx512::Ops>::path(Isa::avx512);

}  // namespace lignum::kernels
