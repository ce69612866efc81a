#include "kernels/gemm_bf16_block.h"
#include "kernels/way_vdpbf16ps.h"

namespace lignum::kernels {

constexpr GemmBf16Path kGemmVdpbf16ps = GemmBf16<vdpbf16ps::Way>::path(Bf16Dot::vdpbf16ps);

}  // namespace lignum::kernels
