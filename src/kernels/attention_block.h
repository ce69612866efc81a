// The path of one ISA. Internal; included by ISA files only (isa.h).
#pragma once

#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"

namespace lignum::kernels {

template <class Ops>
struct AttentionBlock {
  static const char* refuses(const Attention&) { return nullptr; }

  static constexpr AttentionPath path(Isa isa) {
    return AttentionPath{isa,
                         Bf16Dot::fma,
                         &refuses,
                         &AttentionForward<Ops>::forward,
                         &AttentionBackward<Ops>::prepare,
                         &AttentionBackward<Ops>::backward,
                         &AttentionBackward<Ops>::round};
  }
};

}  // namespace lignum::kernels
