#include "generate/generate.h"

#include <algorithm>
#include <chrono>

namespace lignum::generate {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t length_of(const std::vector<int32_t>& prompt) { return static_cast<int64_t>(prompt.size()); }

}  // namespace

std::string_view stop_name(Stop stop) {
  switch (stop) {
    case Stop::eos:
      return "eos";
    case Stop::max_new_tokens:
      return "max_new_tokens";
    case Stop::max_position:
      return "max_position";
  }
  LIGNUM_CHECK(false, "stop {}", static_cast<int>(stop));
}

Result<int64_t> positions_needed(const config::ModelConfig& model,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options) {
  if (prompts.empty()) return user_error("no prompt: give one, or several");
  int64_t most = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t length = length_of(prompts[i]);
    if (length == 0) return user_error("prompt {}: it is empty; a model continues at least one token", i + 1);
    if (length >= model.max_position) {
      return user_error(
          "prompt {}: {} tokens; the model has {} positions (max_position_embeddings), one at least for what "
          "is "
          "generated: shorten the prompt",
          i + 1, length, model.max_position);
    }
    for (const int32_t id : prompts[i]) {
      if (id < 0 || id >= model.vocab_size)
        return user_error("prompt {}: token {} is not in the model's vocabulary of {}", i + 1, id,
                          model.vocab_size);
    }
    most = std::max(most, std::min(length + options.max_new_tokens, model.max_position));
  }
  return most;
}

Result<Generated> generate(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                           const GenerateOptions& options, const OnToken& on_token) {
  const auto rows = static_cast<int64_t>(prompts.size());
  LIGNUM_CHECK(rows == engine.options().rows, "{} prompts for {} rows", rows, engine.options().rows);
  LIGNUM_RETURN_IF_ERROR(check(options.sampling));
  Sampler sampler(options.sampling);
  Generated result;
  result.sequences.resize(prompts.size());
  std::vector<std::span<const int32_t>> next(prompts.begin(), prompts.end());
  std::vector<int32_t> chosen(prompts.size());
  for (const auto& prompt : prompts) result.timing.prefill_tokens += length_of(prompt);

  // Takes the token that row r's logits give; true: the sequence goes on, with that token.
  const auto take = [&](int64_t r) -> Result<bool> {
    const auto row = static_cast<size_t>(r);
    Continuation& c = result.sequences[row];
    const auto index = static_cast<int64_t>(c.ids.size());
    LIGNUM_ASSIGN_OR_RETURN(chosen[row], sampler.sample(engine.logits(r), r, index));
    c.ids.push_back(chosen[row]);
    if (std::ranges::find(options.eos_ids, chosen[row]) != options.eos_ids.end()) {
      c.stop = Stop::eos;
      return false;
    }
    if (on_token) on_token(r, chosen[row]);
    if (index + 1 == options.max_new_tokens) return false;
    if (engine.length(r) + 1 == engine.options().model.max_position) {
      c.stop = Stop::max_position;
      return false;
    }
    return true;
  };

  double begin = now();
  LIGNUM_RETURN_IF_ERROR(engine.append(next));
  bool first = true, any = true;
  while (any) {
    any = false;
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = static_cast<size_t>(r);
      if (next[row].empty()) continue;
      LIGNUM_ASSIGN_OR_RETURN(const bool goes_on, take(r));
      next[row] = goes_on ? std::span<const int32_t>(&chosen[row], 1) : std::span<const int32_t>();
      any |= goes_on;
      if (!first) ++result.timing.decode_tokens;
    }
    const double end = now();
    (first ? result.timing.prefill_seconds : result.timing.decode_seconds) += end - begin;
    begin = end;
    first = false;
    if (!any) break;
    LIGNUM_RETURN_IF_ERROR(engine.append(next));
    result.timing.decode_bytes += engine.decode_bytes();
  }
  return result;
}

}  // namespace lignum::generate
