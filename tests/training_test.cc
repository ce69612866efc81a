// The training loop: what a run promises about bits, and how it ends.
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>

#include "base/safetensors.h"
#include "comm/allocation_count.h"
#include "comm/threads.h"
#include "exec/thread_pool.h"
#include "runs.h"
#include "train/checkpoint.h"
#include "train/crc32c.h"
#include "train/rank_executor.h"

namespace lignum::testing {
namespace {

#define ASSERT_OK(result) ASSERT_TRUE((result).ok()) << (result).status().message()

TEST(Training, LearnsAndEvaluates) {
  const RunFolder f;
  const auto s = f.train("a", {"steps=30", "learning_rate_schedule_steps=30", "eval_interval=15"});
  ASSERT_OK(s);
  EXPECT_EQ(s->steps, 30);
  const auto records = f.steps("a");
  ASSERT_EQ(records.size(), 32U);  // 30 steps and two evaluations
  EXPECT_EQ(records[0]["step"], 0);
  EXPECT_NEAR(records[0]["loss"].get<double>(), std::log(256.0), 0.3);
  EXPECT_LT(s->last->loss, 4.5);
  ASSERT_TRUE(s->eval.has_value());
  EXPECT_EQ(s->eval->step, 30);
  EXPECT_EQ(records[31]["eval_loss"].get<double>(), s->eval->loss);
  EXPECT_EQ(s->eval->tokens, 699 / 16 * 16);
  EXPECT_LT(s->eval->loss, 4.7);
}

TEST(Training, ResumeHasTheBitsOfAnUninterruptedRun) {
  const RunFolder f;
  ASSERT_OK(f.train("whole", {}));
  ASSERT_OK(f.train("parts", {"steps=3"}));
  const auto second = f.train("parts", {"steps=5", "threads=2"});
  ASSERT_OK(second);
  EXPECT_EQ(second->first_step, 3);
  EXPECT_EQ(second->steps, 2);
  ASSERT_OK(f.train("parts", {"overlap=off"}));
  EXPECT_EQ(f.steps("parts"), f.steps("whole"));
  EXPECT_EQ(f.tensors("parts", 8), f.tensors("whole", 8));
  EXPECT_NE(f.tensors("parts", 5), f.tensors("whole", 8));

  const auto done = f.train("parts", {});
  ASSERT_OK(done);
  EXPECT_EQ(done->steps, 0);
}

// data=2, fsdp=2 and accumulation of two micro-steps see the same rows in the same order.
TEST(Training, MeshesAndAccumulationHaveTheSameBits) {
  const RunFolder f;
  const std::vector<std::string> common = {"steps=3", "gradient_clipping_threshold=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  ASSERT_OK(f.train("data", with({"ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"})));
  ASSERT_OK(f.train("fsdp", with({"ranks=2", "ici_data_parallelism=1", "ici_fsdp_parallelism=2"})));
  ASSERT_OK(f.train("accumulation", with({"gradient_accumulation_steps=2"})));
  ASSERT_OK(f.train("threads", with({"gradient_accumulation_steps=2", "threads=2"})));
  for (const char* other : {"fsdp", "accumulation", "threads"}) {
    auto want = f.steps("data"), got = f.steps(other);
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      // The norm is a sum over shards: its last bit may go either way (while clipping is off, nothing hangs
      // on it).
      const double norm = want[i]["grad_norm"];
      EXPECT_NEAR(got[i]["grad_norm"].get<double>(), norm, 0x1p-23 * norm) << other;
      want[i].erase("grad_norm");
      got[i].erase("grad_norm");
    }
    EXPECT_EQ(want, got) << other;
    EXPECT_EQ(f.tensors("data", 3), f.tensors(other, 3)) << other;
  }
  // A checkpoint of one mesh goes on with another: whole tensors, the same numbers here.
  ASSERT_OK(f.train("data", {"gradient_clipping_threshold=0", "steps=4", "gradient_accumulation_steps=2"}));
  ASSERT_OK(
      f.train("fsdp", {"gradient_clipping_threshold=0", "steps=4", "ranks=2", "ici_fsdp_parallelism=2"}));
  EXPECT_EQ(f.tensors("data", 4), f.tensors("fsdp", 4));
  const auto exact = f.train("fsdp", {"resume_kernels=exact", "gradient_accumulation_steps=2"});
  ASSERT_FALSE(exact.ok());
  EXPECT_NE(exact.status().message().find("fsdp=2, now one rank"), std::string::npos)
      << exact.status().message();
}

// Seven layers of Gemma 3 are a body of six, once, and a body of one.
TEST(Training, FamiliesResumeAndHaveTheSameBitsOnMeshes) {
  const RunFolder f;
  for (const std::string model : {"qwen3-0.6b", "gemma2-2b", "gemma3-4b"}) {
    const auto train = [&](const std::string& run, std::vector<std::string> more) {
      for (const char* word :
           {"override_model_config=true", "base_num_decoder_layers=7", "gradient_clipping_threshold=0"})
        more.emplace_back(word);
      more.push_back("model_name=" + model);
      return f.train(model + run, more);
    };
    ASSERT_OK(train("data", {"steps=2", "ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"}));
    ASSERT_OK(train("fsdp", {"steps=1", "ranks=2", "ici_fsdp_parallelism=2"}));
    ASSERT_OK(train("fsdp", {"steps=2", "ranks=2", "ici_fsdp_parallelism=2"}));
    ASSERT_OK(train("accumulation", {"steps=2", "gradient_accumulation_steps=2"}));
    EXPECT_EQ(f.tensors(model + "data", 2), f.tensors(model + "fsdp", 2)) << model;
    EXPECT_EQ(f.tensors(model + "data", 2), f.tensors(model + "accumulation", 2)) << model;
  }
}

TEST(Training, ResumeTakesTheCheckpointsKernels) {
  const RunFolder f;
  ASSERT_OK(f.train("whole", {"isa=scalar", "steps=4"}));
  ASSERT_OK(f.train("parts", {"isa=scalar", "steps=2"}));
  ASSERT_OK(f.train("parts", {"steps=4"}));  // auto: those of the checkpoint
  EXPECT_EQ(f.tensors("parts", 4), f.tensors("whole", 4));
  if (kernels::best_isa() == kernels::Isa::scalar) return;
  const std::string other = fmt::format("isa={}", kernels::isa_name(kernels::best_isa()));
  const auto refused = f.train("parts", {other, "resume_kernels=exact"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::user_error);
  std::string said;
  train::TrainOptions options;
  options.log = [&](const std::string& line) { said += line + "\n"; };
  ASSERT_OK(f.train("parts", {other}, options));
  EXPECT_NE(said.find("written with scalar kernels"), std::string::npos) << said;
}

// In each way of bf16 dots: a resume goes on in the way it began with, and says so where it is told to
// change.
TEST(Training, ResumeTakesTheCheckpointsWayOfBf16Dots) {
  const RunFolder f;
  for (const kernels::Bf16Dot dot : kernels::available_bf16_dots(kernels::best_isa())) {
    const std::string name(kernels::bf16_dot_name(dot)), parts = name + "-parts";
    ASSERT_OK(f.train(name, {"dtype=bfloat16", "bf16_dot=" + name, "steps=3"}));
    ASSERT_OK(f.train(parts, {"dtype=bfloat16", "bf16_dot=" + name, "steps=2", "threads=2"}));
    ASSERT_OK(f.train(parts, {"dtype=bfloat16", "steps=3"}));
    EXPECT_EQ(f.tensors(parts, 3), f.tensors(name, 3)) << name;
    if (dot == kernels::Bf16Dot::fma) continue;
    EXPECT_NE(f.tensors("fma", 3), f.tensors(name, 3)) << name;
    const auto refused =
        f.train(parts, {"dtype=bfloat16", "bf16_dot=fma", "resume_kernels=exact", "steps=4"});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("written with bf16 dots by " + name + ", now by fma"),
              std::string::npos)
        << refused.status().message();
  }
}

TEST(Training, ResumeSaysWhatChanged) {
  const RunFolder f;
  ASSERT_OK(f.train("a", {"steps=1", "learning_rate=0.001"}));
  std::string said;
  train::TrainOptions options;
  options.log = [&](const std::string& line) { said += line + "\n"; };
  ASSERT_OK(f.train("a", {"steps=2", "learning_rate=0.002", "data_shuffle_seed=9"}, options));
  for (const char* change : {"steps: 1 -> 2", "learning_rate: 0.001 -> 0.002", "data_shuffle_seed: 0 -> 9"})
    EXPECT_NE(said.find(change), std::string::npos) << change << " in " << said;
}

TEST(Training, RefusesToResumeAnotherModelOrOtherRows) {
  const RunFolder f;
  ASSERT_OK(f.train("a", {"steps=1"}));
  for (const char* change : {"base_mlp_dim=48", "max_target_length=8"}) {
    const auto s = f.train("a", {change});
    ASSERT_FALSE(s.ok()) << change;
    EXPECT_EQ(s.status().code(), Code::user_error);
    EXPECT_NE(s.status().message().find("another run_name"), std::string::npos) << s.status().message();
  }
}

TEST(Training, StopsOnASignalAndGoesOn) {
  const RunFolder f;
  ASSERT_OK(f.train("whole", {}));
  std::atomic<int> stop{0};
  train::TrainOptions options;
  options.stop = &stop;
  options.record = [&](const nlohmann::ordered_json& j) {
    if (j["step"] == 2) stop = SIGTERM;
  };
  const auto s = f.train("parts", {"ranks=1"}, options);
  ASSERT_OK(s);
  EXPECT_EQ(s->stopped_by, SIGTERM);
  EXPECT_EQ(s->steps, 3);
  EXPECT_EQ(s->checkpoint, f.checkpoint("parts", 3));
  ASSERT_OK(f.train("parts", {}));
  EXPECT_EQ(f.steps("parts"), f.steps("whole"));
}

TEST(Training, ASignalBeforeTheFirstStepIsHeard) {
  const RunFolder f;
  ASSERT_OK(f.train("whole", {}));
  std::atomic<int> stop{SIGTERM};
  train::TrainOptions options;
  options.stop = &stop;
  const auto s = f.train("parts", {"ranks=2", "ici_data_parallelism=2", "per_device_batch_size=1"}, options);
  ASSERT_OK(s);
  EXPECT_EQ(s->stopped_by, SIGTERM);
  EXPECT_EQ(s->steps, 0);
  EXPECT_EQ(s->checkpoint, f.checkpoint("parts", 0));
  ASSERT_OK(f.train("parts", {}));
  EXPECT_EQ(f.steps("parts"), f.steps("whole"));
}

// A held-out file that takes minutes: who sends a signal does not wait that long.
TEST(Training, ASignalEndsAnEvaluationWhichTheResumeMakesUpFor) {
  const RunFolder f;
  ASSERT_TRUE(write_file_atomic(f / "held_out.txt", std::string(16 << 20, 'a')).ok());
  std::atomic<int> stop{0};
  std::thread signal;
  train::TrainOptions options;
  options.stop = &stop;
  options.record = [&](const nlohmann::ordered_json& j) {
    if (j["step"] != 1) return;
    signal = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      stop = SIGTERM;
    });
  };
  const auto s = f.train("a", {"eval_interval=2"}, options);
  signal.join();
  ASSERT_OK(s);
  EXPECT_EQ(s->stopped_by, SIGTERM);
  EXPECT_EQ(s->checkpoint, f.checkpoint("a", 2));
  EXPECT_FALSE(s->eval.has_value());
  ASSERT_OK(f.train("a", {"eval_interval=2", "eval_steps=1", "steps=3"}));
  const auto records = f.steps("a");
  ASSERT_EQ(records.size(), 5U);  // steps 0 and 1, the evaluation that was owed, step 2, the last evaluation
  EXPECT_TRUE(records[2].contains("eval_loss"));
  EXPECT_EQ(records[2]["step"], 2);
}

