// Several documents in a row: none of them may show in another's logits, positions, loss or gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "parity.h"
#include "runs.h"
#include "train/parameters.h"
#include "train/rank_executor.h"

namespace lignum::train {
namespace {

constexpr int64_t kVocab = 61;

config::ModelConfig model() {
  config::ModelConfig m;
  m.vocab_size = kVocab;
  m.hidden = 32;
  m.layers = 2;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.mlp = 48;
  return m;
}

struct Row {
  std::vector<int32_t> ids, labels, positions, segments;

  // Adds a document, whose last token has nothing to predict.
  Row& add(const std::vector<int32_t>& document) {
    const int32_t segment = segments.empty() ? 1 : segments.back() + 1;
    for (size_t t = 0; t < document.size(); ++t) {
      ids.push_back(document[t]);
      labels.push_back(t + 1 < document.size() ? document[t + 1] : -100);
      positions.push_back(static_cast<int32_t>(t));
      segments.push_back(segment);
    }
    return *this;
  }
  Row& fill_up(size_t seq) {
    ids.resize(seq, 0);
    labels.resize(seq, -100);
    positions.resize(seq, 0);
    segments.resize(seq, 0);
    return *this;
  }
};

struct Way {
  kernels::Choice choice;
  DType dtype = DType::f32;
  std::string remat = "none";
  bool fp8 = false;  // dots of the layers, with scales that are fixed
};

struct Outcome {
  float loss = 0, tokens = 0;
  std::vector<float> logits;  // [rows, seq, vocab]
  std::vector<std::vector<float>> gradients;

  std::vector<float> logits_of(int64_t first, int64_t count) const {
    return {logits.begin() + first * kVocab, logits.begin() + (first + count) * kVocab};
  }
};

// One rank's outputs: of the logits the tokens that it holds, in their places.
Status run_rank(const plan::ProgramOptions& o, const plan::Program& program, const Way& way,
                const std::vector<Row>& rows, comm::Transport& transport, Outcome& out) {
  LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(1));
  exec::ExecutorOptions e;
  e.step = &program.scheduled;
  e.plan = &program.memory;
  e.mesh = &o.mesh;
  e.transport = transport.size() > 1 ? &transport : nullptr;
  e.parallel = pool.get();
  e.choice = way.choice;
  LIGNUM_ASSIGN_OR_RETURN(const auto executor, exec::Executor::create(e));
  exec::Executor& x = *executor;
  const RankShards shards{program, o.mesh, transport.rank()};
  LIGNUM_RETURN_IF_ERROR(init_parameters(o.model, shards, x, 7));
  const int64_t groups = row_group(o.mesh, o.mesh.ranks() - 1) + 1;
  Batch batch(o.shape.batch / groups, o.shape.sequence);
  const int64_t first = row_group(o.mesh, transport.rank()) * batch.rows;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const RowBuffers to = batch.row(r);
    const Row& from = rows[static_cast<size_t>(first + r)];
    std::copy(from.ids.begin(), from.ids.end(), to.ids);
    std::copy(from.labels.begin(), from.labels.end(), to.labels);
    std::copy(from.positions.begin(), from.positions.end(), to.positions);
    std::copy(from.segments.begin(), from.segments.end(), to.segments);
  }
  BatchInputs(x, program, o.mesh, transport.rank()).put(batch, 0);
  LIGNUM_RETURN_IF_ERROR(x.step());
  gather_gradients(o.model, shards, x, out.gradients);
  if (transport.rank() == 0) {
    out.loss = read_scalar(x, "loss");
    out.tokens = read_scalar(x, "tokens");
  }
  const auto& outputs = program.local->outputs();
  const auto at = std::find_if(outputs.begin(), outputs.end(),
                               [](const auto& output) { return output.name == "logits"; });
  const ir::Type& type = program.local->type(at->value);
  const auto& axes = program.outputs[static_cast<size_t>(at - outputs.begin())].dims[1];
  for (int64_t row = 0, from = 0; row < batch.rows; ++row)
    for (const passes::Range& tokens : passes::token_ranges(batch.seq, axes, o.mesh, transport.rank()))
      for (int64_t i = tokens.begin * kVocab; i < tokens.end * kVocab; ++i)
        out.logits[static_cast<size_t>((first + row) * batch.seq * kVocab + i)] =
            static_cast<float>(load_as_double(type.dtype, x.output("logits"), from++));
  return {};
}

