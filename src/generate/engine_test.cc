// The cache against the whole sequence: the same weights, read token by token, in chunks and side by side,
// give the bits of the forward pass (f32).
#include "generate/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/rng.h"
#include "generate/generate.h"
#include "generate/model_folder.h"
#include "ops/interpreter.h"
#include "train/parameters.h"

namespace lignum::generate {
namespace {

constexpr const char* kFolders[] = {
    "llama_rope_llama3", "llama_tied_linear", "llama_yarn", "qwen3", "mistral_window", "gemma2", "gemma3",
    "gpt2-tiny"};
ModelFolder reference_model(const std::string& name) {
  return open_model(std::string(LIGNUM_SOURCE_DIR "/tests/golden/") + name).value();
}

// Grouped queries, untied, and widths that no vector divides.
config::ModelConfig grouped_model() {
  config::ModelConfig m;
  m.vocab_size = 301;
  m.hidden = 40;
  m.layers = 3;
  m.heads = 6;
  m.kv_heads = 2;
  m.head_dim = 10;
  m.mlp = 70;
  m.max_position = 400;
  m.initializer_range = 0.3;  // logits that differ
  return m;
}

using Load = std::function<void(const plan::Program&, exec::Executor&)>;
Load weights_of(const ModelFolder& folder) {
  return [&folder](const plan::Program& program, exec::Executor& executor) {
    const Status status = train::load_parameters(folder.model, folder.files, {program, {}, 0}, executor);
    ASSERT_TRUE(status.ok()) << status.message();
  };
}
Load random_weights(const config::ModelConfig& model) {
  return [&model](const plan::Program& program, exec::Executor& executor) {
    EXPECT_TRUE(train::init_parameters(model, {program, {}, 0}, executor, 5).ok());
  };
}

std::vector<int32_t> some_tokens(int64_t count, int64_t vocab, uint64_t seed = 3) {
  const Random random(seed, "tokens");
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
  return ids;
}

// [tokens, vocab]: the training graph's forward pass over the whole sequence, without a cache.
std::vector<float> forward_logits(const config::ModelConfig& model, const Load& load,
                                  const std::vector<int32_t>& ids) {
  plan::ProgramOptions o;
  o.model = model;
  o.shape = {1, static_cast<int64_t>(ids.size()), DType::f32};
  o.outputs = plan::Outputs::loss;
  o.logits = true;
  const plan::Program program = plan::make_program(o).value();
  Serial serial;
  exec::ExecutorOptions e;
  e.step = &program.scheduled;
  e.plan = &program.memory;
  e.parallel = &serial;
  e.choice = {kernels::best_isa()};
  const auto executor = exec::Executor::create(e).value();
  load(program, *executor);
  std::copy(ids.begin(), ids.end(), reinterpret_cast<int32_t*>(executor->param("input_ids")));
  auto* positions = reinterpret_cast<int32_t*>(executor->param("positions"));
  for (size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<int32_t>(i);
  EXPECT_TRUE(executor->step().ok());
  const auto* logits = reinterpret_cast<const float*>(executor->output("logits"));
  return {logits, logits + static_cast<int64_t>(ids.size()) * model.vocab_size};
}

std::unique_ptr<Engine> engine_of(const config::ModelConfig& model, const Load& load, int64_t rows,
                                  int64_t capacity, int64_t prefill_tokens, int threads = 1,
                                  DType dtype = DType::f32) {
  EngineOptions o;
  o.model = model;
  o.rows = rows;
  o.capacity = capacity;
  o.prefill_tokens = prefill_tokens;
  o.dtype = dtype;
  o.threads = threads;
  o.choice = {kernels::best_isa()};
  std::unique_ptr<Engine> engine = Engine::create(o).value();
  load(engine->decode_program(), engine->decode_executor());
  return engine;
}

Status append_one(Engine& engine, std::span<const int32_t> ids) {
  return engine.append(std::vector<std::span<const int32_t>>{ids});
}

// "" if the two have the same bits.
std::string difference(std::span<const float> got, const float* want) {
  for (size_t i = 0; i < got.size(); ++i)
    if (std::memcmp(&got[i], &want[i], sizeof(float)) != 0)
      return fmt::format("logit {}: {} and {}", i, got[i], want[i]);
  return "";
}

void check_every_position(const config::ModelConfig& model, const Load& load, int64_t tokens) {
  const std::vector<int32_t> ids = some_tokens(tokens, model.vocab_size);
  const std::vector<float> want = forward_logits(model, load, ids);
  // Chunks of 1, 2, 3, ... tokens, of steps of at most 7; then token by token.
  for (const int64_t prefill : {7, 1}) {
    const auto engine = engine_of(model, load, 1, tokens, prefill, 2);
    int64_t next = 0;
    for (int64_t chunk = 1; next < tokens; ++chunk) {
      const int64_t count = std::min(prefill == 1 ? 1 : chunk, tokens - next);
      const Status status =
          append_one(*engine, std::span(ids).subspan(static_cast<size_t>(next), static_cast<size_t>(count)));
      ASSERT_TRUE(status.ok()) << status.message();
      next += count;
      ASSERT_EQ(difference(engine->logits(0), want.data() + (next - 1) * model.vocab_size), "")
          << "after " << next << " tokens, " << count << " at once, steps of " << prefill;
    }
    EXPECT_EQ(engine->length(0), tokens);
  }
}

TEST(Engine, LogitsAreThoseOfTheForwardPass) {
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    const ModelFolder folder = reference_model(name);
    check_every_position(folder.model, weights_of(folder), std::min<int64_t>(48, folder.model.max_position));
  }
  const config::ModelConfig model = grouped_model();
  check_every_position(model, random_weights(model), 240);  // past a block of keys
}

std::vector<int32_t> greedy_without_cache(const config::ModelConfig& model, const Load& load,
                                          std::vector<int32_t> ids, int64_t count) {
  Sampler greedy({.temperature = 0});
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<float> logits = forward_logits(model, load, ids);
    const size_t vocab = static_cast<size_t>(model.vocab_size);
    out.push_back(greedy.sample(std::span(logits).last(vocab), 0, i).value());
    ids.push_back(out.back());
  }
  return out;
}

void check_greedy(const config::ModelConfig& model, const Load& load) {
  // Side by side, of different lengths: more rows than are read as they lie, one longer than a step's tokens.
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t n : {1, 9, 4, 2, 3})
    prompts.push_back(some_tokens(n, model.vocab_size, static_cast<uint64_t>(n)));
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_new_tokens = 6;
  const int64_t positions = positions_needed(model, prompts, o).value();
  const auto engine = engine_of(model, load, static_cast<int64_t>(prompts.size()), positions, 4, 2);
  const Generated got = generate(*engine, prompts, o).value();
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(got.sequences[i].ids, greedy_without_cache(model, load, prompts[i], o.max_new_tokens))
        << "prompt " << i;
}

