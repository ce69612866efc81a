#include "kernels/gemm_bf16_block.h"
#include "kernels/way_amx.h"

namespace lignum::kernels {

constexpr GemmBf16Path kGemmAmx = GemmBf16<amx::Way>::path(Bf16Dot::amx);

}  // namespace lignum::kernels
