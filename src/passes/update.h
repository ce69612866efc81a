// What follows the gradients of a GLOBAL step: accumulation over micro-steps, clipping, AdamW.
#pragma once

#include <functional>
#include <string>

#include "ir/graph.h"

namespace lignum::passes {

struct AdamW {
  double b1 = 0.9, b2 = 0.95, eps = 1e-8, eps_root = 0.0, weight_decay = 0.1;
  double clip = 1.0;  // global norm; <= 0: no clipping
  std::function<bool(const std::string& param)> decays = [](const std::string&) { return true; };
};

// `step` has the outputs loss_sum, tokens and grad:NAME. With n > 1 it becomes the body of a scan over n
// micro-steps: its i32 batch params gain a leading dim n, and loss_sum, tokens and the gradients are summed
// in f32 from zero, in order.
ir::Graph accumulate(const ir::Graph& step, int64_t n);

// Params added: "learning_rate" (f32), "step" (i32, counted from 0), and "adam_m:NAME", "adam_v:NAME" (f32) a
// parameter. Outputs: "loss" (mean over supervised tokens), "tokens", "grad_norm" (of the mean loss, before
// clipping), then for each parameter NAME, "adam_m:NAME" and "adam_v:NAME", which replace the params of these
// names. Where loss or grad_norm is not finite, they keep their values.
ir::Graph add_update(const ir::Graph& gradients, const AdamW& options);

// outputs=grads: "loss", "tokens", then "grad:NAME" of the mean loss (f32), and "logits" where the forward
// graph has them.
ir::Graph add_mean_gradients(const ir::Graph& gradients);

}  // namespace lignum::passes