TEST(Engine, GreedyTokensAreThoseWithoutACache) {
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    const ModelFolder folder = reference_model(name);
    check_greedy(folder.model, weights_of(folder));
  }
  const config::ModelConfig model = grouped_model();
  check_greedy(model, random_weights(model));
}

TEST(Engine, SamplesDependOnSeedAndRowAlone) {
  const config::ModelConfig model = grouped_model();
  const Load load = random_weights(model);
  const std::vector<std::vector<int32_t>> prompts = {some_tokens(3, 301), some_tokens(8, 301),
                                                     some_tokens(3, 301)};
  GenerateOptions o;
  o.sampling = {.temperature = 2, .top_k = 60, .top_p = 0.97, .seed = 11};
  o.max_new_tokens = 12;
  const auto run = [&](int threads, int64_t prefill, uint64_t seed) {
    o.sampling.seed = seed;
    const auto engine =
        engine_of(model, load, 3, positions_needed(model, prompts, o).value(), prefill, threads);
    std::vector<std::vector<int32_t>> ids;
    const Generated all = generate(*engine, prompts, o).value();
    for (const Continuation& c : all.sequences) ids.push_back(c.ids);
    return ids;
  };
  const auto first = run(1, 8, 11);
  EXPECT_EQ(run(2, 8, 11), first) << "two threads draw otherwise";
  EXPECT_EQ(run(1, 3, 11), first) << "another cut of the prompts draws otherwise";
  EXPECT_NE(run(1, 8, 12), first) << "another seed draws the same";
  EXPECT_NE(first[0], first[2]) << "equal prompts of two rows draw the same";
}

TEST(Engine, Bf16IsAsNearAsItsRoundingsAllow) {
  const ModelFolder folder = reference_model("llama_tied_linear");
  const std::vector<int32_t> ids = some_tokens(13, folder.model.vocab_size);
  const auto engine = engine_of(folder.model, weights_of(folder), 1, 13, 13, 1, DType::bf16);
  ASSERT_TRUE(append_one(*engine, ids).ok());
  const std::vector<float> prefilled(engine->logits(0).begin(), engine->logits(0).end());
  const auto stepwise = engine_of(folder.model, weights_of(folder), 1, 13, 1, 1, DType::bf16);
  ASSERT_TRUE(append_one(*stepwise, ids).ok());

  // The same step through the ops' references: exact, and with every bf16 edge rounded.
  plan::GenerationOptions o{
      .model = folder.model, .shape = {1, 13, 13, DType::bf16}, .threads = 1, .dump = {}};
  const plan::Program program = plan::make_generation_program(o).value();
  const ir::Graph& graph = *program.local;
  std::vector<ops::RefTensor> inputs;
  for (int64_t i = 0; i < static_cast<int64_t>(graph.params().size()); ++i) {
    const ir::Type& type = graph.type(graph.param_value(i));
    ops::RefTensor t{type.dims, std::vector<double>(static_cast<size_t>(type.elements()), 0.0)};
    const std::string& name = graph.param_name(i);
    if (name == "input_ids") {
      t.data.assign(ids.begin(), ids.end());
    } else if (name == "count") {
      t.data = {13};
    } else if (name.find('.') != std::string::npos) {
      const std::byte* data = engine->decode_executor().param(i);
      for (size_t k = 0; k < t.data.size(); ++k)
        t.data[k] = load_as_double(type.dtype, data, static_cast<int64_t>(k));
    }
    inputs.push_back(std::move(t));
  }
  const auto exact = ops::interpret(graph, inputs)[0].data;
  const auto rounded = ops::interpret(graph, inputs, {.round_edges = true})[0].data;
  const auto distance = [&](const auto& values) {
    double sum = 0;
    for (size_t i = 0; i < exact.size(); ++i) sum += std::pow(static_cast<double>(values[i]) - exact[i], 2);
    return std::sqrt(sum);
  };
  double norm = 0;
  for (const double x : exact) norm += x * x;
  const double bound = 2 * distance(rounded) + 1e-4 * std::sqrt(norm);
  EXPECT_LE(distance(prefilled), bound);
  EXPECT_LE(distance(stepwise->logits(0)), bound);
  EXPECT_GT(distance(rounded), 0);
}