Outcome run(const std::vector<Row>& rows, bool segmented, const Way& way, const passes::Mesh& mesh = {}) {
  plan::ProgramOptions o;
  o.model = model();
  o.mesh = mesh;
  o.pipeline.stages = o.pipeline.microbatches = mesh.size("pipeline");
  o.shape = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].ids.size()), way.dtype};
  o.shape.segmented = segmented;
  o.outputs = plan::Outputs::grads;
  o.logits = true;
  o.remat = passes::remat_policy(way.remat).value();
  if (way.fp8) o.quantization = {parity::fp8_full("fixed,-1,1 fixed,-16,16 fixed,-2,2", false)};
  Outcome out;
  out.logits.resize(static_cast<size_t>(o.shape.batch * o.shape.sequence * kVocab));
  out.gradients = zero_tensors(o.model);
  const Result<plan::Program> program = plan::make_program(o);
  EXPECT_TRUE(program.ok()) << program.status().message();
  const Status status =
      comm::ThreadWorld(static_cast<int>(mesh.ranks())).run([&](comm::Transport& transport) {
        return run_rank(o, *program, way, rows, transport, out);
      });
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const kernels::Isa isa : kernels::available_isas()) {
    all.push_back({{isa}});
    for (const kernels::Bf16Dot dot : kernels::available_bf16_dots(isa))
      all.push_back({{isa, dot}, DType::bf16});
  }
  all.push_back({{kernels::best_isa()}, DType::f32, "none", true});
  return all;
}

std::vector<int32_t> document_a() { return {7, 11, 2, 30, 5}; }
std::vector<int32_t> document_b() { return {9, 2, 44, 1}; }

double norm(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

TEST(Packing, DocumentsOfARowAreAsIfAlone) {
  const Row packed = Row().add(document_a()).add(document_b()).fill_up(12);
  ASSERT_EQ(packed.positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0}));
  Row edited = packed;
  edited.ids[2] = 3;
  const std::vector<Row> alone = {Row().add(document_a()).fill_up(12), Row().add(document_b()).fill_up(12)};
  for (const Way& way : ways()) {
    SCOPED_TRACE(fmt::format("{} {} {}{}", kernels::isa_name(way.choice.isa), dtype_name(way.dtype),
                             kernels::bf16_dot_name(way.choice.bf16_dot), way.fp8 ? " FP8" : ""));
    const Outcome one = run({packed}, true, way), two = run(alone, false, way);
    EXPECT_EQ(one.tokens, 7);  // 4 in A, 3 in B
    EXPECT_EQ(one.logits_of(5, 4), run({edited}, true, way).logits_of(5, 4));
    // Without segments B sees A: restarting positions alone is not enough.
    EXPECT_NE(run({packed}, false, way).logits_of(5, 4), run({edited}, false, way).logits_of(5, 4));
    // A quotient near the middle of two 8-bit floats may go either way.
    const double relative = way.fp8 ? 0x1p-4 : way.dtype == DType::f32 ? 1e-6 : 0x1p-6;
    EXPECT_NEAR(one.loss, two.loss, relative * two.loss);
    EXPECT_EQ(two.tokens, 7);
    for (size_t p = 0; p < one.gradients.size(); ++p) {
      std::vector<float> difference = one.gradients[p];
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= two.gradients[p][i];
      EXPECT_LE(norm(difference), relative * norm(two.gradients[p])) << p;
    }
    Way recomputed = way;
    recomputed.remat = "full";
    const Outcome again = run({packed}, true, recomputed);
    EXPECT_EQ(again.logits, one.logits);
    EXPECT_EQ(again.gradients, one.gradients);
    EXPECT_EQ(again.loss, one.loss);
  }
}

