// verify-model: a folder with a Hugging Face model and what PyTorch computed for it, against this program.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/isa.h"

namespace lignum::train {

// One compared tensor or number. error and norm: L2 norms of the difference and of the reference; bound: the
// allowed error.
struct Comparison {
  std::string kind;  // "logits", "loss", "gradient", "adamw loss", "adamw grad_norm"
  std::string name;
  double error = 0, norm = 0, bound = 0;
  bool ok() const { return error <= bound; }  // false for NaN
};

struct VerifyOptions {
  int threads = 1;
  kernels::Choice choice;
};

// The folder holds config.json, model.safetensors, reference.safetensors (input_ids, labels, logits, loss,
// grad.NAME) and reference.json (AdamW: settings, loss and gradient norm of each step); without any grad.NAME
// logits and loss alone are compared. Bounds
// (docs/numerics.md): 1e-5 of a tensor's norm
// + 1e-7 of the global norm of its kind; losses and norms 1e-5 of themselves.
Result<std::vector<Comparison>> verify_model(const std::string& folder, const VerifyOptions& options);

}  // namespace lignum::train