TEST(Training, NonFiniteStepStopsWithTheLayerAndKeepsTheState) {
  const RunFolder f;
  ASSERT_OK(f.train("source", {"steps=1"}));
  copy_model(f.checkpoint("source", 1), f / "planted", "model.layers.1.mlp.up_proj.weight",
             [](std::span<float> weight) { weight[5] = std::numeric_limits<float>::quiet_NaN(); });
  const std::string yaml = fmt::format(
      "dataset_type: text\ntrain_files: [{0}/train.txt]\nbase_output_directory: {0}/runs\n"
      "max_target_length: 16\nper_device_batch_size: 2\nsteps: 4\nthreads: 1\n",
      f.path());
  const std::vector<std::vector<std::string>> meshes = {
      {"ici_fsdp_parallelism=1"},
      {"ici_fsdp_parallelism=2"},
      {"ici_fsdp_parallelism=1", "ici_pipeline_parallelism=2"}};
  for (size_t i = 0; i < meshes.size(); ++i) {
    const std::string name = fmt::format("nan{}", i + 1);
    std::vector<std::string> words = meshes[i];
    words.insert(words.end(), {"run_name=" + name, "model_path=" + (f / "planted")});
    auto config = config::Config::parse(yaml, "nan.yml", words);
    ASSERT_OK(config);
    const auto s = train::train(*config, {});
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.status().code(), Code::check_failed);
    const std::string& message = s.status().message();
    for (const char* part : {"step 0: loss nan", "layer 1", "decoder/layers/mlp/wi_1", "forward"})
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    // The state that made it: the planted weights, to the bit, moments untouched.
    const auto kept = SafetensorsReader::open(f.checkpoint(name, 0) + "/model.safetensors"),
               planted = SafetensorsReader::open(f / "planted/model.safetensors"),
               moments = SafetensorsReader::open(f.checkpoint(name, 0) + "/optimizer.safetensors");
    ASSERT_OK(kept);
    ASSERT_OK(planted);
    ASSERT_OK(moments);
    for (const TensorInfo& t : planted->tensors()) {
      const auto want = planted->data(t), got = kept->data(*kept->find(t.name));
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin(), got.end())) << t.name;
    }
    for (const TensorInfo& t : moments->tensors())
      for (const std::byte b : moments->data(t)) ASSERT_EQ(b, std::byte{0}) << t.name;
  }
  // Or the step is skipped; here every one.
  auto config = config::Config::parse(
      yaml, "nan.yml", {"run_name=skipped", "model_path=" + (f / "planted"), "abort_on_nan_loss=false"});
  ASSERT_OK(config);
  const auto s = train::train(*config, {});
  ASSERT_OK(s);
  EXPECT_EQ(s->skipped_steps, 4);
  for (const nlohmann::json& record : f.records("skipped")) {
    EXPECT_TRUE(record["loss"].is_null());
    EXPECT_EQ(record["skipped"], "loss nan, grad_norm nan");
  }
  const auto kept = read_text(f.checkpoint("skipped", 4) + "/model.safetensors");
  ASSERT_OK(kept);
  EXPECT_EQ(*kept, *read_text(f.checkpoint("nan1", 0) + "/model.safetensors"));
}

