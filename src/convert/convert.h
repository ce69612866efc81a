// Models into Hugging Face folders: from another such folder (in another type, in one file, with a
// config.json that old and new readers understand), and from GGUF.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace lignum::convert {

struct Converted {
  std::string family;
  int64_t tensors = 0, elements = 0;
  uint64_t bytes = 0;      // of model.safetensors
  bool tokenizer = false;  // tokenizer.json is there
};

// `from` is a Hugging Face folder or a .gguf file. Into the folder `to`, which must hold no model yet:
// model.safetensors, tokenizer files, and config.json last. dtype (f32 or bf16) is that of the tensors,
// rounded to nearest even; f32 keeps the bits of f32 tensors, and bf16 those of bf16. Of a folder, the files
// that tokenisers and chat consist of are copied.
Result<Converted> convert(const std::string& from, const std::string& to, DType dtype);

}  // namespace lignum::convert
