// A model that reads and continues token sequences: the steps of generation, their cache and what runs them.
// Knows tokens, not text, and chooses none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/safetensors.h"
#include "base/status.h"
#include "config/model_config.h"
#include "exec/executor.h"
#include "exec/thread_pool.h"
#include "kernels/isa.h"
#include "plan/program.h"

namespace lignum::generate {

struct EngineOptions {
  config::ModelConfig model;
  int64_t rows = 1;            // sequences, side by side
  int64_t capacity = 1;        // positions of each
  int64_t prefill_tokens = 1;  // of a row and step, while more than one is to be read
  DType dtype = DType::f32;
  int threads = 1;
  kernels::Choice choice;
  int64_t device_memory = 0;  // budget in bytes, 0: none
};

// One sequence a row, empty at first. In f32 the logits of a token have the bits that the forward pass over
// the whole sequence gives them: they depend neither on how it was cut into steps nor on the other rows.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);

  // The weights of a Hugging Face folder or a checkpoint, rounded to the dtype.
  Status load(const ModelFiles& files);

  // Appends tokens[r] to row r's sequence: none, one or many; each in the vocabulary, and no row past the
  // capacity. Where some row has more than one, all rows advance by up to prefill_tokens a step.
  Status append(std::span<const std::span<const int32_t>> tokens);
  // Of the last token that row r was given: its continuation's. f32 [vocab]; until the next append.
  std::span<const float> logits(int64_t r) const;
  int64_t length(int64_t r) const { return length_[static_cast<size_t>(r)]; }

  const EngineOptions& options() const { return options_; }
  const plan::Program& decode_program() const { return decode_.program; }
  exec::Executor& decode_executor() const { return *decode_.executor; }
  int64_t arena_bytes() const { return arena_.bytes(); }
  // What one decoding step reads of memory at these lengths: each weight once (of an untied embedding table
  // only the tokens' rows), and the keys and values of every row's sequence.
  double decode_bytes() const;

 private:
  struct Step {
    plan::Program program;
    std::unique_ptr<exec::Executor> executor;
    int32_t *ids = nullptr, *start = nullptr, *count = nullptr;
    const float* logits = nullptr;
  };
  explicit Engine(const EngineOptions& options);
  Status plan(Step& step, int64_t tokens) const;
  Status start(Step& step);
  Status run(Step& step, int64_t tokens, std::span<const std::span<const int32_t>> all, int64_t at);

  EngineOptions options_;
  std::unique_ptr<exec::ThreadPool> pool_;
  exec::Arena arena_;      // the steps take it in turns: weights and cache are the same tensors
  Step prefill_, decode_;  // prefill_ has no executor where prefill_tokens is 1
  std::vector<int64_t> length_;
  std::vector<float> logits_;  // [rows, vocab]
};

}  // namespace lignum::generate