TEST(Training, DamagedCheckpointIsRefusedByName) {
  const RunFolder f;
  ASSERT_OK(f.train("whole", {}));
  ASSERT_OK(f.train("a", {"steps=4", "checkpoint_period=2"}));
  const std::string newest = f.checkpoint("a", 4);
  const auto damage = [&](const std::string& file, bool torn) {
    auto text = read_text(newest + "/" + file);
    ASSERT_OK(text);
    if (torn) {
      text->resize(text->size() - 7);
    } else {
      (*text)[text->size() / 2] ^= 1;
    }
    ASSERT_TRUE(write_file_atomic(newest + "/" + file, *text).ok());
    const auto s = f.train("a", {});
    ASSERT_FALSE(s.ok()) << file;
    EXPECT_EQ(s.status().code(), Code::user_error);
    EXPECT_NE(s.status().message().find(newest), std::string::npos) << s.status().message();
    EXPECT_NE(s.status().message().find(file), std::string::npos) << s.status().message();
  };
  const auto original = read_text(newest + "/optimizer.safetensors");
  damage("optimizer.safetensors", true);
  ASSERT_TRUE(write_file_atomic(newest + "/optimizer.safetensors", *original).ok());
  damage("model.safetensors", false);
  // The user says so: without that folder the run goes on from the one before, to the same end.
  ASSERT_TRUE(remove_tree(newest).ok());
  const auto s = f.train("a", {});
  ASSERT_OK(s);
  EXPECT_EQ(s->first_step, 2);
  EXPECT_EQ(f.steps("a"), f.steps("whole"));
}

