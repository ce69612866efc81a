#include "kernels/gemm_block.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels {

constexpr GemmPath kGemmAvx512 = GemmBlock<avx512::Ops>::path("blocked", Isa::avx512);

}  // namespace lignum::kernels
