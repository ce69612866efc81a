#include "kernels/gemm_block.h"
#include "kernels/vec_avx2.h"

namespace lignum::kernels {

constexpr GemmPath kGemmAvx2 = GemmBlock<avx2::Ops>::path("blocked", Isa::avx2);

}  // namespace lignum::kernels