// Sums that match say that the bytes are those written, not that they make sense.
TEST(Training, ImpossibleStateIsRefusedByName) {
  const RunFolder f;
  ASSERT_OK(f.train("a", {"steps=2"}));
  const std::string folder = f.checkpoint("a", 2);
  const auto original = read_text(folder + "/state.json");
  ASSERT_OK(original);
  const std::vector<std::pair<std::string, nlohmann::json>> edits = {{"/step", -2},
                                                                     {"/step", 1},
                                                                     {"/rows_consumed", -1},
                                                                     {"/rows_consumed", INT64_MAX},
                                                                     {"/data", 5},
                                                                     {"/data_shuffle_seed", 1e308},
                                                                     {"/mesh", nullptr},
                                                                     {"/mesh/0/name", 1},
                                                                     {"/policy/evaluated_step", 0.5},
                                                                     {"/mesh/0/size", 0},
                                                                     {"/policy/skipped_steps", 3},
                                                                     {"/policy/losses", "none"}};
  for (const auto& [field, value] : edits) {
    auto state = nlohmann::json::parse(*original);
    state[nlohmann::json::json_pointer(field)] = value;
    const std::string text = state.dump();
    ASSERT_TRUE(write_file_atomic(folder + "/state.json", text).ok());
    auto manifest = nlohmann::json::parse(read_text(folder + "/manifest.json").value());
    manifest["files"]["state.json"] = {
        {"bytes", text.size()},
        {"crc32c", fmt::format("{:08x}", train::crc32c(std::as_bytes(std::span(text))))}};
    ASSERT_TRUE(write_file_atomic(folder + "/manifest.json", manifest.dump()).ok());
    const auto s = f.train("a", {"steps=3"});
    ASSERT_FALSE(s.ok()) << field;
    EXPECT_EQ(s.status().code(), Code::user_error);
    const std::string name = field.substr(field.rfind('/') + 1);
    for (const std::string& part :
         {folder, std::string("is damaged"), std::string("state.json"), name.substr(0, name.find('_'))})
      EXPECT_NE(s.status().message().find(part), std::string::npos) << s.status().message();
  }
}

