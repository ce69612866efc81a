#include "kernels/attention_block.h"
#include "kernels/vec_avx2.h"

namespace lignum::kernels {

constexpr AttentionPath kAttentionAvx2 = AttentionBlock<avx2::Ops>::path(Isa::avx2);

}  // namespace lignum::kernels