// So they are on every mesh: where ranks share the tokens of a row, whose cuts go through both documents,
// where they share heads, and where rows go through stages. Positions, documents and what is supervised stay
// those of the row, whether keys are gathered or go round.
TEST(Packing, DocumentsOfARowAreAsIfAloneOnMeshes) {
  const Row a_b = Row().add(document_a()).add(document_b()).fill_up(12),
            b_a = Row().add(document_b()).add(document_a()).fill_up(12),
            a = Row().add(document_a()).fill_up(12), b = Row().add(document_b()).fill_up(12);
  Row edited = a_b;
  edited.ids[2] = 3;
  // One supervised token in the first half of a row and three in the second: the loss is over tokens, not
  // over ranks.
  Row few = Row().add({4, 8, 15, 16, 23, 42, 3, 5, 9, 1, 2, 6});
  for (const size_t t : {0, 2, 3, 4, 5, 6, 10}) few.labels[t] = -100;
  const Way way{{kernels::best_isa()}};
  const Outcome alone = run({a, b, b, a}, false, way), of_few = run({few, few}, true, way);
  EXPECT_EQ(alone.tokens, 14);
  EXPECT_EQ(of_few.tokens, 8);
  const std::vector<passes::Mesh> meshes = {{{{"context", 2}}, false, false},
                                            {{{"context", 2}}, true, false},
                                            {{{"context", 2}}, false, true},
                                            {{{"context", 2}}, true, true},
                                            {{{"tensor", 2}}},
                                            {{{"fsdp_transpose", 2}, {"context", 2}}, true, false},
                                            {{{"pipeline", 2}}},
                                            {{{"fsdp", 2}, {"context", 2}, {"tensor", 2}}, true, false}};
  for (const passes::Mesh& mesh : meshes) {
    std::string name = fmt::format("balanced {} ring {}", mesh.balanced, mesh.ring);
    for (const passes::MeshAxis& axis : mesh.axes) name += fmt::format(" {}={}", axis.name, axis.size);
    SCOPED_TRACE(name);
    const Outcome one = run({a_b, b_a}, true, way, mesh), other = run({edited, b_a}, true, way, mesh);
    EXPECT_EQ(one.tokens, 14);
    EXPECT_EQ(one.logits_of(5, 4), other.logits_of(5, 4));
    EXPECT_EQ(one.logits_of(12, 12), other.logits_of(12, 12));
    EXPECT_NE(one.logits_of(0, 5), other.logits_of(0, 5));
    const auto near = [](const Outcome& got, const Outcome& want) {
      EXPECT_NEAR(got.loss, want.loss, 1e-6 * want.loss);
      for (size_t p = 0; p < got.gradients.size(); ++p) {
        std::vector<float> difference = got.gradients[p];
        for (size_t i = 0; i < difference.size(); ++i) difference[i] -= want.gradients[p][i];
        EXPECT_LE(norm(difference), 1e-6 * norm(want.gradients[p])) << p;
      }
    };
    near(one, alone);
    near(run({few, few}, true, way, mesh), of_few);
  }
}

// pad and end of text are one id: what is padding follows from the row's length, not from the id.
TEST(Packing, PadsAreNotTakenByTheirId) {
  Row row = Row().add({5, 6, 2, 7, 2}).fill_up(8);
  std::fill(row.ids.begin() + 5, row.ids.end(), 2);
  EXPECT_EQ(row.labels, (std::vector<int32_t>{6, 2, 7, 2, -100, -100, -100, -100}));
  Row other = row;
  std::fill(other.ids.begin() + 5, other.ids.end(), 0);
  const Outcome two = run({row}, true, {{kernels::best_isa()}}),
                zero = run({other}, true, {{kernels::best_isa()}});
  EXPECT_EQ(two.tokens, 4);
  EXPECT_EQ(two.loss, zero.loss);
  EXPECT_EQ(two.gradients, zero.gradients);
  double mean = 0;
  for (int64_t t = 0; t < 4; ++t) {
    const std::vector<float> logits = two.logits_of(t, 1);
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    mean += (std::log(sum) -
             static_cast<double>(logits[static_cast<size_t>(row.labels[static_cast<size_t>(t)])])) /
            4;
  }
  EXPECT_NEAR(two.loss, mean, 1e-6 * mean);
}

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

// Ten samples of a line each.
class SampleFolder : public lignum::testing::RunFolder {
 public:
  SampleFolder() {
    ::setenv("XDG_CACHE_HOME", (*this / "cache").c_str(), 1);
    std::string lines;
    for (int i = 0; i < 10; ++i)
      lines += fmt::format("{{\"text\": \"{}{}\"}}\n", i, std::string("abcdefghij").substr(0, 4 + i * 7 % 5));
    EXPECT_TRUE(write_file_atomic(*this / "ten.jsonl", lines).ok());
  }
  ~SampleFolder() { ::unsetenv("XDG_CACHE_HOME"); }

