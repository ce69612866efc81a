#include "kernels/attention_bf16.h"
#include "kernels/way_vdpbf16ps.h"

namespace lignum::kernels {

constexpr AttentionPath kAttentionVdpbf16ps = AttentionBf16<vdpbf16ps::Way>::path(Bf16Dot::vdpbf16ps);

}  // namespace lignum::kernels
