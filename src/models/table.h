// The parameters of a model by the names that its builder has for them (decoder.cc). Private to models.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace lignum::models {

enum class Slot : uint8_t { top, layer };
struct Row {
  Parameter parameter;
  Slot slot = Slot::top;
  std::string key;   // short name inside the builder; a bias is its weight's and "b"
  size_t range = 0;  // of a layer's parameter: which range, and which layer of its body
  int64_t member = 0;
  bool adds_one = false;  // a norm that scales by 1 + the parameter
};

// In the order of models::parameters. Top: "embed", "position" (learnt ones), "norm", "normb", "head".
std::vector<Row> table(const config::ModelConfig& model);

// The layers' weights are [in, out], as a family has them in its files; else [out, in].
bool input_major(const config::ModelConfig& model);

}  // namespace lignum::models
