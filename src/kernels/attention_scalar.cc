#include "kernels/attention_block.h"
#include "kernels/vec_scalar.h"

namespace lignum::kernels {

constexpr AttentionPath kAttentionScalar = AttentionBlock<scalar::Ops>::path(Isa::scalar);

}  // namespace lignum::kernels