TEST(Training, LeftoversOfAKilledSaveAreRemoved) {
  const RunFolder f;
  ASSERT_OK(f.train("a", {"steps=2"}));
  const std::string leftover = f.checkpoint("a", 3) + ".tmp";
  ASSERT_TRUE(make_directories(leftover).ok());
  ASSERT_TRUE(write_file_atomic(leftover + "/model.safetensors.tmp", "half").ok());
  const auto s = f.train("a", {"steps=3"});
  ASSERT_OK(s);
  EXPECT_EQ(s->first_step, 2);
  EXPECT_FALSE(path_exists(leftover));
}

TEST(Training, MemoryBudgetIsKept) {
  const RunFolder f;
  const auto s = f.train("a", {"device_memory=64KiB"});
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::user_error);
  EXPECT_NE(s.status().message().find("device_memory"), std::string::npos) << s.status().message();
  EXPECT_FALSE(path_exists(f.run("a")));  // there is no such run
  // Without a budget and a specification it is the machine's: no machine holds this.
  const auto petabyte =
      f.train("b", {"base_num_decoder_layers=65536", "base_emb_dim=16384", "base_mlp_dim=65536"});
  ASSERT_FALSE(petabyte.ok());
  EXPECT_EQ(petabyte.status().code(), Code::user_error);
  EXPECT_NE(petabyte.status().message().find("device_memory"), std::string::npos)
      << petabyte.status().message();
}

