// How a run of processes ends when one of its ranks dies, hangs or is not like the others.
#include "mpi.h"

namespace lignum::testing {
namespace {

constexpr int kSilence = 2;  // seconds

class RankFailures : public Mpi {
 protected:
  void SetUp() override {
    Mpi::SetUp();
    ::setenv("LIGNUM_HEARTBEAT_SECONDS", std::to_string(kSilence).c_str(), 1);
  }
  void TearDown() override { ::unsetenv("LIGNUM_HEARTBEAT_SECONDS"); }

  // Starts a run that spends its time so, lets it come there, and sends one rank the signal: the others
  // leave, with one message that begins so after the process's number, and what was saved is whole.
  void fails(std::vector<std::string> words, FunctionRef<bool()> there, int rank, int signal,
             const std::string& message) {
    static_cast<void>(remove_tree(f.run("a") + "/metrics.jsonl"));  // of the run before
    words.insert(words.begin(),
                 {"train", f / "tiny.yml", "run_name=a", "ranks=2", "comm=mpi", "steps=100000"});
    const Process p(f, words);
    pid_t victim = -1, other = -1;
    ASSERT_TRUE(within_a_minute([&] {
      if (victim <= 0) victim = process_of_rank(p.pid(), rank);
      if (other <= 0) other = process_of_rank(p.pid(), 1 - rank);
      return victim > 0 && other > 0 && there();
    }));
    const auto begin = std::chrono::steady_clock::now();
    ::kill(victim, signal);
    const Ended e = p.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 30);
    EXPECT_NE(e.code, 0);
    const std::string said = fmt::format("lignum: rank {} of 2 (process {}) {}", rank, victim, message);
    const size_t at = e.err.find(said);
    EXPECT_NE(at, std::string::npos) << said << "\n" << e.err;
    EXPECT_EQ(e.err.find("lignum: ", at + 1), std::string::npos) << e.err;
    EXPECT_TRUE(within_a_minute([&] { return !alive(victim) && !alive(other); }));
    if (const int64_t step = newest("a"); step > 0) {
      const auto kept = train::open_checkpoint(f.checkpoint("a", step));
      EXPECT_TRUE(kept.ok()) << kept.status().message();
    }
  }
  void killed_and_stopped(const std::vector<std::string>& words, FunctionRef<bool()> there, int rank) {
    fails(words, there, rank, SIGKILL, "was ended by signal 9, Killed: this ends the run");
    fails(
        words, there, 1 - rank, SIGSTOP,
        fmt::format("has not answered for {} seconds, a signal has stopped it: this ends the run", kSilence));
  }
  size_t records_so_far() const {
    const auto text = read_text(f.run("a") + "/metrics.jsonl");
    return text.ok() ? static_cast<size_t>(std::count(text->begin(), text->end(), '\n')) : 0;
  }
};

TEST_F(RankFailures, InWarmUp) {
  killed_and_stopped({"enable_checkpointing=false"}, [] { return true; }, 0);
}

TEST_F(RankFailures, InAStep) {
  killed_and_stopped({"enable_checkpointing=false", "log_period=1"}, [&] { return records_so_far() > 3; }, 1);
}

TEST_F(RankFailures, InEvaluation) {
  killed_and_stopped(
      {"enable_checkpointing=false", "log_period=1", "eval_interval=1"}, [&] { return records_so_far() > 3; },
      0);
}

TEST_F(RankFailures, InASave) {
  int64_t before = -1;
  killed_and_stopped(
      {"checkpoint_period=1"},
      [&] {
        const int64_t now = newest("a");
        return now > std::exchange(before, now) && now > 1;
      },
      1);
  const int64_t at = newest("a") + 2;
  ASSERT_EQ(mpi({"train", "run_name=a", fmt::format("steps={}", at)}).code, 0);
  ASSERT_TRUE(f.train("whole", {"ranks=2", fmt::format("steps={}", at)}).ok());
  EXPECT_EQ(f.tensors("a", at), f.tensors("whole", at));
}

TEST_F(RankFailures, ARankThatNeverJoins) {
  const Ended e =
      Process(f, {"-n", "1", LIGNUM_BINARY, "train", f / "tiny.yml", ":", "-n", "1", "/bin/sleep", "100"},
              kMpiexec)
          .wait();
  EXPECT_NE(e.code, 0);
  EXPECT_NE(e.err.find(fmt::format("has waited {} seconds for the others to start", 2 * kSilence)),
            std::string::npos)
      << e.err;
}

// A heartbeat is no limit on a step: this one computes for longer than the silence that is allowed.
TEST_F(RankFailures, ALongStepIsNoSilence) {
  const Ended e =
      mpi({"train", "run_name=long", "steps=1", "enable_checkpointing=false",
           "gradient_accumulation_steps=700", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"});
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.err, "");
}

TEST_F(RankFailures, OtherWords) {
  expect_mistake(launch({"stepz=1"}, {"stepz=1"}), "lignum: command line: unknown key 'stepz'");
  expect_mistake(launch({}, {"stepz=1"}), "lignum: rank 1: command line: unknown key 'stepz'");
  expect_mistake(launch({}, {"steps=5"}), "lignum: rank 1: steps is 5 here, 8 on rank 0");
  expect_mistake(launch({"comm=threads"}, {"comm=threads"}), "lignum: comm=threads under an MPI launcher");
  expect_mistake(launch({"ranks=3"}, {"ranks=3"}), "lignum: 3 ranks");
  const Ended small = mpi({"train", "run_name=a", "device_memory=1KiB"});  // with a table, once
  EXPECT_EQ(small.code, 2) << small.err;
  EXPECT_TRUE(small.err.starts_with("lignum: device_memory=1024")) << small.err;
  EXPECT_EQ(small.err.find("lignum: ", 1), std::string::npos) << small.err;
  ::setenv("LIGNUM_HEARTBEAT_SECONDS", "soon", 1);
  expect_mistake(mpi({"train", "run_name=a"}), "lignum: LIGNUM_HEARTBEAT_SECONDS=soon: 2 to 86400 seconds");
}

// Each rank sees a folder of its own under one name.
TEST_F(RankFailures, OtherFilesUnderTheSameName) {
  ASSERT_TRUE(f.train("source", {"steps=1"}).ok());
  const std::vector<std::string> folders = {f / "here", f / "there"};
  for (const std::string& folder : folders) {
    const bool first = folder == folders[0];
    copy_model(f.checkpoint("source", 1), folder + "/weights", "model.norm.weight",
               [&](std::span<float> w) { w[3] += first ? 0.0F : 1e-6F; });
    ASSERT_TRUE(
        write_file_atomic(folder + "/rows.txt", read_text(f / "train.txt").value() + (first ? "" : "more"))
            .ok());
  }
  std::string yaml = f.yaml();
  yaml.erase(0, yaml.find("max_target_length"));  // the model is the folder's
  ASSERT_TRUE(write_file_atomic(f / "tiny.yml", yaml).ok());
  const std::string weights = "model_path=weights", rows = "train_files=[rows.txt]";
  expect_mistake(launch({weights}, {weights}, folders),
                 "lignum: rank 1: the CRC of model_path's tensors is ");
  expect_mistake(launch({weights, rows}, {weights, rows}, folders),
                 "lignum: rank 1: the rows of train_files is ");
}

}  // namespace
}  // namespace lignum::testing
