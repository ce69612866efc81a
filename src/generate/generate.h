// Prompts in, continuations out: the loop around an engine and a sampler.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "generate/engine.h"
#include "generate/sampler.h"

namespace lignum::generate {

struct GenerateOptions {
  Sampling sampling;
  int64_t max_new_tokens = 128;
  std::vector<int32_t> eos_ids;  // a sequence ends with the first of them
};

enum class Stop : uint8_t { eos, max_new_tokens, max_position };
std::string_view stop_name(Stop);

struct Continuation {
  std::vector<int32_t> ids;  // the end token too, if it stopped there
  Stop stop = Stop::max_new_tokens;
};

struct Timing {
  int64_t prefill_tokens = 0, decode_tokens = 0;  // over all sequences; the first new token is prefill's work
  double prefill_seconds = 0, decode_seconds = 0;
  double decode_bytes = 0;  // read in all decoding steps (Engine::decode_bytes)
};

struct Generated {
  std::vector<Continuation> sequences;
  Timing timing;
};

// Called for each new token but an end token, sequences in order within a step.
using OnToken = std::function<void(int64_t sequence, int32_t id)>;

// Positions an engine needs for these prompts. Refuses no prompts, an empty one, a token outside the
// vocabulary and a prompt that leaves no room under the model's max_position, where sequences end.
Result<int64_t> positions_needed(const config::ModelConfig& model,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options);

// The engine is fresh and has a row for each prompt and positions_needed() of them. Greedy or sampled, a
// sequence depends on its own prompt and number alone (f32).
Result<Generated> generate(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                           const GenerateOptions& options, const OnToken& on_token = {});

}  // namespace lignum::generate
