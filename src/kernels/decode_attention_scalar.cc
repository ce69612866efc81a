#include "kernels/decode_attention.h"
#include "kernels/vec_scalar.h"

namespace lignum::kernels {

constexpr DecodePath kDecodeScalar = DecodeAttention<scalar::Ops>::path(Isa::scalar);

}  // namespace lignum::kernels