  Result<TrainSummary> go(const std::string& name, std::vector<std::string> words) const {
    words.insert(words.end(), {"train_files=" + (*this / "ten.jsonl"), "data_shuffle_seed=42",
                               "learning_rate=1e-3", "gradient_clipping_threshold=0"});
    return train(name, words);
  }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> out;
    for (const auto& record : steps(name)) out.push_back(record["loss"].get<double>());
    return out;
  }
};

// Three epochs of ten samples, stopped inside the second and resumed: the same losses to the bit, whatever
// reads the rows, and in the same order on another number of ranks.
TEST(Packing, ResumeGoesOnWithTheSameSamples) {
  const SampleFolder f;
  ASSERT_OK(f.go("whole", {"steps=15"}));
  const std::vector<double> want = f.losses("whole");
  ASSERT_EQ(want.size(), 15U);
  ASSERT_OK(f.go("parts", {"steps=8", "grain_worker_count=1"}));
  ASSERT_OK(f.go("parts", {"steps=15", "grain_worker_count=4"}));
  EXPECT_EQ(f.losses("parts"), want);

  const std::vector<std::string> two = {"ranks=2", "ici_data_parallelism=2", "per_device_batch_size=1"};
  const auto with = [](std::vector<std::string> words, const std::string& word) {
    words.push_back(word);
    return words;
  };
  ASSERT_OK(f.go("two", with(two, "steps=15")));
  ASSERT_OK(f.go("two parts", with(with(two, "steps=8"), "grain_worker_count=4")));
  ASSERT_OK(f.go("two parts", with(two, "steps=15")));
  EXPECT_EQ(f.losses("two parts"), f.losses("two"));
  // Saved on two ranks, resumed on one: a rank's batch as a micro-step has the same bits.
  ASSERT_OK(f.go("to one", with(two, "steps=8")));
  ASSERT_OK(f.go("to one", {"steps=15", "per_device_batch_size=1", "gradient_accumulation_steps=2"}));
  EXPECT_EQ(f.losses("to one"), f.losses("two"));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(f.losses("two")[i], want[i], 1e-5 * want[i]) << i;

  const auto other = f.go("whole", {"steps=20", "packing=true"});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("was trained on other rows"), std::string::npos)
      << other.status().message();
}

