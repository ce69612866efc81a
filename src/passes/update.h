// What follows the gradients of a GLOBAL step: accumulation over micro-steps, clipping, the optimizer.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace lignum::passes {

// A tensor of a parameter's shape that the optimizer keeps between steps, zero before the first. Its param in
// the graph has the name prefix + NAME.
struct Moment {
  std::string_view prefix;
  DType dtype = DType::f32;
};

struct Optimizer {
  enum class Kind : uint8_t { adamw, sgd } kind = Kind::adamw;
  double clip = 1.0;  // global norm; <= 0: no clipping
  // Whether a step may be left out for its loss or gradient norm: see add_update.
  bool limits = false;
  // adamw
  double b1 = 0.9, b2 = 0.95, eps = 1e-8, eps_root = 0.0, weight_decay = 0.1;
  DType mu_dtype = DType::f32, nu_dtype = DType::f32;  // of the first and the second moment
  std::function<bool(const std::string& param)> decays = [](const std::string&) { return true; };
  // The moments lie in host memory, where each is fetched for the update and offloaded again.
  bool offloaded = false;
  // sgd
  double momentum = 0;
  bool nesterov = false;

  std::vector<Moment> moments() const;
};

// "adamw, moments f32 and bf16", "sgd", "sgd, momentum 0.9 (nesterov)".
std::string describe(const Optimizer& optimizer);

// `step` has the outputs loss_sum, tokens and grad:NAME. With n > 1 it becomes the body of a scan over n
// micro-steps: its i32 batch params gain a leading dim n, and loss_sum, tokens and the gradients are summed
// in f32 from zero, in order.
ir::Graph accumulate(const ir::Graph& step, int64_t n);

// Params added: "learning_rate" (f32), "step" (i32, updates done before this one), with `limits`
// "loss_limit" and "grad_norm_limit" (f32), and the optimizer's moments, "adam_m:NAME" and "adam_v:NAME" say,
// a parameter. Outputs: "loss" (mean over supervised tokens), "tokens", "grad_norm" (of the mean loss, before
// clipping), where the step has "z_loss_sum" its mean "z_loss", then each parameter NAME and its moments,
// which replace the params of these names. Where loss or grad_norm is not finite or is above its limit, they
// keep their values. What lies in host memory, a parameter or its moments, is fetched, updated and offloaded:
// that of the layers in a loop over them, the rest as a whole, the next under the update of the one before.
ir::Graph add_update(const ir::Graph& gradients, const Optimizer& options);

// outputs=grads: "loss", "tokens", then "grad:NAME" of the mean loss (f32), and "logits" where the forward
// graph has them.
ir::Graph add_mean_gradients(const ir::Graph& gradients);

}  // namespace lignum::passes