// What executor.step() allocates in steps 3 to 10, on all ranks and threads together.
int64_t allocations_of_steps(const RunFolder& f, const std::vector<std::string>& settings) {
  const auto config = config::Config::parse(f.yaml(), "tiny.yml", settings);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto setup = train::make_setup(*config, nullptr);
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  const auto program = plan::make_program(setup->step);
  EXPECT_TRUE(program.ok()) << program.status().message();
  const auto data = train::TrainData::open(*config, setup->model.vocab_size, setup->batch);
  EXPECT_TRUE(data.ok()) << data.status().message();
  comm::ThreadWorld world(static_cast<int>(setup->ranks));
  std::atomic<int64_t> allocated{0};
  const Status status = world.run([&](comm::Transport& transport) -> Status {
    LIGNUM_ASSIGN_OR_RETURN(const train::Ranks ranks, train::Ranks::join(transport));
    LIGNUM_ASSIGN_OR_RETURN(const auto pool, exec::ThreadPool::create(setup->threads));
    LIGNUM_ASSIGN_OR_RETURN(const auto executor, train::make_executor(*setup, *program, ranks, *pool, 0));
    LIGNUM_RETURN_IF_ERROR(
        train::init_parameters(setup->model, {*program, setup->step.mesh, ranks.rank()}, *executor, 1));
    train::Batch batch(setup->batch.rows, setup->batch.seq);
    const train::BatchInputs inputs(*executor, *program, setup->step.mesh, ranks.rank());
    for (int32_t step = 0; step <= 10; ++step) {
      for (int64_t m = 0; m < setup->batch.micro_steps; ++m) {
        data->fill(step * setup->batch.global_rows(), ranks.rank(), m, batch);
        inputs.put(batch, m);
      }
      std::memcpy(executor->param("step"), &step, sizeof(step));
      LIGNUM_RETURN_IF_ERROR(ranks.barrier());  // nobody fills while another rank counts
      const int64_t before = comm::allocations_of_all_threads();
      LIGNUM_RETURN_IF_ERROR(executor->step());
      if (step >= 3) allocated += comm::allocations_of_all_threads() - before;
      LIGNUM_RETURN_IF_ERROR(ranks.barrier());
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return allocated;
}

// Everything that a step needs is there before step 0; three steps may warm up threads and engines.
TEST(Training, StepsAllocateNothing) {
  const RunFolder f;
  EXPECT_EQ(allocations_of_steps(f, {"ranks=2", "ici_fsdp_parallelism=2", "threads=2"}), 0);
  EXPECT_EQ(allocations_of_steps(f, {"dtype=bfloat16", "gradient_accumulation_steps=2",
                                     "remat_policy=minimal", "logits_via_embedding=true", "threads=2"}),
            0);
  EXPECT_EQ(allocations_of_steps(f, {"ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1",
                                     "remat_policy=none", "dtype=bfloat16", "overlap=off"}),
            0);
}

}  // namespace
}  // namespace lignum::testing