TEST(Engine, SequencesStopWhereTheyShould) {
  config::ModelConfig model = grouped_model();
  model.max_position = 12;
  const Load load = random_weights(model);
  const std::vector<std::vector<int32_t>> prompts = {some_tokens(9, 301), some_tokens(2, 301)};
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_new_tokens = 7;
  const auto run = [&] {
    const auto engine = engine_of(model, load, 2, positions_needed(model, prompts, o).value(), 9);
    return generate(*engine, prompts, o).value();
  };
  const Generated whole = run();
  EXPECT_EQ(whole.sequences[0].stop, Stop::max_position);
  EXPECT_EQ(whole.sequences[0].ids.size(), 3u);
  EXPECT_EQ(whole.sequences[1].stop, Stop::max_new_tokens);
  EXPECT_EQ(whole.sequences[1].ids.size(), 7u);
  EXPECT_EQ(whole.timing.prefill_tokens, 11);
  EXPECT_EQ(whole.timing.decode_tokens, 8);  // 3 + 7 but for the first of each
  // The third token of the second sequence ends it; the other goes on.
  o.eos_ids = {whole.sequences[1].ids[2]};
  const Generated ended = run();
  EXPECT_EQ(ended.sequences[1].stop, Stop::eos);
  const auto& ids = whole.sequences[1].ids;
  const auto end = std::find(ids.begin(), ids.end(), o.eos_ids[0]);
  EXPECT_EQ(ended.sequences[1].ids, std::vector<int32_t>(ids.begin(), end + 1));
}

TEST(Engine, RefusesWhatItCannotTake) {
  const config::ModelConfig model = grouped_model();
  const auto engine = engine_of(model, random_weights(model), 1, 4, 4);
  EXPECT_NE(append_one(*engine, std::vector<int32_t>{7, 301}).message().find("token 301"), std::string::npos);
  EXPECT_NE(append_one(*engine, std::vector<int32_t>{-1}).message().find("token -1"), std::string::npos);
  EXPECT_NE(append_one(*engine, some_tokens(5, 301)).message().find("4 positions"), std::string::npos);
  EXPECT_EQ(engine->length(0), 0);
  const auto refused = [&](const std::vector<std::vector<int32_t>>& prompts) {
    return positions_needed(model, prompts, {}).status().message();
  };
  EXPECT_NE(refused({}).find("no prompt"), std::string::npos);
  EXPECT_NE(refused({{1}, {}}).find("prompt 2: it is empty"), std::string::npos);
  EXPECT_NE(refused({some_tokens(400, 301)}).find("400 positions"), std::string::npos);
  EXPECT_EQ(positions_needed(model, {some_tokens(399, 301)}, {}).value(), 400);
}

// The cache is written where it lies: no copy of it, and of the arena nothing that grows with it twice.
TEST(Engine, TheCacheIsInPlace) {
  const config::ModelConfig model = grouped_model();
  const auto cache_bytes = [&](int64_t capacity) { return 2 * model.layers * capacity * 2 * 10 * 4; };
  const auto arena = [&](int64_t capacity) {
    plan::GenerationOptions o{
        .model = model, .shape = {1, 1, capacity, DType::f32}, .threads = 1, .dump = {}};
    return plan::make_generation_program(o).value();
  };
  const plan::Program small = arena(100), large = arena(5100);
  EXPECT_LE(std::abs(large.memory.arena_bytes - small.memory.arena_bytes - cache_bytes(5000)), 256);
  for (const auto& [id, body] : large.memory.layout.bodies) {
    for (const passes::Copy& c : body.at_end) EXPECT_EQ(c.what, "x") << c.bytes;
  }
}

}  // namespace
}  // namespace lignum::generate
