#include "kernels/attention_bf16.h"
#include "kernels/way_amx.h"

namespace lignum::kernels {

constexpr AttentionPath kAttentionAmx = AttentionBf16<amx::Way>::path(Bf16Dot::amx);

}  // namespace lignum::kernels
