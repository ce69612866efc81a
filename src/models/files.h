// The tensors that a model has in files, and whether a Hugging Face folder holds them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/safetensors.h"
#include "config/model_config.h"

namespace lignum::models {

// In the file's order: names, shapes; all f32.
std::vector<TensorPlan> file_tensors(const config::ModelConfig& model);

// The folder's names for them: GPT-2's published files leave out "transformer.", which all names but the
// head's begin with.
class StoredNames {
 public:
  StoredNames(const config::ModelConfig& model, const ModelFiles& files);
  std::string of(std::string_view name) const;

 private:
  std::string_view absent_;  // prefix
};

// A missing tensor, another shape, or a tensor that the model has no use for (a feature that would be
// dropped) is an error that names it. With tied embeddings an lm_head.weight must equal the table.
Status check_tensors(const config::ModelConfig& model, const ModelFiles& files);

}  // namespace lignum::models
