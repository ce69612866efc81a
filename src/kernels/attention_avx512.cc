#include "kernels/attention_block.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels {

constexpr AttentionPath kAttentionAvx512 = AttentionBlock<avx512::Ops>::path(Isa::avx512);

}  // namespace lignum::kernels
