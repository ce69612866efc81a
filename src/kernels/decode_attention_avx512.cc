#include "kernels/decode_attention.h"
#include "kernels/vec_avx512.h"

namespace lignum::kernels {

constexpr DecodePath kDecodeAvx512 = DecodeAttention<avx512::Ops>::path(Isa::avx512);

}  // namespace lignum::kernels
