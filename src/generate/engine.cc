#include "generate/engine.h"

#include <algorithm>

#include "train/parameters.h"

namespace lignum::generate {

Engine::Engine(const EngineOptions& options)
    : options_(options),
      length_(static_cast<size_t>(options.rows)),
      logits_(static_cast<size_t>(options.rows * options.model.vocab_size)) {}

Status Engine::plan(Step& step, int64_t tokens) const {
  plan::GenerationOptions o;
  o.model = options_.model;
  o.shape = {options_.rows, tokens, options_.capacity, options_.dtype};
  o.threads = options_.threads;
  LIGNUM_ASSIGN_OR_RETURN(step.program, plan::make_generation_program(o));
  return {};
}

Status Engine::start(Step& step) {
  exec::ExecutorOptions e;
  e.step = &step.program.scheduled;
  e.plan = &step.program.memory;
  e.parallel = pool_.get();
  e.choice = options_.choice;
  e.arena = &arena_;
  LIGNUM_ASSIGN_OR_RETURN(step.executor, exec::Executor::create(e));
  const auto integers = [&](std::string_view name) {
    return reinterpret_cast<int32_t*>(step.executor->param(name));
  };
  step.ids = integers("input_ids");
  step.start = integers("start");
  step.count = integers("count");
  step.logits = reinterpret_cast<const float*>(step.executor->output("logits"));
  return {};
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  LIGNUM_CHECK(options.rows >= 1 && options.capacity >= 1 && options.prefill_tokens >= 1,
               "rows {} capacity {} tokens {}", options.rows, options.capacity, options.prefill_tokens);
  std::unique_ptr<Engine> e(new Engine(options));
  LIGNUM_ASSIGN_OR_RETURN(e->pool_, exec::ThreadPool::create(options.threads));
  LIGNUM_RETURN_IF_ERROR(e->plan(e->decode_, 1));
  int64_t bytes = e->decode_.program.memory.arena_bytes;
  const bool prefills = options.prefill_tokens > 1;
  if (prefills) {
    LIGNUM_RETURN_IF_ERROR(e->plan(e->prefill_, options.prefill_tokens));
    bytes = std::max(bytes, e->prefill_.program.memory.arena_bytes);
  }
  LIGNUM_ASSIGN_OR_RETURN(e->arena_, exec::Arena::create(bytes, options.device_memory));
  LIGNUM_RETURN_IF_ERROR(e->start(e->decode_));
  if (prefills) LIGNUM_RETURN_IF_ERROR(e->start(e->prefill_));
  return e;
}

Status Engine::load(const ModelFiles& files) {
  return train::load_parameters(options_.model, files, {decode_.program, {}, 0}, *decode_.executor);
}

Status Engine::run(Step& step, int64_t tokens, std::span<const std::span<const int32_t>> all, int64_t at) {
  const int64_t vocab = options_.model.vocab_size;
  for (int64_t r = 0; r < options_.rows; ++r) {
    const auto row = static_cast<size_t>(r);
    const auto left = static_cast<int64_t>(all[row].size()) - at;
    const int64_t count = std::clamp<int64_t>(left, 0, tokens);
    int32_t* ids = step.ids + r * tokens;
    if (count > 0) std::copy_n(all[row].data() + at, count, ids);
    std::fill(ids + count, ids + tokens, 0);
    step.start[row] = static_cast<int32_t>(length_[row]);
    step.count[row] = static_cast<int32_t>(count);
  }
  LIGNUM_RETURN_IF_ERROR(step.executor->step());
  for (int64_t r = 0; r < options_.rows; ++r) {
    const auto row = static_cast<size_t>(r);
    const auto left = static_cast<int64_t>(all[row].size()) - at;
    if (left <= 0) continue;
    length_[row] += std::min(left, tokens);
    if (left <= tokens) std::copy_n(step.logits + r * vocab, vocab, logits_.begin() + r * vocab);
  }
  return {};
}

Status Engine::append(std::span<const std::span<const int32_t>> tokens) {
  LIGNUM_CHECK(static_cast<int64_t>(tokens.size()) == options_.rows, "tokens of {} rows for {}",
               tokens.size(), options_.rows);
  int64_t longest = 0;
  for (size_t r = 0; r < tokens.size(); ++r) {
    const auto count = static_cast<int64_t>(tokens[r].size());
    longest = std::max(longest, count);
    if (length_[r] + count > options_.capacity) {
      return user_error("sequence {}: {} tokens after {} are more than the cache's {} positions", r, count,
                        length_[r], options_.capacity);
    }
    for (const int32_t id : tokens[r]) {
      if (id < 0 || id >= options_.model.vocab_size)
        return user_error("sequence {}: token {} is not in the model's vocabulary of {}", r, id,
                          options_.model.vocab_size);
    }
  }
  for (int64_t at = 0; at < longest;) {
    const bool one = longest - at == 1 || prefill_.executor == nullptr;
    const int64_t count = one ? 1 : options_.prefill_tokens;
    LIGNUM_RETURN_IF_ERROR(run(one ? decode_ : prefill_, count, tokens, at));
    at += count;
  }
  return {};
}

std::span<const float> Engine::logits(int64_t r) const {
  const auto vocab = static_cast<size_t>(options_.model.vocab_size);
  return std::span(logits_).subspan(static_cast<size_t>(r) * vocab, vocab);
}

double Engine::decode_bytes() const {
  const config::ModelConfig& m = options_.model;
  double elements = static_cast<double>(m.parameters());
  if (!m.tie_embeddings)
    elements -= static_cast<double>(m.vocab_size - options_.rows) * static_cast<double>(m.hidden);
  const double position = 2.0 * static_cast<double>(m.layers * m.kv_heads * m.head_dim);
  for (const int64_t n : length_) elements += position * static_cast<double>(n);
  return elements * static_cast<double>(dtype_size(options_.dtype));
}

}  // namespace lignum::generate