// The samples of steps [begin, end), as ranks of a mesh are given them.
std::vector<int32_t> samples(const SampleFolder& f, std::vector<std::string> words, int64_t begin,
                             int64_t end) {
  words.insert(words.end(), {"train_files=" + (f / "ten.jsonl"), "data_shuffle_seed=42"});
  const auto config = config::Config::parse(f.yaml(), "tiny.yml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto setup = make_setup(*config, nullptr);
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  const auto data = TrainData::open(*config, setup->model.vocab_size, setup->batch, setup->tokenizer);
  EXPECT_TRUE(data.ok()) << data.status().message();
  const BatchShape& shape = setup->batch;
  Batch batch(shape.rows, shape.seq);
  std::vector<int32_t> out;
  for (int64_t step = begin; step < end; ++step) {
    std::vector<std::vector<int32_t>> seen(static_cast<size_t>(shape.ranks));
    for (int64_t rank = 0; rank < setup->ranks; ++rank) {
      std::vector<int32_t> own;
      for (int64_t m = 0; m < shape.micro_steps; ++m) {
        data->fill(step * shape.global_rows(), row_group(setup->step.mesh, rank), m, batch);
        for (int64_t r = 0; r < shape.rows; ++r) own.push_back(batch.row(r).ids[0] - '0');
      }
      std::vector<int32_t>& group = seen[static_cast<size_t>(row_group(setup->step.mesh, rank))];
      EXPECT_TRUE(group.empty() || group == own) << rank;
      group = own;
    }
    for (const auto& group : seen) out.insert(out.end(), group.begin(), group.end());
  }
  return out;
}

// Likewise on every mesh, and from each to the next: the samples in the same order, and where the mesh stays
// the losses to the bit.
TEST(Packing, ResumeGoesOnWithTheSameSamplesOnMeshes) {
  const SampleFolder f;
  const std::vector<int32_t> order = samples(f, {}, 0, 15);
  std::set<std::vector<int32_t>> epochs;
  for (auto at = order.begin(); at != order.end(); at += 10) {
    std::vector<int32_t> epoch(at, at + 10);
    epochs.insert(epoch);
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
  EXPECT_EQ(epochs.size(), 3U);
  ASSERT_OK(f.go("whole", {"steps=15"}));
  const std::vector<double> want = f.losses("whole");
  const std::vector<std::vector<std::string>> meshes = {
      {"ici_fsdp_parallelism=2", "ici_tensor_parallelism=2", "per_device_batch_size=0.5"},
      {"ici_context_parallelism=2", "context_parallel_strategy=ring", "per_device_batch_size=1"},
      {"ici_pipeline_parallelism=2", "ici_tensor_parallelism=2", "per_device_batch_size=0.5"},
      {}};
  const auto with = [](std::vector<std::string> words, int64_t steps, int workers = 0) {
    words.push_back(fmt::format("steps={}", steps));
    words.push_back(fmt::format("grain_worker_count={}", workers));
    return words;
  };
  for (size_t i = 0; i < meshes.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(samples(f, meshes[i], 0, 15), order);
    const std::string whole = fmt::format("whole{}", i), parts = fmt::format("parts{}", i);
    ASSERT_OK(f.go(whole, with(meshes[i], 15)));
    ASSERT_OK(f.go(parts, with(meshes[i], 8, 1)));
    ASSERT_OK(f.go(parts, with(meshes[i], 15, 4)));
    EXPECT_EQ(f.losses(parts), f.losses(whole));
    EXPECT_EQ(f.tensors(parts, 15), f.tensors(whole, 15));
    ASSERT_OK(f.go("moves", with(meshes[i], static_cast<int64_t>(i + 1) * 15 / 4)));
  }
  const std::vector<double> moved = f.losses("moves");
  ASSERT_EQ(moved.size(), 15U);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(moved[i], want[i], 1e-5 * want[i]) << i;
}

TEST(Packing, MeshesAndRematHaveTheSameBits) {
  const SampleFolder f;
  const auto go = [&](const std::string& name, std::vector<std::string> words) {
    words.insert(words.end(), {"packing=true", "steps=3", "max_target_length=32", "per_device_batch_size=1"});
    return f.go(name, words);
  };
  ASSERT_OK(go("data", {"ranks=2", "ici_data_parallelism=2"}));
  ASSERT_OK(go("fsdp", {"ranks=2", "ici_fsdp_parallelism=2", "remat_policy=full"}));
  ASSERT_OK(go("micro", {"gradient_accumulation_steps=2", "remat_policy=minimal", "grain_worker_count=2"}));
  ASSERT_OK(go("stages", {"ici_pipeline_parallelism=2", "ici_fsdp_parallelism=1"}));
  EXPECT_EQ(f.losses("data"), f.losses("fsdp"));
  EXPECT_EQ(f.losses("data"), f.losses("micro"));
  EXPECT_EQ(f.tensors("data", 3), f.tensors("fsdp", 3));
  EXPECT_EQ(f.tensors("data", 3), f.tensors("micro", 3));
  EXPECT_EQ(f.losses("data"), f.losses("stages"));
  EXPECT_EQ(f.tensors("data", 3), f.tensors("stages", 3));
}

TEST(Packing, SetsOfHeldOutTextAndTheDataEnd) {
  const SampleFolder f;
  const auto s =
      f.go("a", {"steps=100", "end_of_data=stop", "num_epoch=2", "packing=true", "eval_interval=50",
                 "eval_files=first=" + (f / "held_out.txt") + ",second=" + (f / "ten.jsonl")});
  ASSERT_OK(s);
  EXPECT_EQ(s->steps, s->eval->step);
  EXPECT_LT(s->steps, 11);
  ASSERT_EQ(s->eval->sets.size(), 2U);
  const auto& sets = s->eval->sets;
  EXPECT_EQ(sets[0].name, "first");
  EXPECT_EQ(sets[0].tokens, 699);
  EXPECT_EQ(sets[0].tokens + sets[1].tokens, s->eval->tokens);
  EXPECT_NEAR(
      sets[0].loss * static_cast<double>(sets[0].tokens) + sets[1].loss * static_cast<double>(sets[1].tokens),
      s->eval->loss * static_cast<double>(s->eval->tokens), 1e-6);
  EXPECT_EQ(f.records("a").back()["eval_sets"]["second"]["loss"].get<double>(), sets[1].loss);
  const auto again = f.go("a", {"steps=100", "end_of_data=stop", "num_epoch=2", "packing=true"});
  ASSERT_OK(again);
  EXPECT_EQ(again->steps, 0);
}

}  // namespace
}  // namespace lignum::train
