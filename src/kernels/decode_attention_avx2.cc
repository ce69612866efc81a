#include "kernels/decode_attention.h"
#include "kernels/vec_avx2.h"

namespace lignum::kernels {

constexpr DecodePath kDecodeAvx2 = DecodeAttention<avx2::Ops>::path(Isa::avx2);

}  // namespace lignum::kernels
